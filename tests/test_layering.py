"""The import rules: measuring and judging meet only in files, and imports point one way."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("loadgen", "gates", "servers")

# endpoint holds URLs and TLS, discovery and side what is not timed; the rest is one timed request: its transports,
# their parts, and the client above them.
_UNTIMED = ("endpoint", "discovery", "side")
_TIMED = ("client", "transport", "connection", "reply", "memory", "plain")
SPEAK_HTTPX = {f"loadgen.{name}" for name in (*_UNTIMED, *_TIMED)}
RUNS_IN_THE_ENGINES_ENVIRONMENT = {"servers.tiny"}


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str  # the module, also where a name out of it was asked for
    at_top: bool  # runs when the importer is imported


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))}


def modules(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "absolute imports only"
        yield node.module or ""
        yield from (name for alias in node.names if (name := f"{node.module}.{alias.name}") in FILES)


def imports_of(importer: str, node: ast.AST, at_top: bool = True) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        yield from (Import(importer, imported, at_top) for imported in modules(child))
        runs_later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        yield from imports_of(importer, child, at_top and not runs_later and not for_types)


IMPORTS = [
    found
    for name, path in FILES.items()
    for found in imports_of(name, ast.parse(path.read_text(encoding="utf-8"), str(path)))
]


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_the_tree_is_read() -> None:
    """The rules below look at real imports: a wrong root would let all of them pass."""
    assert Import("loadgen.request", "loadgen.prompts", True) in IMPORTS
    assert {name.partition(".")[0] for name in FILES} == set(OURS)


RULES: dict[str, Callable[[Import], bool]] = {
    "the vocabulary of runs imports nothing of ours but itself": lambda i: (
        within(i.importer, "loadgen.record") and within(i.imported, *OURS) and not within(i.imported, "loadgen.record")
    ),
    "gates and servers know of loadgen only the vocabulary": lambda i: (
        within(i.importer, "gates", "servers")
        and within(i.imported, "loadgen")
        and not within(i.imported, "loadgen.record")
    ),
    "gates and servers do not know each other": lambda i: (
        (within(i.importer, "gates") and within(i.imported, "servers"))
        or (within(i.importer, "servers") and within(i.imported, "gates"))
    ),
    "loadgen neither judges nor starts servers": lambda i: (
        within(i.importer, "loadgen")
        and not within(i.importer, "loadgen.cli")
        and within(i.imported, "gates", "servers")
    ),
    "nobody imports the command line but itself": lambda i: (
        within(i.imported, "loadgen.cli") and not within(i.importer, "loadgen.cli", "loadgen.__main__")
    ),
    "httpx is imported where requests are made, so that changing it stays small": lambda i: (
        within(i.importer, "loadgen") and within(i.imported, "httpx") and i.importer not in SPEAK_HTTPX
    ),
    "gates open no socket": lambda i: (
        within(i.importer, "gates") and within(i.imported, "socket", "asyncio", "httpx", "urllib.request", "http")
    ),
    "scipy is for judging, and loads only when a check computes": lambda i: (
        within(i.imported, "scipy") and (i.at_top or not within(i.importer, "gates"))
    ),
    "an engine's libraries stay in its own environment": lambda i: (
        within(i.imported, "torch", "vllm", "transformers") and i.importer not in RUNS_IN_THE_ENGINES_ENVIRONMENT
    ),
    "what runs in the engine's environment imports nothing of ours, and is imported by nobody": lambda i: (
        (i.importer in RUNS_IN_THE_ENGINES_ENVIRONMENT and within(i.imported, *OURS))
        or i.imported in RUNS_IN_THE_ENGINES_ENVIRONMENT
    ),
    "the command line's front imports a command only when it is called": lambda i: (
        i.importer == "loadgen.cli" and i.at_top and within(i.imported, *OURS)
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_import_rule(rule: str) -> None:
    """Each rule names who may not import what; none does."""
    broken = [f"{i.importer} imports {i.imported}" for i in IMPORTS if RULES[rule](i)]
    assert not broken


def test_imports_point_downward() -> None:
    """No module reaches itself through what it imports, imports inside functions and for types included."""
    graph: dict[str, set[str]] = {name: set() for name in FILES}
    for i in IMPORTS:
        if i.imported in FILES and i.imported != i.importer:
            graph[i.importer].add(i.imported)
    for name in FILES:
        # `from package import module` runs the package first, but asks nothing of it.
        graph[name] -= {package for package in graph[name] if within(name, package) and not asks(name, package)}
    graphlib.TopologicalSorter(graph).prepare()


def asks(importer: str, package: str) -> bool:
    """Whether the importer takes a name out of the package's own file, not only modules beside itself."""
    tree = ast.parse(FILES[importer].read_text(encoding="utf-8"))
    return any(
        f"{package}.{alias.name}" not in FILES
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == package
        for alias in node.names
    )


def test_importing_the_packages_loads_nothing_heavy() -> None:
    """`import loadgen, gates` is instant: no numbers, no engine, no HTTP."""
    heavy = ("scipy", "torch", "vllm", "numpy", "httpx", "pydantic")
    code = f"import sys, loadgen, gates; print(sorted(set(sys.modules) & set({heavy!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_help_loads_no_command() -> None:
    """`loadgate --help` answers from its own file."""
    code = (
        "import sys\nfrom loadgen.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as done: assert not done.code\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'scipy', 'httpx', 'pydantic', 'rich')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"
