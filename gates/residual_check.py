"""A check made of residual sequences: what every profile and all of them together say, in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gates import sampling, tokens
from gates.checks import Checked, Terms
from gates.decision import STOCK_LEVEL, Arms, Decision, Statistic, Suspicion, decide, decide_by_gap, totals
from gates.evidence import Arm, Evidence
from gates.finding import Estimate, Finding
from gates.scored import NO_FILE, NO_IDS
from gates.sequential import Interval, Sums

METHOD = "martingale residual of emitted tokens under the reference, normal-mixture confidence sequence"
METHOD_AGAINST_STOCK = METHOD + ", minus the stock server's own"
METHOD_BY_TEXT = METHOD_AGAINST_STOCK + "; of both servers' re-tokenized text, on equal numbers of tokens"


@dataclass(frozen=True, slots=True)
class Question:
    """What one check asks. margin and says take the pooled or a profile's figures.

    statistics: names in gates.tokens; the first decides on equivalence, all may reject. margin: (sums, of a profile) →
    a token's margin. bounded: False where the check may only reject; its margin then only tunes the sequences.
    scale: (sums) → what a figure is divided by to be shown in `unit`. tuned_to: of statistics but the first, the margin
    that their sequence is tightest at, where the first's does not say.
    """

    check: str
    unit: str
    statistics: Sequence[str]
    margin: Callable[[Sums, bool], float]
    says: Callable[[Decision], str]
    bounded: bool = True
    scale: Callable[[Sums], float] = lambda sums: 1.0
    tuned_to: Mapping[str, float] = field(default_factory=dict)


def examine(question: Question, evidence: Evidence, terms: Terms) -> Checked:
    """The pooled finding first, then one a profile; each says what is missing where there are no data."""
    candidate, stock = (
        [tokens.by_profile(arm, evidence.profiles, name) for name in question.statistics]
        for arm in (evidence.candidate, evidence.stock)
    )
    missing = {name: why for name in evidence.profiles if (why := _missing(evidence, name))}
    usable = [name for name in evidence.profiles if name not in missing]
    arms = [Arms(one, other) for one, other in zip(candidate, stock, strict=True)]
    findings, needs = [], []
    for profile in (None, *evidence.profiles):
        names = usable if profile is None else [profile]
        if not names or profile in missing:
            why = missing.get(profile or next(iter(missing), ""), "the run asks for no profile")
            findings.append(_without_data(question, profile, terms.required, why))
            continue
        by_text = not evidence.by_text.isdisjoint(names)
        decision = _decided(question, [_only(arm, names) for arm in arms], profile, terms, by_text)
        finding = _finding(question, profile, terms, decision)
        findings.append(finding.model_copy(update={"says": finding.says + _relative(evidence, names)}))
        if decision.needs is not None:
            # Tokens come to all profiles together.
            needs.append(
                decision.needs * sum(len(arms[0].candidate[name]) for name in usable) // decision.measured.own.n
            )
    return Checked(findings, max(needs) if needs else None)


def _only(arms: Arms, names: Sequence[str]) -> Arms:
    return Arms({name: arms.candidate[name] for name in names}, {name: arms.stock[name] for name in names})


def _decided(question: Question, arms: Sequence[Arms], profile: str | None, terms: Terms, by_text: bool) -> Decision:
    of_profile = profile is not None
    first, *others = (totals(one) for one in arms)
    margin = question.margin(first.own, of_profile)
    tuned = [Statistic(first, margin, question.bounded)]
    for name, other in zip(question.statistics[1:], others, strict=True):
        # The same fault moves a statistic roughly in proportion to its variance; the margin only tunes the sequence.
        scale = other.own.variance / first.own.variance if first.own.variance > 0 else 1.0
        tuned.append(Statistic(other, question.tuned_to.get(name, margin * scale)))
    levels = terms.profile if of_profile else terms.pooled
    replies = terms.profile_replies if of_profile else terms.replies
    if by_text:
        return decide_by_gap(tuned[0], tuned[1:], levels, terms.equivalent, replies)
    suspicion = Suspicion(profile in terms.suspects, terms.excused)
    return decide(tuned[0], tuned[1:], levels, terms.equivalent, replies, suspicion)


def _finding(question: Question, profile: str | None, terms: Terms, decision: Decision) -> Finding:
    measured = decision.measured
    method = METHOD_AGAINST_STOCK if measured.against_stock else METHOD
    method = METHOD_BY_TEXT if decision.by_gap else method
    scale, of_stock = question.scale(measured.own), question.scale(measured.stock)
    return Finding(
        check=question.check,
        profile=profile,
        required=terms.required,
        outcome=decision.outcome,
        estimate=_estimate(measured.interval, scale, terms.equivalent, measured.own.n, question.unit, method),
        stock=_estimate(measured.stock_interval, of_stock, STOCK_LEVEL, measured.stock.n, question.unit, METHOD),
        margin=decision.margin / scale if question.bounded else None,
        immaterial=decision.immaterial,
        says=_says(question, decision, terms, profile),
    )


def _estimate(interval: Interval, scale: float, level: float, n: int, unit: str, method: str) -> Estimate:
    return Estimate(
        value=interval.value / scale,
        low=interval.low / scale,
        high=interval.high / scale,
        level=level,
        n=n,
        unit=unit,
        method=method,
    )


def _says(question: Question, decision: Decision, terms: Terms, profile: str | None) -> str:
    if decision.broken:
        return (
            "the stock server's own replies lie outside the margin under the reference, so the set-up is broken: look "
            "for sampling defaults of the server, and at the reference's model, template and tokenizer"
        )
    says = question.says(decision)
    fewest = terms.replies if profile is None else terms.profile_replies
    replies = min(decision.measured.own.replies, decision.measured.stock.replies)
    if decision.outcome == "undecided" and replies < fewest:
        says += f"; {replies} replies say too little of how replies differ, {fewest} are asked for"
    if decision.by_gap:
        says += "; by the text of both servers, which is weaker: against stock alone, and a part of the replies is lost"
    elif decision.measured.against_stock:
        says += "; measured against stock, whose own replies are off zero"
    if decision.outcome == "equivalent" and profile is None:
        says += f"; a fault in fewer than one of {replies // 3} replies would not show"
    if decision.immaterial:
        says = f"measurably different from stock, wholly inside the margin: {says}"
    return says


def _relative(evidence: Evidence, profiles: Sequence[str]) -> str:
    """What a profile asks for is the law that its tokens are held to."""
    settings = [asked for name in profiles for asked, _ in evidence.sampling(name)]
    asked = {sampling.described(one) for one in settings if sampling.changes(one)}
    return f"; relative to the sampling that was asked for ({'; '.join(sorted(asked))})" if asked else ""


def _without_data(question: Question, profile: str | None, required: bool, why: str) -> Finding:
    return Finding(
        check=question.check,
        profile=profile,
        required=required,
        outcome="undecided",
        missing=why,
        says=f"no data: {why}",
    )


def _missing(evidence: Evidence, profile: str) -> str | None:
    if (why := _not_known(evidence, profile)) is not None:
        return why
    for arm in (evidence.candidate, evidence.stock):
        if not any(len(one.scored.rows) for one in arm.of(profile)):
            return _why_none(arm, profile)
    return None


def sampled_otherwise(evidence: Evidence, profile: str) -> str | None:
    """Why no law is known that the profile's tokens should come from; None where one is."""
    if profile in evidence.by_text:
        return f"a server returned text alone in {profile}, and this needs the token ids that were drawn"
    return _not_known(evidence, profile)


def _not_known(evidence: Evidence, profile: str) -> str | None:
    """Why the law that the profile samples from is not known from the reference's list; None where it is."""
    both = evidence.sampling(profile)
    for asked, dialect in both:
        if (why := sampling.why_unknown(asked, dialect)) is not None:
            return f"{profile} samples with {sampling.described(asked)}, and {why}"
    if len({sampling.law(*one) for one in both}) > 1:
        return f"the two servers sample {profile} from different laws, by what they were asked or by their dialects"
    return None


def _why_none(arm: Arm, profile: str) -> str:
    passes = arm.of(profile)
    reasons = {why for one in passes for why in one.scored.dropped}
    if not passes:
        return f"no pass of {profile} has ended on {arm.label}"
    if NO_IDS in reasons:
        return f"{arm.label} returns no token ids in {profile}, only text: a server that returns them is needed"
    if NO_FILE in reasons:
        return f"the replies of {arm.label} in {profile} are not scored: `loadgate score RUN --reference ENDPOINT`"
    return f"{arm.label} brought no token in {profile} that the reference has scored"
