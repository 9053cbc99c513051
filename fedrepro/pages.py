"""Builds the book: a static site from the text, the result notebooks and recorded runs.
The sources are copied to a new folder, where papermill executes the result notebooks. Then Jupyter
Book makes pages and executes nothing. Only a complete new site replaces the old one."""

import os
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html import escape, unescape
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import scrapbook
import yaml
from PIL import Image

from fedrepro import methods, papers
from fedrepro.base.errors import FedReproError, need, one_line
from fedrepro.base.files import ANSWERS, CHECKOUT, CLONE, make_folder
from fedrepro.report.book import page as method_page, write_scripts
from fedrepro.report.claim_views import PICTURE as CLAIMS_PICTURE
from fedrepro.report.picture import LIVE
from fedrepro.report.printout import MEANS, over_seeds
from fedrepro.report.results import outdated
from fedrepro.report.text import STANDIN, dataset_name, markdown
from fedrepro.report.verdicts import rules_markdown
from fedrepro.sweep import cores, papermill_complaint, stopping

Report = Callable[[str], None]

RESULTS = Path("book/results")  # notebooks executed at each build
GENERATED = Path("book/_generated")  # written at each build, from the code
RECORDED = Path("book/records/notebooks")  # executed notebooks that are kept with the book
# Files that sphinx and its theme copy, but no page loads.
UNREAD = (
    *("_static/**/*.map", "_static/**/*.ttf", "_static/locales/**/*.[mp]o"),
    "_static/vendor/fontawesome/*/js/*",
)
# The theme has its icons also as a font, which loads when it is used.
TWICE = re.compile(r'<script[^>]*fontawesome[^>]*></script>|<link rel="preload" as="font"[^>]*>')
# sphinx's own words are the path
PICTURE = re.compile(r'<img (alt="[^"]*_images/([0-9a-f]{64}\.png)")[^>]*>')
FIGURE = '<figure class="interactive">'
VEGA_LITE = "6.1"  # 6.4 says "undefined" of the point next to the pointer
# Pages load only this of MathJax: the script with all TeX extensions, and its fonts.
MATHJAX_FILES = ("tex-chtml-full.js", "output/chtml/fonts/woff-v2/*.woff")
OWN = Path("book/own")  # where a user's own notebooks go in the copy
# What a page can include: the text, and code, drawings and tables as they are.
COPIED = (
    *("_config.yml", "book/**/*", "notebooks/**/*", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("fedrepro/methods/*.py", "fedrepro/extras/*.py", "fedrepro/papers/*.svg"),
    "benchmarks/results/*.md",
)
MAIN_CLAIMS = "main_claims.md"
NOTEBOOKS = "notebooks.md"  # the list of the recorded ones
# Parameters of a notebook that was executed without papermill.
DEFAULTS = {"dataset": "", "scale": "smoke", "seed": 0, "experiment": "all", "methods": None}
TOC = Path("book/_toc.yml")
METHODS_PART = "Methods"  # the part of the table of contents that is filled at each build
PATH_CHECK = "Your own runs (test of the code, not results)"
BUILD = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def build_book(
    runs: Path | None = None,
    out: Path | None = None,
    strict: bool = False,
    source: Path = CHECKOUT,
    say: Report = lambda line: None,
) -> Path:
    """Build the site and return the path of its first page, `<out>/html/index.html`.
    runs: folder of run records; the executed notebooks below `<runs>/notebooks` become pages.
    out: folder for copy, log and site; default `<source>/_build`.
    strict: any warning of the build is an error.
    source: the repository; by default the one of this (editable) installation.
    say: called with one line per step.
    FedReproError: missing sources, a notebook that fails, a build that fails."""
    source = source.resolve()
    whole = (source / "_config.yml").is_file() and (source / TOC).is_file()
    need(whole, f"the book's sources are not in {source}: {CLONE}")
    there = runs is None or runs.is_dir()
    need(there, f"no run records at {runs}: run `fedrepro sweep` or correct --runs")
    out = (out or source / "_build").resolve()
    copy = out / "site"
    shutil.rmtree(copy, ignore_errors=True)
    _copy_files(source, COPIED, copy)
    toc = yaml.safe_load((copy / TOC).read_text(encoding="utf-8"))
    add_recorded(source, copy, say)
    say(f"executing the notebooks of {RESULTS}")
    pages = sorted((copy / RESULTS).glob("*.ipynb"), reverse=True)  # a long one not as the last
    _execute(pages, source / RESULTS, meanwhile=partial(_generate, copy, toc))
    _main_claims(copy)
    if runs is not None:
        _add_own(runs.resolve() / "notebooks", copy, toc, say)
    (copy / TOC).write_text(yaml.safe_dump(toc, sort_keys=False), encoding="utf-8")
    say("building the pages")
    return _build_pages(copy, out, strict)


def _copy_files(root: Path, patterns: Sequence[str], out: Path) -> None:
    """Copy the files that fit a pattern, but none that is hidden or compiled."""
    for file in (found for pattern in patterns for found in root.glob(pattern)):
        name = file.relative_to(root)
        if file.is_file() and not any(p.startswith((".", "__pycache__")) for p in name.parts):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, out / name)


