"""What a judgement is made of: estimates, findings, the verdict. An estimate never travels without its interval."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA = 1

Outcome = Literal["equivalent", "different", "undecided", "passed", "failed"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Estimate(_Frozen):
    """A figure with its interval. low and high are None where the data bound that side not at all."""

    value: float
    low: float | None
    high: float | None
    level: float  # coverage of [low, high]
    n: int  # how many of `unit` it rests on
    unit: str
    method: str


class Finding(_Frozen):
    """One check's outcome for one profile, or pooled over them (profile None)."""

    check: str
    profile: str | None = None
    stratum: str | None = None
    required: bool
    outcome: Outcome
    estimate: Estimate | None = None  # None where there were no data
    stock: Estimate | None = None  # the same figure of the stock server's own replies (A/A)
    margin: float | None = None  # None where the check has none
    immaterial: bool = False  # measurably different, and wholly inside the margin
    missing: str | None = None  # what a check without data would need
    says: str  # what the figure means, for a person


class Speed(_Frozen):
    """Candidate's token rate over stock's. `passes` are the ratios of the paired passes."""

    ratio: float
    low: float | None
    high: float | None
    passes: list[float]


class Score(_Frozen):
    value: float
    low: float | None
    high: float | None


class Needs(_Frozen):
    tokens: int  # further scored candidate tokens that would settle it, as measured so far


class Verdict(_Frozen):
    """verdict.json. Field names are fixed: other programs read them."""

    schema_: int = SCHEMA
    plan: str
    inputs: dict[str, str]  # file → sha256
    outcome: Outcome
    interim: bool  # judged before driving ended
    specscore: Score | None  # None unless every profile has a speed; 0 where the plan says so
    speed: dict[str, Speed]
    acceptance: dict[str, float]  # profile → tokens a verify step
    diagnosis: str | None
    needs: Needs | None
    warnings: list[str]
    findings: list[Finding]

    def as_json(self) -> dict[str, Any]:
        fields = self.model_dump()
        return {"schema": fields.pop("schema_"), **fields}
