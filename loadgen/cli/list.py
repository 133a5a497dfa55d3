"""loadgate list: what there is to name."""

import ast
import importlib.util
import pkgutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
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
    entries = list(_data(_DATA[kind]) if kind in _DATA else _code(*_CODE[kind]))
    click.echo(_json(entries) if as_json else _table(entries))


@dataclass(frozen=True, slots=True)
class Entry:
    """needs: what must be there for it, of recipes alone."""

    name: str
    about: str
    needs: str = ""


def _json(entries: list[Entry]) -> str:
    return orjson.dumps(
        [{"name": one.name, "about": one.about} | ({"needs": one.needs} if one.needs else {}) for one in entries]
    ).decode()


def _table(entries: list[Entry]) -> str:
    width = max((len(one.name) for one in entries), default=0)
    lines = []
    for one in entries:
        lines.append(f"{one.name:{width}}   {one.about}".rstrip())
        lines += [f"{'':{width}}   needs {one.needs}"] if one.needs else []
    return "\n".join(lines)


def _data(folder: str) -> Iterator[Entry]:
    for name in available(folder):
        path = find(name, folder)
        assert path is not None
        yield Entry(name, str(tomllib.loads(path.read_text(encoding="utf-8")).get("about", "")))


def _code(package: str, joint: str) -> Iterator[Entry]:
    """Read from the source, so that listing loads neither a check's scipy nor a recipe's engine."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for module in pkgutil.iter_modules(spec.submodule_search_locations):
        file = Path(spec.submodule_search_locations[0], f"{module.name}.py")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        said = _constants(tree)
        about = said.get("ABOUT", (ast.get_docstring(tree) or "").partition("\n")[0])
        # Recipes' names have dots, which a module's cannot.
        yield Entry(module.name.replace("__", ".").replace("_", joint), about, said.get("NEEDS", ""))


def _constants(tree: ast.Module) -> dict[str, str]:
    """Name → text of a module's constants that are texts."""
    found = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                found[name] = text
    return found
