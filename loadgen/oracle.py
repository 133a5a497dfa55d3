"""Oracles: likely wrong models that score the replies too, so that the gates can tell whether tokens are theirs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.endpoint import EndpointConfigError, EndpointError, Opened
from loadgen.probe import token_ids
from loadgen.probes.fixed_text import TEXTS
from loadgen.score import CannotScore, check_reference

_UNNAMED = "endpoint"


@dataclass(frozen=True, slots=True)
class Oracle:
    """name: what its folder of scores and its alternatives are called."""

    name: str
    opened: Opened


async def checked(reference: Opened, opened: Sequence[Opened]) -> tuple[Oracle, ...]:
    """The servers as oracles beside the reference, before anything is driven for them.

    Raises EndpointConfigError where one has another tokenizer than the reference or two have one name, EndpointError
    where one cannot score.
    """
    oracles: list[Oracle] = []
    for one in opened:
        oracle = Oracle(name_of(one), one)
        if oracle.name in {other.name for other in oracles}:
            raise EndpointConfigError(
                f"Two oracles are called {oracle.name}, and their scores would lie in one folder. "
                'Give one as a TOML file with a label of its own, such as label = "int4".'
            )
        await _one_tokenizer(reference, oracle)
        try:
            oracles.append(Oracle(oracle.name, await check_reference(one)))
        except CannotScore as error:
            raise EndpointError(f"The oracle {oracle.name} is of no use: {error}") from error
    return tuple(oracles)


def name_of(opened: Opened) -> str:
    """Its label, where it was given one, else its model's name as a folder can bear it."""
    label = opened.endpoint.label
    if label != _UNNAMED:
        return label
    return re.sub(r"[^A-Za-z0-9_.]+", "-", opened.target.model.rsplit("/", 1)[-1]).strip("-.") or "model"


async def _one_tokenizer(reference: Opened, oracle: Oracle) -> None:
    """Ids of another tokenizer would be scored as if they were its own. A server without /tokenize is believed."""
    for text in TEXTS:
        ours, its = await token_ids(reference, text), await token_ids(oracle.opened, text)
        if ours and its and ours != its:
            raise EndpointConfigError(
                f"The oracle {oracle.name} ({oracle.opened.endpoint.public()['url']}) has another tokenizer than the "
                f"reference: of a fixed text it makes {len(its)} tokens, the reference {len(ours)}, not all the same. "
                f"It would score other texts than those that came. Give an oracle of the same model family."
            )
