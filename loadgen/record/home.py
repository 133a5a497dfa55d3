"""Where profiles and plans lie, and what to suggest for a name that is none of them."""

import difflib
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def profiles_folder() -> Path:
    """The folder of the profiles: inside the installed package, or beside the packages in a checkout."""
    installed = _PACKAGE / "profiles"
    return installed if installed.is_dir() else _PACKAGE.parent / "profiles"


def available(kind: str = "") -> list[str]:
    """Names of the shipped profiles (kind "") or plans (kind "plans"), sorted."""
    return sorted(path.stem for path in (profiles_folder() / kind).glob("*.toml"))


def find(name: str, kind: str = "") -> Path | None:
    """The file for a shipped name or a path; None where there is neither."""
    shipped = profiles_folder() / kind / f"{name}.toml"
    if "/" not in name and shipped.is_file():
        return shipped
    path = Path(name)
    return path if path.is_file() else None


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names what there is, the likeliest first: "Did you mean solo? There are busy, solo, team."."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    listing = f"There are {', '.join(known)}." if known else "There are none."
    return f"Did you mean {' or '.join(close)}? {listing}" if close else listing
