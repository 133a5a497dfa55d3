"""The embedded engine with speculation: the same model as `sim`, drafted by a noisy copy of its tables."""

from pydantic import Field

from servers.recipes import sim

ABOUT = "the embedded engine, with speculation"
NEEDS = "nothing"


class Settings(sim.Settings):
    speculative: int = Field(4, ge=1, le=16, description="tokens drafted a step")


command = sim.command
