"""The clients that are measured: one file each, which knows its command line and its own result file.

A peer's module has PYTHON (the environment variable that names its interpreter), DISTRIBUTIONS (the names it is
installed under), `command` and `read`; its docstring says what is particular about it.
"""

import importlib
import os
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Load:
    """What every client is asked to do; lanes begin 1 ms apart (paced) or all at once."""

    url: str  # of the server, without /v1
    lanes: int
    requests_per_lane: int
    tokens: int  # a reply
    paced: bool
    tokenizer: Path | None  # a directory in Hugging Face's form; None: peers that need one cannot run
    folder: Path  # the client's own, for its files

    @property
    def requests(self) -> int:
        return self.lanes * self.requests_per_lane

    @property
    def starts_per_s(self) -> int:
        """Of a paced start."""
        return 1000


@dataclass(frozen=True, slots=True)
class Reply:
    """One answered request as its client saw it."""

    ttft_ms: float
    id: str | None = None  # as the server was told; None: replies stand in the order in which they were sent
    gaps_ms: list[float] | None = None  # between chunks; None where the client keeps none
    chunk_ns: list[int] | None = None  # each chunk's arrival by the machine's monotonic clock; None where not kept
    shared: int | None = None  # chunks that came in one read with another; None where not kept


@dataclass(frozen=True, slots=True)
class Command:
    words: list[str]
    environment: Mapping[str, str]  # beyond our own


class Peer(Protocol):
    PYTHON: str
    DISTRIBUTIONS: tuple[str, ...]

    def command(self, python: str, load: Load) -> Command:
        """Writes what the client needs into the load's folder."""
        ...

    def read(self, load: Load) -> list[Reply]:
        """The replies of the run that ended in the load's folder. Raises OSError where it left no result."""
        ...


OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def names() -> list[str]:
    """Ours first."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(found, key=lambda name: (name != "ours", name))


def load_peer(name: str) -> Any:
    """The peer's module, which is a Peer."""
    return importlib.import_module(f"peers.{name}")


def interpreter(peer: Peer) -> str | None:
    """None where its environment variable is not set."""
    return os.environ.get(peer.PYTHON)
