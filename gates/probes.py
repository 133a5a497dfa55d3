"""What the probes brought: records and the reference's scores of them, by endpoint and kind."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gates.residuals import Floats
from gates.scored import LEAST_LOGPROB, Rows
from loadgen.record import SCORE_DTYPE, Probe, Record

Side = tuple[str, Probe]
"""(endpoint's label, kind)."""


@dataclass(frozen=True, slots=True)
class Probed:
    """One endpoint's records of one kind, in the order of sending. scores: request key → (n,) rows by position."""

    records: tuple[Record, ...]
    scores: Mapping[int, Rows]

    def rows(self, record: Record) -> Rows:
        """The rows of the record's tokens from the first on, as far as they are whole and of its own tokens."""
        rows = self.scores.get(key(record), np.empty(0, SCORE_DTYPE))
        ids = np.array(record.token_ids or [], np.int64)
        n = min(len(rows), len(ids))
        rows = rows[:n]
        listed = (rows["ids"][:, 0] >= 0) & (rows["logprobs"] > LEAST_LOGPROB).any(axis=1)
        right = listed & (rows["position"] == np.arange(n)) & (rows["token_id"] == ids[:n])
        return rows[: n if right.all() else int(np.argmin(right))]


NOTHING = Probed((), {})

_NOT_DRAWN: tuple[Probe, ...] = ("fixed_text", "greedy")


def key(record: Record) -> int:
    return int(record.id[:16], 16)


def by_kind(records: Iterable[Record], scores: Mapping[tuple[str, str, int], Rows]) -> dict[Side, Probed]:
    """records: those of phase probe. scores: (label, name of a profile or a probe, pass) → rows."""
    found: dict[Side, list[Record]] = {}
    for record in records:
        if record.probe is not None:
            found.setdefault((record.endpoint, record.probe), []).append(record)
    return {
        side: Probed(
            tuple(sorted(kept, key=lambda record: (record.sent_ns is None, record.sent_ns or 0, record.lane))),
            _by_request(scores.get((*side, 0))),
        )
        for side, kept in found.items()
    }


def _by_request(rows: Rows | None) -> dict[int, Rows]:
    if rows is None or not len(rows):
        return {}
    rows = rows[np.lexsort((rows["position"], rows["request"]))]
    keys, starts = np.unique(rows["request"], return_index=True)
    return dict(zip(keys.tolist(), np.split(rows, starts[1:]), strict=True))


def own_logprobs(record: Record) -> Floats | None:
    """(tokens,) the server's own log-probabilities of what it emitted, NaN where it gave none; None where they cannot
    be told to be of these tokens."""
    told, ids = record.logprobs, record.token_ids
    if told is None or ids is None or len(told) != len(ids):
        return None
    if any(one.token_id is not None and one.token_id != token for one, token in zip(told, ids, strict=True)):
        return None
    return np.array([np.nan if one.logprob is None else one.logprob for one in told], np.float64)


def not_sent(arm_label: str, kind: Probe) -> str:
    where = "the plan asks for it" + ("" if kind in _NOT_DRAWN else " and a profile samples")
    said = f"no probe {kind} of {arm_label}: `loadgate compare` sends it where {where}"
    return f"{said}, unless --until-decided was DIFFERENT before"


def no_ids(arm_label: str, probed: Probed, kind: Probe) -> str:
    """A server that fails on the probe alone is not one that leaves out ids."""
    failed = Counter(record.failure.kind for record in probed.records if record.failure)
    why = (
        f": {failed.total()} of {len(probed.records)} requests failed, {failed.most_common(1)[0][0]}" if failed else ""
    )
    return f"the probe {kind} brought no token ids from {arm_label}{why}"


def why_none(arm_label: str, probed: Probed, kind: Probe) -> str | None:
    """What is missing of a probe's data; None where replies came and were scored."""
    if not probed.records:
        return not_sent(arm_label, kind)
    if not any(record.token_ids for record in probed.records):
        return no_ids(arm_label, probed, kind)
    if not any(len(probed.rows(record)) for record in probed.records):
        return f"the probe {kind} of {arm_label} is not scored: `loadgate score RUN --reference ENDPOINT`"
    return None
