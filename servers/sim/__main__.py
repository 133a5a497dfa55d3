"""python -m servers.sim --port 8000 [--speculative K] [--SETTING VALUE …]: serves the embedded engine over HTTP."""

import argparse
import gc
import sys

import uvicorn
from pydantic import ValidationError

from servers.sim.app import app
from servers.sim.settings import Settings


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m servers.sim", description="Serves the embedded engine over HTTP.")
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, default=8000)
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        about = f"{field.description} (default {field.default})"
        made.add_argument(flag, f"--{name}", dest=name, default=argparse.SUPPRESS, metavar="VALUE", help=about)
    return made


def settings_of(given: dict[str, str], flags: argparse.ArgumentParser) -> Settings:
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"--{str(part).replace('_', '-')}: " for part in first["loc"])
        flags.error(f"{where}{first['msg']}")


def main() -> None:
    flags = parser()
    given = vars(flags.parse_args())
    host, port = given.pop("host"), given.pop("port")
    config = uvicorn.Config(
        app(settings_of(given, flags)),
        host=host,
        port=port,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=4096,
        timeout_keep_alive=75,  # a lane that thinks for a while finds its connection open
        timeout_graceful_shutdown=1,
    )
    # The tables live as long as the process: collections that walk them would only make steps late.
    gc.freeze()
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
