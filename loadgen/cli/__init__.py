"""The command line: one file a command, loaded when it is called."""

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

COMMANDS = ("demo", "run", "compare", "score", "judge", "report", "recheck", "calibrate", "selftest", "serve", "list")

# What a user can mend or must know, by the class's full name so that nothing is imported for it: exit code.
_EXIT_CODES = {
    "loadgen.profile.ProfileError": 2,
    "loadgen.prompts.PromptsError": 2,
    "loadgen.dialects.DialectError": 2,
    "loadgen.endpoint.EndpointConfigError": 2,
    "loadgen.endpoint.EndpointError": 4,
    "loadgen.headroom.NoRoom": 2,
    "loadgen.side.ReferenceDied": 4,
    "loadgen.workers.WorkerDied": 4,
    "concurrent.futures.process.BrokenProcessPool": 4,
    "loadgen.ray_workers.RayError": 2,
    "loadgen.record.writer.RunExists": 2,
    "loadgen.record.reader.Broken": 2,
    "gates.plan.PlanError": 2,
    "gates.evidence.NotComparable": 2,
    "gates.contest.SubmissionError": 2,
    "gates.contest.NoRecord": 2,
    "servers.launch.RecipeError": 2,
    "servers.launch.LaunchFailed": 4,
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"loadgen.cli.{cmd_name}").command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from loadgen.record import nearest

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"There is no command {args[0]!r}. {nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The one-line helps are kept here, so that --help imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _HELP[name]) for name in COMMANDS])


_HELP = {
    "demo": "embedded engine: stock against speculative, verdict and speed; under 90 s",
    "run": "load one endpoint; latency and throughput",
    "compare": "load two endpoints in turn; verdict and speedup",
    "score": "score a run's replies with a reference server",
    "judge": "verdict from a run's files alone",
    "report": "show a run again: text, markdown or json",
    "recheck": "judge a contest record again",
    "calibrate": "what this machine's client can hold",
    "selftest": "the gates' own error rates",
    "serve": "start a server from a recipe",
    "list": "profiles, plans, recipes, dialects, checks",
}


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="loadgate", message="%(prog)s %(version)s")
def group() -> None:
    """Is the changed LLM server still the same model, and how much faster is it?

    \b
    loadgate demo --out runs/demo
    loadgate compare http://gpu:8000 http://gpu:8001 --out runs/first
    """


def main(args: Sequence[str] | None = None) -> None:
    """The console command. Exit codes: 0 equivalent, passed or done; 1 different or failed; 2 wrong usage;
    3 undecided; 4 an endpoint or a run that broke; 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no "×" still gets its verdict
    sys.exit(_run(args))


def _run(args: Sequence[str] | None) -> int:
    try:
        code = group.main(args=args, prog_name="loadgate", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted.")
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) went away: nothing is left to say, and flushing must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - re-raised below unless it is one of the table's
        return _told(error)


def _told(error: Exception) -> int:
    for kind in type(error).__mro__:
        code = _EXIT_CODES.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            _say(str(error))
            return code
    if isinstance(error, OSError) and error.errno is not None:
        # A file or a folder that was named, else what a running program meets: a full disk, too many open files.
        where = f"{error.filename}: " if error.filename is not None else ""
        _say(f"{where}{error.strerror}. Files cannot be read or written as asked; what was written before stays.")
        return 4 if error.filename is None else 2
    raise error


def _say(sentence: str) -> None:
    """On standard error, without what a server or a file may have put into it to move the cursor or hide a line."""
    shown = "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in sentence)
    with contextlib.suppress(OSError):  # nobody is left to read it
        click.echo(f"loadgate: {shown}", err=True)
