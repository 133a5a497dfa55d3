"""From the files of a run directory, or of two, to the evidence."""

import dataclasses
import math
from collections import Counter
from collections.abc import ItemsView, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gates import oracles, sampling
from gates.evidence import Arm, Evidence, Key, NotComparable, Pass, Reply, Role, sampling_of
from gates.probes import Probed, Side, by_kind
from gates.scored import IN_PART, NO_SCORES, Ints, Rows, Scored, join, join_by_text
from loadgen.record import Record, Run, Telemetry


@dataclass(frozen=True, slots=True)
class _Read:
    """One run's files, each read once."""

    replies: dict[Key, list[tuple[Reply, Ints | None]]]
    probes: dict[Side, Probed]
    scores: dict[Key, Rows]
    oracles: dict[str, dict[Key, Rows]]
    texts: dict[Key, Rows]  # scores of re-tokenized replies; of no pass where both servers return token ids
    telemetry: list[Telemetry]
    complete: bool


def _read(run: Run) -> _Read:
    scores = _scores(run)
    probes: list[Record] = []
    return _Read(
        replies=_replies(run, probes),
        probes=by_kind(probes, scores),
        scores=scores,
        oracles={name: _scores(run, name) for name in run.oracles()},
        texts={(label, profile, pass_no): rows for label, profile, pass_no, rows in run.scores(by_text=True)},
        telemetry=[line for line in run.telemetry() if line.kind != "sample"],
        complete=run.complete,
    )


def _scores(run: Run, oracle: str | None = None) -> dict[Key, Rows]:
    return {(label, profile, pass_no): rows for label, profile, pass_no, rows in run.scores(oracle)}


def load(stock_run: Run, candidate_run: Run | None = None, *, between_passes: bool = False) -> Evidence:
    """Reads a comparison, or two runs of one endpoint each.

    between_passes: the caller drives this run and looks between two passes, so that its missing end is no defect.
    Passes that were not drained are left out, and a warning says so.
    Raises NotComparable where there are no two roles, loadgen.record.Broken where a file is none of ours.
    """
    runs = [stock_run] if candidate_run is None else [stock_run, candidate_run]
    labels = _labels(stock_run, candidate_run)
    _one_reference(runs)
    names = _oracles(runs)
    profiles = list(dict.fromkeys(name for run in runs for name in run.asked.get("profiles", {})))
    reads = [_read(run) for run in runs]
    stock, of_stock = _arm("stock", labels["stock"], reads[0], runs[0])
    candidate, of_candidate = _arm("candidate", labels["candidate"], reads[-1], runs[-1])
    by_text = frozenset(profile for _, profile, _ in reads[0].texts)
    ends = _end_ids(stock) if not by_text else frozenset()  # the end of a reply has no text
    stock, candidate = (dataclasses.replace(arm, eos=ends, oracles=names) for arm in (stock, candidate))
    warnings = of_stock + of_candidate + _silent(stock) + _silent(candidate)
    warnings += [_BY_TEXT.format(name) for name in sorted(by_text)]
    ended = all(run.complete for run in runs)
    paired = candidate_run is None or _same_prompts(stock_run, candidate_run)
    if not paired:
        warnings.append("The two runs were asked for different prompts: replies are not paired by prompt.")
    evidence = Evidence(
        stock=stock,
        candidate=candidate,
        profiles=profiles,
        open_loop=frozenset(name for run in runs for name, asked in _profiles(run) if asked.get("arrivals")),
        runs=runs,
        ended=ended,
        whole=ended or (between_passes and all(run.end is None for run in runs)),
        paired=paired,
        warnings=warnings,
        by_text=by_text,
    )
    differing = _differing_prompts(evidence)
    return dataclasses.replace(evidence, warnings=warnings + differing, same_prompts=not differing)


_BY_TEXT = (
    "A server returned text alone in {}: both servers' replies were tokenized again by the reference, and are judged "
    "by their difference alone. A fault that mostly shows in replies that do not come back the same is not seen."
)

_MOST_END_WITH = 0.9


def _end_ids(stock: Arm) -> frozenset[int]:
    """What stock's replies end with where they stop by themselves, and never hold before.

    Empty where most stops end with something else: then the server's ids leave the end out.
    """
    last: Counter[int] = Counter()
    inside: set[int] = set()
    for one in stock.passes:
        ids, reply = one.scored.rows["token_id"], one.scored.reply
        lengths = np.array([-1 if found.tokens is None else found.tokens for found in one.replies], np.int64)
        is_last = one.scored.rows["position"] + 1 >= lengths[reply]  # not the last row, where a part alone is scored
        stopped = np.array([found.stopped for found in one.replies], np.bool_)
        ends = is_last & stopped[reply]
        last.update(ids[ends].tolist())
        inside.update(np.unique(ids[~is_last]).tolist())
    found = frozenset(last.keys() - inside)
    return found if sum(last[token_id] for token_id in found) >= _MOST_END_WITH * last.total() else frozenset()


