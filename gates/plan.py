"""Plans: which checks count, their margins and error levels. Read from profiles/plans/*.toml, checked, then frozen."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, model_validator

from gates import checks
from gates.checks import CheckSettings
from gates.strata import Stratum
from loadgen.record import available, find, nearest


class PlanError(Exception):
    """A plan that cannot be judged by: the file, the key, what is allowed."""


class Plan(BaseModel):
    """alpha_different: the chance, in all and over all looks, of calling a lossless candidate different.
    level_equivalent: coverage of the intervals that must lie inside their margins.
    replies, profile_replies: fewer replies do not show how replies differ, so nothing is equivalent by them.
    required: without data they leave the verdict undecided. if_available: may reject; their absence is stated.
    contest: rules of a contest, read by gates.contest; such a plan has no checks of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str
    about: str = ""
    alpha_different: float = Field(default=0.001, gt=0, le=0.1)
    level_equivalent: float = Field(default=0.95, ge=0.5, lt=1)
    replies: int = Field(default=100, ge=2)
    profile_replies: int = Field(default=30, ge=2)
    strata: list[Stratum] = ["profile"]
    required: dict[str, SerializeAsAny[CheckSettings]] = {}
    if_available: dict[str, SerializeAsAny[CheckSettings]] = {}
    contest: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _decides(self) -> Self:
        twice = sorted(self.required.keys() & self.if_available.keys())
        if twice:
            raise ValueError(f"{', '.join(twice)} is both required and if_available: give it once")
        if not self.required and self.contest is None:
            raise ValueError("no check is required, and a plan that asks for nothing would pass anything")
        return self

    def without(self, names: Mapping[str, Any] | set[str] | frozenset[str]) -> "Plan":
        """The plan with some checks left out. Raises PlanError for a check that it does not have."""
        known = [*self.required, *self.if_available]
        for name in names:
            if name not in known:
                raise PlanError(f"Plan {self.name} has no check {name!r} to leave out. {nearest(name, known)}")
        return self.model_copy(
            update={
                "required": {name: settings for name, settings in self.required.items() if name not in names},
                "if_available": {name: settings for name, settings in self.if_available.items() if name not in names},
            }
        )


def load(name_or_path: str) -> Plan:
    """A shipped plan by name, or any by path. Raises PlanError, which names the file, the key and what is allowed."""
    path = find(name_or_path, "plans")
    if path is None:
        known = nearest(name_or_path, available("plans"))
        raise PlanError(f"There is no plan {name_or_path!r}, neither shipped nor a file. {known}")
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise PlanError(f"{path} is not readable as TOML: {error}.") from error
    return _validated(raw, path)


def _validated(raw: dict[str, Any], path: Path) -> Plan:
    content = {"name": path.stem, **raw}
    for table in ("required", "if_available"):
        entries = raw.get(table, {})
        if not isinstance(entries, dict):
            raise PlanError(f"{path}: {table} = {entries!r}: a table of checks is expected.")
        content[table] = {name: _settings(name, given, table, path) for name, given in entries.items()}
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise PlanError(_mistakes(path, "", error, Plan)) from error


def _settings(name: str, given: Any, table: str, path: Path) -> CheckSettings:
    if name not in checks.names():
        raise PlanError(f"{path}: {table}.{name}: there is no such check. {nearest(name, checks.names())}")
    model = checks.load(name).Settings
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise PlanError(_mistakes(path, f"{table}.{name}", error, model)) from error


def _mistakes(path: Path, prefix: str, error: ValidationError, model: type[BaseModel]) -> str:
    return "\n".join(
        _mistake(path, prefix, found["loc"], found["type"], found["msg"], model)
        for found in error.errors(include_url=False, include_input=False)
    )


def _mistake(
    path: Path, prefix: str, loc: tuple[int | str, ...], kind: str, message: str, model: type[BaseModel]
) -> str:
    where = ".".join([*([prefix] if prefix else []), *(str(part) for part in loc)])
    if kind == "extra_forbidden":
        keys = [name for name in model.model_fields if name != "name"]
        return f"{path}: {where}: there is no such key. {nearest(str(loc[-1]), keys)}"
    return f"{path}: {where + ': ' if where else ''}{message.removeprefix('Value error, ')}."
