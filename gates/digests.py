"""What a verdict was made from."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from loadgen.record import Run


def of(runs: Sequence[Run]) -> dict[str, str]:
    """File → sha256, of one run under the file's own name, of two under stock/ and candidate/."""
    if len(runs) == 1:
        return {str(path.relative_to(runs[0].path)): _sha256(path) for path in runs[0].files()}
    return {
        f"{role}/{path.relative_to(run.path)}": _sha256(path)
        for role, run in zip(("stock", "candidate"), runs, strict=True)
        for path in run.files()
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
