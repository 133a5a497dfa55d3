"""What a server says of its own settings, so that two that are set up differently are not compared unawares."""

from contextlib import suppress

from loadgen.endpoint import Opened
from loadgen.record import Setting
from loadgen.side import side_get

_MOST_SHOWN = 60  # characters; a server's text goes into files and onto terminals


async def settings(opened: Opened) -> dict[Setting, str]:
    """Setting → value, as the server says it; empty where it does not."""
    target, length = opened.target, opened.served.max_model_len
    told: dict[Setting, str] = {} if length is None else {"longest sequence": str(length)}
    if target.dialect.SETTINGS_PAGE is not None:
        page = await side_get(opened, target.root_url(target.dialect.SETTINGS_PAGE))
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # a page of another kind tells nothing
            told |= {} if page is None else target.dialect.settings(page)
    return {name: value[:_MOST_SHOWN] for name, value in told.items()}
