"""Builds the book: a site of static pages from the prose, the result notebooks and recorded runs.

The sources are copied to a folder of their own, where papermill executes the result notebooks; then
Jupyter Book, told to execute nothing, turns that folder into pages. The old site is replaced only
by a new one that is complete.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import yaml

from fedrepro.base.errors import FedReproError, one_line

Report = Callable[[str], None]

RESULTS = Path("book/results")  # notebooks executed at each build
METHODS = Path("book/_generated/methods")  # written at each build, from the methods' classes
RECORDED = Path("book/runs/notebooks")  # executed notebooks that are kept with the book
OWN = Path("book/own")  # where a user's own notebooks go in the copy
COPIED = ("_config.yml", "book", "notebooks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SHOWN = ("fedrepro/methods/*.py", "fedrepro/papers/*.svg")  # code and drawings, as they are
TOC = Path("book/_toc.yml")
METHODS_PART = "Methods"  # parts of the table of contents that are filled at each build
RECORDED_PART = "The notebooks behind the tables"
NAMES = {  # of data sets, in titles
    "digits4": "Digits",
    "digits5": "Digits",
    "office10": "Office-Caltech-10",
    "pacs": "PACS",
    "pacs-leaky": "PACS, leaky lists",
}
PATH_CHECK = "Your own runs (path check, not results)"
OWN_RUNS = "Your own runs"
BUILD = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def source_root() -> Path:
    """The checkout this package runs from. FedReproError where the book's sources are not there."""
    root = Path(__file__).resolve().parent.parent
    _check_source(root)
    return root


def build_book(
    runs: Path | None = None,
    out: Path | None = None,
    strict: bool = False,
    source: Path | None = None,
    report: Report | None = None,
) -> Path:
    """Build the site and return the path of its first page, `<out>/html/index.html`.

    runs: folder of run records. It is handed to result notebooks that have a parameter `runs_dir`,
        and the executed notebooks below `<runs>/notebooks` become pages of their own.
    out: where copy, log and site go; default `<source>/_build`.
    strict: any warning of the build is an error.
    source: the repository; default the one this package is installed from (editable).
    report: called with one line per step.
    FedReproError: missing sources, a notebook that fails, a build that fails.
    """
    say = report or (lambda line: None)
    if source is None:
        source = source_root()
    source = source.resolve()
    _check_source(source)
    if runs is not None and not runs.is_dir():
        raise FedReproError(f"no run records at {runs}: run `fedrepro sweep` first, or mend --runs")
    out = (out or source / "_build").resolve()
    copy = out / "site"
    _copy_sources(source, copy)
    _write_rules(copy / "book" / "_generated" / "verdict_rules.md")
    say("writing the methods' pages")
    _add_methods(copy)
    _add_recorded(copy, say)
    for page in sorted((copy / RESULTS).glob("*.ipynb")):
        say(f"executing {RESULTS / page.name}")
        _execute(page, source / RESULTS, runs)
    if runs is not None:
        _add_own_notebooks(runs.resolve() / "notebooks", copy, say)
    say("building the pages")
    return _build_pages(copy, out, strict)


def _check_source(source: Path) -> None:
    if not (source / "_config.yml").is_file() or not (source / TOC).is_file():
        raise FedReproError(
            f"the book's sources are not in {source}: "
            "clone the repository and install it with `pip install -e .`"
        )


def _copy_sources(source: Path, copy: Path) -> None:
    """Fresh copy of everything a page can include; leftovers of an earlier build are removed."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    skip = shutil.ignore_patterns(".*", "__pycache__")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, copy / name, ignore=skip)
        elif (source / name).is_file():
            shutil.copy2(source / name, copy / name)
    for pattern in SHOWN:
        for file in sorted(source.glob(pattern)):
            place = copy / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)


def _write_rules(page: Path) -> None:
    """The verdict rules, as the code that applies them states them."""
    from fedrepro.report.verdicts import rules_markdown

    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(rules_markdown(), encoding="utf-8")


def _read_toc(copy: Path) -> dict[str, Any]:
    toc: dict[str, Any] = yaml.safe_load((copy / TOC).read_text(encoding="utf-8"))
    return toc


def _write_toc(copy: Path, toc: dict[str, Any]) -> None:
    (copy / TOC).write_text(yaml.safe_dump(toc, sort_keys=False), encoding="utf-8")


def _part(toc: dict[str, Any], caption: str) -> dict[str, Any] | None:
    return next((part for part in toc.get("parts", []) if part.get("caption") == caption), None)


def _add_methods(copy: Path) -> None:
    """A page a method, where the table of contents has a part for them."""
    from fedrepro.report.method_pages import write_pages

    toc = _read_toc(copy)
    part = _part(toc, METHODS_PART)
    if part is None:
        return
    names = write_pages(copy / METHODS)
    part["chapters"] = [{"file": f"{METHODS.as_posix()}/{name}"} for name in names]
    _write_toc(copy, toc)


def _add_recorded(copy: Path, say: Report) -> None:
    """A page a recorded notebook, where the table of contents has a part for them. Smoke runs are
    no results; a part without pages goes."""
    toc = _read_toc(copy)
    part = _part(toc, RECORDED_PART)
    if part is None:
        return
    found = []
    for file, notebook in _finished(copy / RECORDED, say):
        given = _parameters(notebook)
        if given["scale"] != "smoke":
            place = file.relative_to(copy).with_suffix("").as_posix()
            order = (file.name.partition("-")[0], given["dataset"], given["scale"], given["seed"])
            found.append((order, place, _title(file, given)))
    part["chapters"] = [{"file": place, "title": title} for _, place, title in sorted(found)]
    if not found:
        toc["parts"].remove(part)
    _write_toc(copy, toc)


def _parameters(notebook: Any) -> dict[str, Any]:
    """What papermill handed to a notebook, over the notebooks' own defaults."""
    defaults = {"dataset": "", "scale": "smoke", "seed": 0, "experiment": "all", "methods": None}
    return {**defaults, **notebook.metadata.get("papermill", {}).get("parameters", {})}


