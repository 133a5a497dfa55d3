"""Endpoints as a run directory describes them: what was asked of one and what it said of itself, without secrets."""

from typing import Any

from loadgen import next_token
from loadgen.endpoint import Opened


def described(side: Opened) -> dict[str, Any]:
    served = side.served
    facts = {
        "models": served.models,
        "owned_by": served.owned_by,
        "max_model_len": served.max_model_len,
        "version": served.version,
    }
    return side.endpoint.public() | {"model": side.target.model, "dialect": side.target.dialect.NAME, "served": facts}


def described_reference(reference: Opened) -> dict[str, Any]:
    """share: of the timed tokens that it is asked about."""
    share = next_token.SHARE if reference.by_next_token else 1.0
    return described(reference) | {"label": reference.endpoint.label, "share": share}