def _profiles(run: Run) -> ItemsView[str, dict[str, Any]]:
    profiles: dict[str, dict[str, Any]] = run.asked.get("profiles", {})
    return profiles.items()


def _labels(stock_run: Run, candidate_run: Run | None) -> dict[str, str]:
    if candidate_run is not None:
        return {"stock": _only(stock_run), "candidate": _only(candidate_run)}
    roles: dict[str, str] | None = stock_run.asked.get("roles")
    if not roles:
        raise NotComparable(
            f"{stock_run.path} holds one endpoint's run, so there is nothing to compare it with. "
            "Give the candidate's run as the second directory, or make both at once with `loadgate compare`."
        )
    return roles


def _one_reference(runs: Sequence[Run]) -> None:
    models = {run.reference_model for run in runs} - {None}
    if len(models) > 1:
        raise NotComparable(
            f"The runs were scored by different models ({', '.join(sorted(str(model) for model in models))}), so their "
            "scores cannot be compared. Score both with one reference: `loadgate score RUN --reference ENDPOINT`."
        )


def _oracles(runs: Sequence[Run]) -> tuple[str, ...]:
    found: dict[str, set[str]] = {}
    for run in runs:
        for name, model in run.oracles().items():
            found.setdefault(name, set()).update({model} if model else ())
    for name, models in found.items():
        if len(models) > 1:
            raise NotComparable(
                f"The runs' oracle {name} is not one model ({', '.join(sorted(models))}), so that its scores cannot be "
                f"judged together. Remove scores/oracle-{name} of one run, and score it anew."
            )
    return tuple(sorted(found))


def _silent(arm: Arm) -> list[str]:
    """Where an oracle has no score, it says nothing for or against."""
    warnings = []
    tokens = sum(len(one.scored.rows) for one in arm.passes)
    for name in arm.oracles:
        told = sum(int((one.oracles[name].at >= 0).sum()) for one in arm.passes if name in one.oracles)
        if told < tokens:
            warnings.append(
                f"{arm.role}: the oracle {name} scored {told:,} of {tokens:,} tokens; of the others it says nothing."
            )
    return warnings


def _only(run: Run) -> str:
    labels = list(run.asked.get("endpoints", {}))
    if len(labels) != 1:
        raise NotComparable(
            f"{run.path} holds {len(labels)} endpoints, and of two runs each must hold one. "
            "A comparison is judged alone: leave the second directory out."
        )
    return str(labels[0])


def _same_prompts(first: Run, second: Run) -> bool:
    def prompts(run: Run) -> Any:
        return run.asked.get("seed"), {name: asked.get("prompts") for name, asked in _profiles(run)}

    return bool(prompts(first) == prompts(second))


def _arm(role: Role, label: str, read: _Read, run: Run) -> tuple[Arm, list[str]]:
    telemetry = [line for line in read.telemetry if line.endpoint in (label, None)]
    borders = {(line.profile, line.pass_no, line.edge): line.values for line in telemetry if line.kind == "border"}
    passes, cut = [], []
    for (name, profile, pass_no), found in read.replies.items():
        if name != label:
            continue
        if not read.complete and (profile, pass_no, "end") not in borders:
            cut.append(f"{profile} {pass_no}")
            continue
        replies, expected = zip(*found, strict=True)
        key = (label, profile, pass_no)
        scored = _scored(replies, expected, read, key)
        told = {
            oracle: oracles.aligned(scored, _joined(replies, expected, scores[key]))
            for oracle, scores in read.oracles.items()
            if key in scores
        }
        passes.append(
            Pass(
                profile=profile,
                pass_no=pass_no,
                replies=list(replies),
                scored=scored,
                start=borders.get((profile, pass_no, "start"), {}),
                end=borders.get((profile, pass_no, "end"), {}),
                law=sampling.law(*sampling_of(run, profile, label)),
                oracles=told,
            )
        )
    warnings = [f"{role}: passes that did not end are left out: {', '.join(cut)}."] if cut else []
    return Arm(role, label, passes, telemetry, probes=read.probes), warnings + _dropped(role, passes, run.scored_share)


