"""Imports run downwards through the rooms of the house, and no circle joins two modules."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import fedrepro

ROOT = Path(fedrepro.__file__).parent
# From top to bottom: first the modules of the package's own folder, the commands and pages.
ROOMS = (
    "cli", "commands", "campaign pages", "sweep", "fedrepro", "api", "extras", "report",
    "quantities", "papers records", "federated", "engine", "methods", "models", "data", "base",
)  # fmt: skip


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def _imports(path: Path) -> set[str]:
    """The package's modules that a file imports anywhere, but for annotations alone."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                found.update(a.name for a in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                names = {f"{child.module}.{a.name}" for a in child.names}
                found.update(name if name in MODULES else child.module for name in names)
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8")))
    return found & set(MODULES)


ARROWS = {name: _imports(path) for name, path in MODULES.items()}


def _height(module: str) -> int:
    room = module.split(".")[1 if "." in module else 0]
    return next(len(ROOMS) - n for n, names in enumerate(ROOMS) if room in names.split())


def test_no_arrow_runs_up_and_none_in_a_circle():
    up = {f"{a} -> {b}" for a, to in ARROWS.items() for b in to if _height(b) > _height(a)}
    assert not up
    list(TopologicalSorter(ARROWS).static_order())


SHARED = {"", "api", "base", "losses", "prototypes", "server"}


def test_a_method_knows_no_other_method():
    """Nor an engine, data set or paper; `*_variants` know the method they vary."""
    room = "fedrepro.methods"
    for name, known in ARROWS.items():
        stem = name.removeprefix(f"{room}.")
        if not name.startswith(f"{room}.") or stem in SHARED:
            continue
        below = {to for to in known if to.startswith(("fedrepro.base.", "fedrepro.models"))}
        left = {to.removeprefix(room).removeprefix(".") for to in known - below}
        assert left <= SHARED | {stem.removesuffix("_variants")}, name
