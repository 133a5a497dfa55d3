"""loadgate list: what there is to name."""

import ast
import importlib.util
import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import orjson

from loadgen.record import available, find, nearest

# Kinds that are data, by the folder under profiles/; kinds that are code, by package and how file names become keys.
_DATA = {"profiles": "", "plans": "plans"}
_CODE = {"recipes": ("servers.recipes", "-"), "dialects": ("loadgen.dialects", "_"), "checks": ("gates.checks", "_")}


def _known(ctx: click.Context, param: click.Parameter, kind: str) -> str:
    if kind not in (known := [*_DATA, *_CODE]):
        raise click.BadParameter(f"nothing is listed as {kind!r}. {nearest(kind, known)}", ctx, param)
    return kind


@click.command(short_help="profiles, plans, recipes, dialects, checks")
@click.argument("kind", metavar="profiles|plans|recipes|dialects|checks", callback=_known)
@click.option("--json", "as_json", is_flag=True, help="[{name, about}] instead of a table.")
def command(kind: str, as_json: bool) -> None:
    """Names of what there is, each with a line about it.

    \b
    loadgate list profiles
    loadgate list checks --json
    """
    entries = dict(_data(_DATA[kind]) if kind in _DATA else _code(*_CODE[kind]))
    click.echo(_json(entries) if as_json else _table(entries))


def _json(entries: dict[str, str]) -> str:
    return orjson.dumps([{"name": name, "about": about} for name, about in entries.items()]).decode()


def _table(entries: dict[str, str]) -> str:
    width = max(map(len, entries), default=0)
    return "\n".join(f"{name:{width}}   {about}".rstrip() for name, about in entries.items())


def _data(folder: str) -> Iterator[tuple[str, str]]:
    for name in available(folder):
        path = find(name, folder)
        assert path is not None
        yield name, str(tomllib.loads(path.read_text(encoding="utf-8")).get("about", ""))


def _code(package: str, joint: str) -> Iterator[tuple[str, str]]:
    """Read from the source, so that listing loads neither a check's scipy nor a recipe's engine."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        file = Path(spec.submodule_search_locations[0], f"{module.name}.py")
        yield module.name.replace("_", joint), _about(file)


def _about(file: Path) -> str:
    """The value of ABOUT where a module has one, else its docstring's first line."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="ABOUT")], value=ast.Constant(value=str(about))):
                return about
    return (ast.get_docstring(tree) or "").partition("\n")[0]
