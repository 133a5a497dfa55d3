"""What lets us in, and keeping it out of everything that is written down."""

import base64
import contextlib
import re
from collections.abc import Mapping
from urllib.parse import unquote

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110's token
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_SHORTEST_SECRET = 4  # characters; "1" or "on" in a server's words gives nothing away


def is_header_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_header_value(value: str) -> bool:
    """Whether every server takes it: ASCII without control characters."""
    return _VALUE.fullmatch(value) is not None


def basic(userinfo: bytes) -> str:
    """The Authorization header for a URL's user:password (RFC 7617)."""
    return f"Basic {base64.b64encode(unquote(userinfo.decode()).encode()).decode()}"


def without_secrets(text: str, headers: Mapping[str, str]) -> str:
    """A server's words without the header values that it repeats in them, the key among them."""
    keys = [value for name, value in headers.items() if name.lower() == "authorization"]
    secrets = {*headers.values(), *(word for key in keys for word in _words(key))}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text


def _words(authorization: str) -> list[str]:
    """What a scheme's parameter gives away: itself, and of Basic the user with the password and the password alone."""
    scheme, _, parameter = authorization.partition(" ")
    if scheme.lower() != "basic":
        return [parameter]
    with contextlib.suppress(ValueError):
        pair = base64.b64decode(parameter).decode()
        return [parameter, pair, pair.partition(":")[2]]
    return [parameter]


def without_userinfo(text: str) -> str:
    """What was given as an address, be it one or not, as it may be shown."""
    return re.sub(r"//[^/]*@", "//", text)
