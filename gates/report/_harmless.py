"""Texts from servers and submissions, made harmless: shown, never obeyed."""

import json
import re
import unicodedata
from typing import Any

LONGEST = 400
"""Characters shown of one text: a server's error may be a whole page."""

_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~!$&^]")
_AUTOLINK = re.compile(r"(?<=[A-Za-z])://|@|(?<=www)\.", re.IGNORECASE)


def visible(text: str) -> str:
    """Control, format, direction and line-breaking characters as escapes: a terminal gets printable text alone."""
    shown = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return "".join(_escaped(char) if _acts(char) else char for char in shown)


def _acts(char: str) -> bool:
    # C*: control, format (direction overrides, joiners), surrogate, private, unassigned; Zl, Zp: line separators.
    return unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp")


def _escaped(char: str) -> str:
    code = ord(char)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if char in named:
        return named[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def markdown(text: str) -> str:
    """Visible text that Markdown, GitHub's dialect and HTML take as text: no emphasis, link, image, tag or cell."""
    escaped = _MARKUP.sub(lambda found: _entity(found[0]), visible(text))
    return _AUTOLINK.sub(lambda found: "".join(_entity(char) for char in found[0]), escaped)


def _entity(char: str) -> str:
    # Entities, not backslashes: they mean the same in a table's cell, in HTML, and where a backslash stands before.
    return f"&#{ord(char)};"


def ascii_json(content: Any) -> str:
    """JSON without a control character or a line that anything but JSON could begin with."""
    # ensure_ascii leaves one control character, DEL, as it is.
    return json.dumps(content, indent=1, ensure_ascii=True, allow_nan=False).replace("\x7f", "\\u007f")
