"""The lists of packages agree, and everything the package needs is in them and in the wheel."""

import ast
import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path

import nbformat
import typer
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from setuptools import find_packages

import fedrepro
from fedrepro import cli
from fedrepro.base.files import CHECKOUT

PACKAGE = CHECKOUT / "fedrepro"
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
EXTRAS = tuple(PROJECT["optional-dependencies"])
# Import names that differ from the name of the package that brings them.
BROUGHT_BY = {
    "open_clip": "open_clip_torch", "finch": "finch-clust", "PIL": "pillow", "yaml": "pyyaml",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "vl_convert": "vl-convert-python",
    "IPython": "ipykernel", "distributed": "dask",
}  # fmt: skip
NOTEBOOKS = [
    *(CHECKOUT / "notebooks").glob("*.ipynb"), *(CHECKOUT / "book/results").glob("*.ipynb")
]  # fmt: skip


def named(lines: list[str]) -> dict[str, SpecifierSet]:
    found = [Requirement(line) for line in lines]
    assert len({r.name.lower() for r in found}) == len(found), "a package is named twice"
    return {r.name.lower(): r.specifier for r in found}


def declared() -> dict[str, SpecifierSet]:
    extras = PROJECT["optional-dependencies"]
    return named(PROJECT["dependencies"] + [line for e in EXTRAS for line in extras[e]])


def sources(*folders: str) -> list[Path]:
    return sorted(p for f in folders for p in (CHECKOUT / f).rglob("*.py"))


def test_environment_and_constraints_agree_with_the_project():
    environment = yaml.safe_load((CHECKOUT / "environment.yml").read_text())
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    pip = next(e["pip"] for e in environment["dependencies"] if isinstance(e, dict))
    assert conda == [f"python{PROJECT['requires-python']}", "pip"]
    assert {"-c constraints.txt", "-e ."} <= set(pip)
    assert named([line for line in pip if not line.startswith("-")]) == declared()
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    pins = named([line for line in lines if line and not line.startswith("#")])
    for name in ("torch", "torchvision"):
        assert str(pins[name]).removeprefix("==") in declared()[name]


def imported(path: Path) -> list[tuple[str, bool]]:
    """Top-level packages a file imports from outside, and whether at once (else in a function)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        else:
            continue
        tops = {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"fedrepro"}
        found += [(top, node.col_offset == 0) for top in tops]
    return found


def test_every_import_of_the_package_is_declared():
    """What a file imports at once is a core dependency; what a function imports, any extra's."""
    core, extra = set(named(PROJECT["dependencies"])), set(declared())
    undeclared = [
        f"{path.relative_to(CHECKOUT)}: {top}"
        for path in sources("fedrepro")
        for top, at_once in imported(path)
        if BROUGHT_BY.get(top, top).lower() not in (core if at_once else extra)
    ]
    assert not undeclared


def test_every_file_of_the_package_is_in_the_wheel():
    config = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns, where = config["package-data"]["*"], config["packages"]["find"]
    found = [find_packages(CHECKOUT / one, (), where["include"]) for one in where["where"]]
    assert {"fedrepro.data", "drawn_digits"} <= set().union(*found)
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert (path.parent / "__init__.py").is_file(), path
            assert path.suffix == ".py" or any(map(path.match, patterns)), path


def commands(path: Path) -> list[str]:
    told = path.read_text()
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        told = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    blocks = re.findall(r"^```bash\n(.*?)^```", told, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_every_line_for_the_shell_is_one_command_with_known_options():
    """A line that was broken or joined when a page was written anew would fail a reader."""
    pages = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "book").rglob("*.md"), *NOTEBOOKS]
    lines = [line for page in pages for line in commands(page)]
    assert len(lines) > 20
    for line in lines:
        words = shlex.split(line, comments=True)
        words = words[1:] if words[:1] == ["nohup"] else words
        program, *words = words or ["make"]  # a line of comment
        program = program.removeprefix(".venv/bin/")
        assert program in {"make", "export", "fedrepro", "jupyter", "papermill", "python"}, line
        assert line.count("fedrepro ") < 2, line
        if program == "fedrepro":
            command = typer.main.get_command(cli.app)
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            known = {option for one in command.params for option in one.opts}
            assert {word for word in words if word.startswith("--")} <= known, line


def test_version_and_entry_point_are_one():
    citation = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
    assert citation["version"] == fedrepro.__version__
    assert f"## {fedrepro.__version__}" in (CHECKOUT / "CHANGELOG.md").read_text()
    assert citation["license"] == PROJECT["license"]
    module, _, name = PROJECT["scripts"]["fedrepro"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_files_functions_and_cells_keep_to_the_limits():
    """Those of CONTRIBUTING.md: files of methods are shorter, cells that define a class longer."""
    long = []
    for path in sources("fedrepro", "tests", "benchmarks", "tools"):
        text = path.read_text("utf-8")
        method = PACKAGE in path.parents and ("fl.Method" in text or "variants" in path.name)
        limit = 120 if method else 400
        long += [path.name] if text.count("\n") > limit else []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 50:
                long.append(f"{path.name}: {node.name}")
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert notebook.metadata["kernelspec"]["name"] == "python3"  # which every machine has
        for number, cell in enumerate(notebook.cells):
            limit = 24 if re.search(r"^class ", cell.source, re.MULTILINE) else 16
            if cell.cell_type == "code" and len(cell.source.splitlines()) > limit:
                long.append(f"{path.name}: cell {number}")
    assert not long


def test_what_binder_installs_exists():
    folder = CHECKOUT / ".binder"  # requirements: constraints, or this project with known extras
    python = (folder / "runtime.txt").read_text().strip().removeprefix("python-")
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)
    text = (folder / "requirements.txt").read_text().splitlines()
    lines = [line for line in text if line and not line.startswith("#")]
    options = dict(line.split(maxsplit=1) for line in lines)
    assert set(options) == {"-c", "-e"}
    assert (folder / options["-c"]).samefile(CHECKOUT / "constraints.txt")
    project = Requirement(f"fedrepro{options['-e'].removeprefix('.')}")  # pip's own folder is .
    assert project.extras and project.extras <= set(EXTRAS)