def _generate(copy: Path, toc: dict[str, Any]) -> None:
    """Write MathJax, the verdict rules from the code that applies them, the recorded runs, and one
    page per method if the table of contents has a part for them."""
    package = find_spec("sphinx-mathjax-offline")
    if package is None or package.origin is None:
        raise FedReproError("formulas need MathJax: pip install sphinx-mathjax-offline")
    mathjax, static = Path(package.origin).parent / "static" / "mathjax", copy / "book" / "_static"
    _copy_files(mathjax, MATHJAX_FILES, static / "mathjax")
    write_scripts(static / "records", copy / RECORDED.parent)
    (copy / GENERATED / "verdict_rules.md").write_text(rules_markdown(), encoding="utf-8")
    for part in toc.get("parts", []):
        if part.get("caption") == METHODS_PART:
            folder, part["chapters"] = GENERATED / "methods", []
            make_folder(copy / folder, "make room there")
            for name in methods.names():
                (copy / folder / f"{name}.md").write_text(method_page(name), encoding="utf-8")
                part["chapters"].append({"file": f"{folder.as_posix()}/{name}"})


def _main_claims(copy: Path) -> None:
    """The papers' main claims, table and picture, as on the page of all claims."""
    page = copy / RESULTS / "claims.ipynb"
    if page.exists():
        scraps = scrapbook.read_notebook(str(page)).scraps
        (copy / GENERATED / MAIN_CLAIMS).write_text(scraps["main"].data, encoding="utf-8")
        (copy / "book" / "_static" / CLAIMS_PICTURE).write_bytes(b64decode(scraps["picture"].data))


def add_recorded(source: Path, copy: Path, say: Report) -> None:
    """Add one page per recorded notebook, outside the menu and the search, and a list of links to
    them. Smoke runs are not results and are left out; a notebook that is not listed is removed.
    source: has their records."""
    folder = copy / RECORDED
    kept = [one for one in _finished(folder, say) if one[2]["scale"] != "smoke"]
    for file in set(folder.rglob("*.ipynb")) - {file for file, *_ in kept}:
        file.unlink()
    found = []
    for file, notebook, given in kept:
        notebook.metadata |= {"orphan": True, "nosearch": True}
        nbformat.write(notebook, file)
        place = file.relative_to(copy).as_posix()
        order = (file.name.partition("-")[0], given["dataset"], given["scale"], given["seed"])
        past = ", in part with earlier settings" * outdated(source / file.relative_to(copy))
        found.append((order, place, f"- [{_title(file, given)}](/{place}){past}\n"))
    lines = [line for *_, line in sorted(found)] or ["None is kept with this book.\n"]
    (copy / GENERATED).mkdir(parents=True, exist_ok=True)
    (copy / GENERATED / NOTEBOOKS).write_text("".join(lines), encoding="utf-8")


def _title(file: Path, given: dict[str, Any]) -> str:
    """``ADCOL on Digits, reduced, seed 0``; a part of a paper's runs is named before the seed."""
    paper = papers.load(file.name.partition("-")[0]).short
    name = dataset_name(given["dataset"]).removesuffix(STANDIN)
    chosen = [] if given["experiment"] == "all" else [given["experiment"]]
    parts = [f"{paper} on {name}", given["scale"], *chosen, *(given["methods"] or ())]
    return ", ".join([*parts, f"seed {given['seed']}"])


def _execute(pages: list[Path], folder: Path, meanwhile: Callable[[], None]) -> None:
    """Execute result notebooks in place; their kernels work in `folder`, which has the sources.
    Answers to claims are computed once for all of them. meanwhile: what this thread does then."""
    with TemporaryDirectory() as shared, ThreadPoolExecutor(cores()) as pool:
        os.environ[ANSWERS] = shared  # kernels have it, too
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # each has one core
        jobs = {pool.submit(papermill_complaint, page, page, {}, folder): page for page in pages}
        try:
            with stopping(jobs):
                meanwhile()
                for job, page in jobs.items():
                    if reason := job.result():
                        where = f"{RESULTS / page.name} failed ({reason})"
                        raise FedReproError(f"{where}; open {page} to see its traceback")
        finally:
            del os.environ[ANSWERS]


