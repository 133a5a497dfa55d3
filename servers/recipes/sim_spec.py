"""The embedded engine with speculative decoding: a noisy draft of the same model, exact rejection sampling."""

from pydantic import Field

from servers.recipes import Command, sim
from servers.sim.settings import Settings as Engine

ABOUT = "embedded engine with speculative decoding, lossless"


class Settings(Engine):
    api_key: None = Field(None, description="not here: an argument would be seen in the list of processes")
    speculative: int = Field(4, ge=1, le=16, description="tokens drafted a step")


def command(settings: Settings, port: int) -> Command:
    # The engine's own default is none: say it even where the user does not.
    return sim.command(settings.model_copy(update={"speculative": settings.speculative}), port)
