"""`loadgate demo`: the whole product in a minute, on the embedded engine."""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from gates.evidence import Evidence
    from loadgen.profile import Profile

_COSTS = "kv_cache_tokens=4096,step_ms=8,draft_ms=0.6"
_ENGINES = {"stock": f"recipe:sim,{_COSTS}", "candidate": f"recipe:sim-spec,{_COSTS}"}
_REQUESTS = {"solo": {"requests": 12}, "team": {"requests": 32}, "busy": {"requests_per_lane": 5}}
_WITHIN = 0.05


@click.command(short_help="embedded engine: stock against speculative, verdict and speed; under 90 s")
@click.option("--out", type=click.Path(path_type=Path), metavar="RUN", help="run directory  [default: runs/DATE-demo]")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, show_default=True, help="seed of the prompts")
@click.option("--json", "as_json", is_flag=True, help="the verdict as JSON")
def command(out: Path | None, seed: int, as_json: bool) -> int:
    """Start two embedded engines, one with speculative decoding; compare them; judge by plan demo.

    Needs no GPU, no model and no network, and takes a bit over a minute on two idle cores. The engines' cost model says
    what the speedups should be; that is printed beside what was measured.

    \b
    loadgate demo --out runs/demo
    loadgate report runs/demo --format markdown
    """
    from loadgen.cli import engines, judging, session
    from loadgen.cli.progress import Progress
    from loadgen.compare import Load

    progress = Progress()
    out = out or session.default_out("demo")
    judging.refuse_existing(out)
    with ExitStack() as stack:
        sides = {
            label: stack.enter_context(engines.endpoint(recipe, label, {}, progress))
            for label, recipe in _ENGINES.items()
        }
        asked = session.Session(
            command="demo",
            endpoints=tuple(sides.values()),
            load=Load(_profiles(), 3, seed),
            out=out,
            roles={label: label for label in sides},
            plan="demo",
        )

        def show() -> int:
            code = judging.judge_and_show(out, judging.JudgeOptions("demo", (), "json" if as_json else "text"))
            steps = {label: _steps(side.url) for label, side in sides.items()}
            click.echo("\n".join(_beside_the_model(out, steps)), err=as_json)
            return code

        return judging.driven(asked, progress, show)


def _profiles() -> "tuple[Profile, ...]":
    """The shipped profiles, shortened: brief prompts and few requests."""
    from loadgen.profile import load, overridden

    return tuple(
        overridden(_brief(load(name)), {"max_tokens": 256, **requests}) for name, requests in _REQUESTS.items()
    )


def _brief(profile: "Profile") -> "Profile":
    return profile.model_copy(update={"prompts": profile.prompts.model_copy(update={"max_words": 40})})


def _steps(url: str) -> dict[str, Any]:
    """What the engine logged of its own steps."""
    from urllib.request import ProxyHandler, build_opener

    # No proxy of the environment must come between us and an engine on this machine.
    with build_opener(ProxyHandler({})).open(f"{url}/sim/steps", timeout=30) as answer:
        content: dict[str, Any] = orjson.loads(answer.read())
    return content


def _beside_the_model(out: Path, steps: Mapping[str, dict[str, Any]]) -> list[str]:
    """The measured speedups beside those that the cost model gives for the recorded steps."""
    from gates import reading
    from loadgen.record import Run
    from loadgen.record.writer import write_json
    from servers.sim.modelled import LATE_SHARE

    late = {label: content["late_share"] or 0.0 for label, content in steps.items()}
    found = reading.load(Run.open(out))
    speeds = {profile: _speedups(found, profile, steps) for profile in found.profiles}
    write_json(out / "cost_model.json", {"late_share": late, "speedups": speeds})
    lines = ["", f"cost model   {'   '.join(_told(name, pair) for name, pair in speeds.items())}"]
    worst = max(late, key=lambda label: late[label])
    if late[worst] > LATE_SHARE:
        lines.append(
            f"The {worst} engine was late in {late[worst]:.1%} of its steps: this machine is too busy for it, and its "
            "speedups say little. Run the demo with nothing beside it."
        )
    elif any(pair is None or abs(pair["measured"] / pair["modelled"] - 1) > _WITHIN for pair in speeds.values()):
        lines.append(f"Measured and modelled speedups differ by more than {_WITHIN:.0%}: the client was late, or busy.")
    return lines


def _told(name: str, pair: dict[str, float] | None) -> str:
    if pair is None:
        return f"{name} –"
    return f"{name} {pair['modelled']:.2f}× (measured {pair['measured']:.2f}×)"


def _speedups(found: "Evidence", profile: str, steps: Mapping[str, dict[str, Any]]) -> dict[str, float] | None:
    """Geometric means over the passes, measured and modelled over the same spans; None where a pass has none."""
    from gates import speed
    from servers.sim.modelled import tokens_per_s

    logs: dict[str, list[float]] = {"measured": [], "modelled": []}
    for pair in found.pairs(profile):
        rates = [speed.rate(one) for one in pair]
        modelled = [
            tokens_per_s(steps[label]["steps"], rate.start_ns, rate.end_ns) if rate else None
            for label, rate in zip(("stock", "candidate"), rates, strict=True)
        ]
        if rates[0] is None or rates[1] is None or modelled[0] is None or modelled[1] is None:
            return None
        logs["measured"].append(math.log(rates[1].tokens_per_s / rates[0].tokens_per_s))
        logs["modelled"].append(math.log(modelled[1] / modelled[0]))
    return {name: math.exp(sum(values) / len(values)) for name, values in logs.items()} if logs["measured"] else None