def _add_own(folder: Path, copy: Path, toc: dict[str, Any], say: Report) -> None:
    """Make pages from the user's executed notebooks, in a separate part at the end, and one with
    the means over seeds of those that are results."""
    if not (own := list(_finished(folder, say))):
        say(f"no page of your own: {folder} has no executed notebook; `fedrepro sweep` makes them")
    (copy / OWN).mkdir(parents=True, exist_ok=True)
    chapters = []
    for file, notebook, given in own:
        name = "-".join(file.relative_to(folder).with_suffix("").parts)
        _mark_own(notebook, name, given["scale"])
        nbformat.write(notebook, copy / OWN / f"{name}.ipynb")
        chapters.append({"file": f"{OWN.as_posix()}/{name}", "title": name})
    results = [file for file, _, given in own if given["scale"] != "smoke"]
    try:
        rows = over_seeds(folder, results)
    except FedReproError as error:
        say(f"no page of means over the seeds: {error}")
        rows = []
    if rows:
        means = f"# Means over the seeds\n\nAccuracy in percent.\n\n{markdown(MEANS, rows)}"
        (copy / OWN / "means.md").write_text(means, encoding="utf-8")
        chapters.insert(0, {"file": f"{OWN.as_posix()}/means"})
    if chapters:
        caption = "Your own runs" if results else PATH_CHECK
        toc["parts"].append({"caption": caption, "chapters": chapters})


def _mark_own(notebook: Any, name: str, scale: str) -> None:
    """Put the run's name into the title of a user's own notebook, and a plain note under it."""
    what = "a test of the code, not a result" if scale == "smoke" else "your own"
    note = f"```{{note}}\nThis page is {what}. It was run at scale `{scale}`.\n```\n"
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            title, _, rest = cell.source.partition("\n")
            cell.source = f"{title} ({name})\n\n{note}{rest}"
            return
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(f"# {name}\n\n{note}"))


def _finished(folder: Path, say: Report) -> Iterator[tuple[Path, Any, dict[str, Any]]]:
    """The notebooks below `folder` that ran without an error, each with its parameters, from
    papermill or by default. The others are named and left out."""
    for file in sorted(folder.rglob("*.ipynb")):
        if any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        if file.stem.endswith(".failed"):  # as a sweep names them
            say(f"left out {file}: it failed")
            continue
        try:
            notebook = nbformat.read(file, as_version=4)
        except (OSError, ValueError, AttributeError, nbformat.ValidationError) as error:
            say(f"left out {file}: not a readable notebook ({one_line(error)})")
            continue
        outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
        if any(output.get("output_type") == "error" for output in outputs):
            say(f"left out {file}: a cell of it failed")
        else:
            given = notebook.metadata.get("papermill", {}).get("parameters", {})
            yield file, notebook, {**DEFAULTS, **given}


def _build_pages(copy: Path, out: Path, strict: bool) -> Path:
    """Run Jupyter Book on the copy; on success put the new site in place of the old one."""
    log = out / "book.log"
    command = [sys.executable, "-c", BUILD, "build", str(copy), "--toc", str(copy / TOC), "--all"]
    if strict:
        command += ["-W", "-n", "--keep-going"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = COLOURS.sub("", done.stdout.decode(errors="replace"))
    log.write_text(text, encoding="utf-8")
    built = copy / "_build" / "html"
    if done.returncode != 0 or not (built / "index.html").is_file():
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        named = [line for line in lines if re.search(r"WARNING: |ERROR: |Error: ", line)]
        complaint = (named or lines or ["it printed nothing"])[-1]
        raise FedReproError(f"the book did not build: {complaint}; the whole log is {log}")
    _finish(built)
    site = out / "html"
    shutil.rmtree(site, ignore_errors=True)
    built.rename(site)
    return site / "index.html"


def _finish(built: Path) -> None:
    """Remove files that no page needs. Give each picture the description in its file, and add the
    interactive form in its file, with the script that draws it."""
    for pattern in UNREAD:
        for file in built.glob(pattern):
            file.unlink()
    live = False
    for page in built.rglob("*.html"):
        text = TWICE.sub("", page.read_text(encoding="utf-8"))
        text = PICTURE.sub(partial(_described, built), text)
        page.write_text(text, encoding="utf-8")
        live = live or FIGURE in text
    if live:
        need(find_spec("vl_convert"), "figures need Vega: pip install vl-convert-python")
        from vl_convert import javascript_bundle

        script = javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]
        script = f"(() => {{{script}}})();\n"  # its names are not the page's
        (built / "_static" / "vega.js").write_text(script, encoding="utf-8")


def _described(built: Path, found: re.Match[str]) -> str:
    with Image.open(built / "_images" / found[2]) as image:
        known = image.info
    words, caption = known.get("Description", "Figure of the cell above"), known.get("Caption", "")
    above = unescape(found.string[max(0, found.start() - 2000) : found.start()])
    said = "" if caption in above else f"{escape(caption)}. "  # a notebook prints it
    tag = found[0].replace(found[1], f'alt="{escape(words)}"')
    if LIVE not in known:
        below = f"<figcaption>{said}</figcaption>" if said else ""
        return f'<figure class="plain">{tag}{below}</figure>'
    data = known[LIVE].replace("<", "\\u003c")
    return (
        f'{FIGURE}{tag}<div class="choose"></div><div class="live"></div><figcaption>{said}'
        '<a download="figure.csv" href="#">The data of this figure (CSV)</a>'
        f'</figcaption><script type="application/json">{data}</script></figure>'
    )