def _scored(replies: Sequence[Reply], expected: Sequence[Ints | None], read: _Read, key: Key) -> Scored:
    if any(profile == key[1] for _, profile, _ in read.texts):
        return join_by_text(*_received(replies), read.texts.get(key))
    return _joined(replies, expected, read.scores.get(key))


def _joined(replies: Sequence[Reply], expected: Sequence[Ints | None], scores: Rows | None) -> Scored:
    requests, received = _received(replies)
    return join(requests, list(expected), received, scores)


def _received(replies: Sequence[Reply]) -> tuple[npt.NDArray[np.uint64], list[bool]]:
    """(keys of their scores, whether anything came) of each reply."""
    return np.array([reply.request for reply in replies], np.uint64), [len(reply.chunk_ns) > 0 for reply in replies]


def _dropped(role: Role, passes: list[Pass], share: float) -> list[str]:
    total: Counter[str] = Counter()
    for one in passes:
        total.update(one.scored.dropped)
    replies = sum(len(one.replies) for one in passes)
    if share < 1:  # a part of every reply, and of short ones nothing, is as it was meant
        total = Counter({why: count for why, count in total.items() if why not in (IN_PART, NO_SCORES)})
    sampled = [f"{role}: the reference was asked about a random {share:.0%} of the tokens."] if share < 1 else []
    return (
        sampled
        + ([] if total else _refused(role, passes, share))
        + [
            f"{role}: {count} of {replies} replies are not judged by all their tokens: {why}."
            for why, count in total.items()
        ]
    )


def _refused(role: Role, passes: list[Pass], share: float) -> list[str]:
    """Places drawn at random are so many of the tokens, within four standard errors."""
    tokens = sum(reply.tokens or 0 for one in passes for reply in one.replies)
    told = sum(len(one.scored.rows) for one in passes)
    if told >= share * tokens - 4 * math.sqrt(share * (1 - share) * tokens):
        return []
    return [f"{role}: the reference told of {told:,} tokens, where it was asked about some {share * tokens:,.0f}."]


def _replies(run: Run, probes: list[Record]) -> dict[Key, list[tuple[Reply, Ints | None]]]:
    """Timed replies of each pass in launch order, each with its token ids (None: text only). Probes are put aside."""
    found: dict[Key, list[tuple[Reply, Ints | None]]] = {}
    for record in run.records():
        if record.phase == "probe":
            probes.append(record)
        elif record.phase == "timed" and record.probe is None:
            ids = None if record.token_ids is None else np.array(record.token_ids, np.int64)
            found.setdefault((record.endpoint, record.profile, record.pass_no), []).append((_reply(record), ids))
    for pairs in found.values():
        # The order of endings would put short replies first, and a prefix of it selects on the outcome.
        pairs.sort(key=lambda pair: (pair[0].sent_ns is None, pair[0].sent_ns or 0, pair[0].lane))
    names = list(run.asked.get("profiles", {}))
    rank = {name: place for place, name in enumerate(names)}
    return dict(sorted(found.items(), key=lambda item: (item[0][2], rank.get(item[0][1], len(names)))))


def _reply(record: Record) -> Reply:
    usage = record.usage.completion_tokens if record.usage else None
    known = [count for count in record.chunk_tokens if count is not None]
    return Reply(
        request=int(record.id[:16], 16),
        prompt_id=record.prompt_id,
        prompt=None if record.prompt_token_ids is None else hash(tuple(record.prompt_token_ids)),
        lane=record.lane,
        sent_ns=record.sent_ns,
        end_ns=record.end_ns,
        chunk_ns=np.array(record.chunk_ns, np.int64),
        chunk_tokens=np.array(known, np.int64) if len(known) == len(record.chunk_ns) else None,
        tokens=usage if record.token_ids is None else len(record.token_ids),
        failure=record.failure.kind if record.failure else None,
        stopped=record.failure is None and record.finish_reason == "stop",
        flags=tuple(record.flags),
    )


def _differing_prompts(evidence: Evidence) -> list[str]:
    """The set-up is broken where one prompt reached the two servers as different token ids."""
    if not evidence.paired:
        return []
    prompts = {
        reply.prompt_id: reply.prompt
        for one in evidence.stock.passes
        for reply in one.replies
        if reply.prompt is not None
    }
    both = [
        (prompts[reply.prompt_id], reply.prompt)
        for one in evidence.candidate.passes
        for reply in one.replies
        if reply.prompt is not None and reply.prompt_id in prompts
    ]
    differing = sum(first != second for first, second in both)
    if not differing:
        return []
    return [
        f"The set-up is broken: {differing} of {len(both)} prompts have other token ids on the candidate "
        "than on stock, so the two answer different questions. Compare their tokenizers, chat templates and prompts."
    ]