def _title(file: Path, given: dict[str, Any]) -> str:
    """``ADCOL on Digits, reduced, seed 0``; a part of a paper's runs is named before the seed."""
    from fedrepro import papers

    paper, dataset = file.name.partition("-")[0], str(given["dataset"])
    with contextlib.suppress(FedReproError):
        paper = papers.load(paper).short
    name = NAMES.get(dataset.removesuffix("-standin"), dataset)
    parts = [f"{paper} on {name}", given["scale"]]
    if given["experiment"] != "all":
        parts.append(given["experiment"])
    return ", ".join([*parts, *(given["methods"] or ()), f"seed {given['seed']}"])


def _execute(page: Path, folder: Path, runs: Path | None) -> None:
    """Execute a result notebook in place; its kernel works in `folder`, where its source lies."""
    import papermill  # costs a second, needed only here

    known = papermill.inspect_notebook(str(page))
    given: dict[str, Any] = {}
    if runs is not None and "runs_dir" in known:
        given["runs_dir"] = str(runs.resolve())
    try:
        papermill.execute_notebook(
            str(page), str(page), given, kernel_name="python3", progress_bar=False, cwd=str(folder)
        )
    except Exception as error:  # papermill, nbclient and zmq raise many kinds; all mean the same
        raise FedReproError(
            f"{RESULTS / page.name} failed ({_cause(error)}); open {page} to see its traceback"
        ) from error
    _hide_injected(page)


def _cause(error: Exception) -> str:
    """One line: a failing cell's own exception where there is one."""
    name, value = getattr(error, "ename", None), getattr(error, "evalue", None)
    return f"{name}: {value}".splitlines()[0] if name else one_line(error)


def _hide_injected(page: Path) -> None:
    """Leave out the cell papermill injected: it holds a path of this machine and no result."""
    notebook = nbformat.read(page, as_version=4)
    for cell in notebook.cells:
        tags = cell.metadata.setdefault("tags", [])
        if "injected-parameters" in tags and "remove-cell" not in tags:
            tags.append("remove-cell")
    nbformat.write(notebook, page)


def _add_own_notebooks(folder: Path, copy: Path, say: Report) -> None:
    """Make pages of the user's executed notebooks, in a part of their own at the end."""
    chapters, scales = [], set()
    for file, notebook in _finished(folder, say):
        name = "-".join(file.relative_to(folder).with_suffix("").parts)
        scale = _parameters(notebook)["scale"]
        scales.add(scale)
        _mark_own(notebook, name, scale)
        (copy / OWN).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, copy / OWN / f"{name}.ipynb")
        chapters.append({"file": f"{OWN.as_posix()}/{name}", "title": name})
    if not chapters:
        return
    toc = _read_toc(copy)
    caption = PATH_CHECK if scales == {"smoke"} else OWN_RUNS
    toc["parts"].append({"caption": caption, "chapters": chapters})
    _write_toc(copy, toc)


def _finished(folder: Path, say: Report) -> Iterator[tuple[Path, Any]]:
    """The notebooks below `folder` that ran without an error; the others are named and left out."""
    for file in sorted(folder.rglob("*.ipynb")):
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        if file.stem.endswith(".failed"):  # as a sweep names them
            say(f"left out {file}: it failed")
            continue
        try:
            notebook = nbformat.read(file, as_version=4)
        except (OSError, ValueError) as error:
            say(f"left out {file}: not a readable notebook ({one_line(error)})")
            continue
        outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
        if any(output.get("output_type") == "error" for output in outputs):
            say(f"left out {file}: a cell of it failed")
            continue
        yield file, notebook


def _mark_own(notebook: Any, name: str, scale: str) -> None:
    """Put the run's name into the title of a user's own notebook, and a plain note under it."""
    what = "a check of the path from data to page, not a result" if scale == "smoke" else "your own"
    note = f"```{{note}}\nThis page is {what}. It was run at scale `{scale}`.\n```\n"
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            title, _, rest = cell.source.partition("\n")
            cell.source = f"{title} ({name})\n\n{note}{rest}"
            return
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(f"# {name}\n\n{note}"))


def _build_pages(copy: Path, out: Path, strict: bool) -> Path:
    """Run Jupyter Book on the copy; on success put the new site in place of the old one."""
    log = out / "book.log"
    command = [sys.executable, "-c", BUILD, "build", str(copy), "--toc"]
    command += [str(copy / TOC), "--all"]
    if strict:
        command += ["-W", "-n", "--keep-going"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    log.write_text(COLOURS.sub("", done.stdout.decode(errors="replace")), encoding="utf-8")
    built = copy / "_build" / "html"
    if done.returncode != 0 or not (built / "index.html").is_file():
        raise FedReproError(f"the book did not build: {_complaint(log)}; the whole log is {log}")
    site = out / "html"
    shutil.rmtree(site, ignore_errors=True)
    built.rename(site)
    return site / "index.html"


def _complaint(log: Path) -> str:
    """The last line of a log that names a warning or an error, else the last line."""
    text = log.read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"WARNING: |ERROR: |Error: ", line)]
    return (named or lines or ["it printed nothing"])[-1]
