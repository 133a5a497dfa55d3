"""All findings together: equivalent, different or undecided, and how much faster."""

from collections import Counter
from collections.abc import Collection
from functools import partial

from gates import checks, digests, oracle_check, rejection, speed, unsettled
from gates.checks import Check, Checked, CheckSettings, Levels, Terms
from gates.evidence import Evidence
from gates.finding import Finding, Needs, Outcome, Verdict
from gates.plan import Plan, PlanError
from gates.rejection import Suspected
from gates.unsettled import Unsettled

# Shares of alpha_different. Of the first two, one half is the e-process's and one half the single sequences'.
POOLED, STRATA, P_VALUES = 0.5, 0.25, 0.25
GAP = 0.2  # of the two-sample half, for each of likelihood, first choice, tail, junk, eos
GAP_BESIDE_ORACLES = 1 / 6  # then for each of them, and for all oracles together: in all as much as without

_FLAGGED_MORE = 0.01  # of the replies, than on the other server


def judge(evidence: Evidence, plan: Plan, without: Collection[str] = ()) -> Verdict:
    """The verdict of one plan. without: checks to leave out, which the verdict then says.

    Raises PlanError for a plan of contest rules, and where `without` names a check that the plan does not have.
    """
    if plan.contest is not None:
        raise PlanError(f"Plan {plan.name} holds a contest's rules, which gates.contest judges by.")
    used = plan.without(frozenset(without))
    alpha = plan.alpha_different
    suspicion = partial(rejection.suspected, alpha=alpha * POOLED / 2, alpha_strata=alpha * STRATA / 2, plan=used)
    suspected = suspicion(evidence)
    found = _checked(evidence, used, suspected)
    findings = [finding for checked in found.values() for finding in checked.findings]
    known = {finding.check for finding in findings if finding.outcome == "different"}  # pooled says it better
    spent = alpha * gap_share(evidence)
    of_oracles = oracle_check.findings(evidence, suspected, spent, used.level_equivalent)
    findings, known = findings + of_oracles, known | {one.check for one in of_oracles if one.outcome == "different"}
    findings += [one for one in rejection.of_strata(evidence, suspected, spent, used) if one.check not in known]
    findings = rejection.excused(findings, suspected)
    waits = unsettled.unsettled(findings, evidence, suspected, suspicion)
    findings = findings if waits is None else waits.among(findings)
    # A candidate that is asked less, such as a shortened prompt, would be faster and as good as its word.
    outcome = _outcome(findings, used, evidence.whole and evidence.same_prompts)
    speeds = speed.measure(evidence)
    return Verdict(
        plan=plan.name,
        inputs=digests.of(evidence.runs),
        outcome=outcome,
        interim=not evidence.ended,
        specscore=speeds.specscore,
        speed=speeds.ratios,
        acceptance=speeds.acceptance,
        diagnosis=suspected.says if waits is not None or _measured_off(findings) else None,
        needs=_needs(evidence, found, used, waits) if outcome == "undecided" and evidence.same_prompts else None,
        warnings=_warnings(evidence, plan, without) + speeds.warnings,
        findings=findings,
    )


def gap_share(evidence: Evidence) -> float:
    """Of alpha_different, for the gaps of one check."""
    return GAP_BESIDE_ORACLES if evidence.candidate.oracles else GAP


def _measured_off(findings: list[Finding]) -> bool:
    return any(finding.outcome == "different" or finding.immaterial for finding in findings)


def _checked(evidence: Evidence, plan: Plan, suspected: Suspected) -> dict[str, Checked]:
    asked: list[tuple[str, CheckSettings, bool]] = [
        *((name, settings, True) for name, settings in plan.required.items()),
        *((name, settings, False) for name, settings in plan.if_available.items()),
    ]
    modules = {name: checks.load(name) for name, _, _ in asked}
    return {
        name: modules[name].check(evidence, settings, _terms(modules, name, required, evidence, plan, suspected))
        for name, settings, required in asked
    }


