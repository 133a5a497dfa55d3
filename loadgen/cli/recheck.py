"""`loadgate recheck`: a contest record judged again."""

from pathlib import Path
from typing import Any

import click


@click.command(short_help="judge a contest record again")
@click.argument("record", type=click.Path(path_type=Path), metavar="RECORD.json")
@click.option("--json", "as_json", is_flag=True, help="medians, score, reason, gates and differences as JSON")
def command(record: Path, as_json: bool) -> int:
    """Judge a contest's record again from its raw figures: medians, SpecScore, every gate, the reason.

    \b
    loadgate recheck result.json

    Exit code: 0 where the recorded result is reproduced, 1 where it is not, 2 for a file that is no record.
    """
    from gates import contest
    from gates.report import text
    from loadgen.cli import judging

    content = _content(record)
    try:
        again = contest.recheck(content)
    except contest.NoRecord as error:
        raise contest.NoRecord(f"{record}: {error}") from error
    judging.show(again.model_dump_json(indent=1) if as_json else text.rechecked(*contest.parse(content), again))
    return 0 if again.reproduced else 1


def _content(path: Path) -> Any:
    import json

    from gates.contest import NoRecord

    try:
        # Not orjson: a record's −Infinity or NaN must reach the check that names its field.
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoRecord(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise NoRecord(f"{path} is no JSON, so no contest record: {error}.") from error