def _terms(
    modules: dict[str, Check], name: str, required: bool, evidence: Evidence, plan: Plan, suspected: Suspected
) -> Terms:
    """Splits the chance of a false `different` over everything that may call it."""
    alpha, profiles = plan.alpha_different, max(1, len(evidence.profiles))
    sequences = max(1, sum(module.SEQUENCES for module in modules.values()))
    p_values = max(1, sum(module.P_VALUES for module in modules.values()))
    own = max(1, modules[name].SEQUENCES)
    outside, gap = alpha / (sequences * (1 + profiles)), alpha * gap_share(evidence) / own
    # What rests on probes is looked at once: they are sent when the timed passes have ended.
    spent = 1 if checks.probes(name) else evidence.looks * (evidence.looks + 1)
    return Terms(
        required=required,
        pooled=Levels(reject=alpha * POOLED / 2 / sequences, gap=gap, outside=outside),
        profile=Levels(reject=alpha * STRATA / 2 / (sequences * profiles), gap=gap / profiles, outside=outside),
        # Looks may go on for ever: the terms sum to one.
        p_value=alpha * P_VALUES / p_values / spent,
        equivalent=plan.level_equivalent,
        replies=plan.replies,
        profile_replies=plan.profile_replies,
        suspects=suspected.profiles,
        excused=suspected.excusable,
    )


def _outcome(findings: list[Finding], plan: Plan, whole: bool) -> Outcome:
    if any(finding.outcome == "different" for finding in findings):
        return "different"
    required = [finding.outcome for finding in findings if finding.required]
    complete = {finding.check for finding in findings if finding.required} == set(plan.required)
    # An incomplete run may show a difference, never its absence; and no check at all shows nothing.
    if whole and required and complete and all(outcome in ("equivalent", "passed") for outcome in required):
        return "equivalent"
    return "undecided"


def _needs(evidence: Evidence, found: dict[str, Checked], plan: Plan, waits: Unsettled | None) -> Needs | None:
    if any(finding.missing for name in plan.required for finding in found[name].findings):
        return None  # more tokens bring no data of a kind that is missing
    wanted = [found[name].needs_tokens for name in plan.required]
    if waits is not None:
        wanted.append(unsettled.needs(evidence, waits.level, plan.alpha_different * gap_share(evidence)))
    known = [tokens for tokens in wanted if tokens is not None]
    return Needs(tokens=max(1, *known)) if known else None


_FLAGS = {
    "usage_disagrees_with_ids": "its usage counts other tokens than the ids that came",
    "token_ids_incomplete": "a part of the text came without token ids",
    "no_finish_reason": "it ended without saying why",
    "no_done": "it ended without [DONE]",
    "tokens_without_text": "its usage counts tokens, and none came",
}
"""What a reply's flag means, where it bears on the comparison."""


def _flagged(evidence: Evidence) -> list[str]:
    """Where the two servers differ in it, it is the candidate's doing or stock's, and not the dialect's."""
    counts = [
        Counter(flag for one in arm.passes for reply in one.replies for flag in reply.flags) for arm in evidence.arms
    ]
    replies = [sum(len(one.replies) for one in arm.passes) for arm in evidence.arms]
    warnings = []
    for flag, says in _FLAGS.items():
        shares = [count[flag] / total if total else 0.0 for count, total in zip(counts, replies, strict=True)]
        for arm, count, total, share, other in zip(evidence.arms, counts, replies, shares, shares[::-1], strict=True):
            if share > other + _FLAGGED_MORE:
                warnings.append(f"{arm.role}: of {count[flag]} of {total} replies, {says}.")
    return warnings


def _warnings(evidence: Evidence, plan: Plan, without: Collection[str]) -> list[str]:
    warnings = list(evidence.warnings)
    if not evidence.whole:
        warnings.insert(
            0, "The run is incomplete: what it holds is judged, and it cannot show the two to be equivalent."
        )
    warnings += _flagged(evidence)
    if without:
        left = [f"{name}{' (which the plan requires)' if name in plan.required else ''}" for name in without]
        warnings.append(f"Left out of plan {plan.name}: {', '.join(left)}.")
    return warnings
