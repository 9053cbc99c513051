"""The commands `fedrepro data ...`, `records ...`, `campaign` and `bench`."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from fedrepro.base import files
from fedrepro.base.errors import FedReproError, need, one_of
from fedrepro.base.files import CHECKOUT, CLONE, LIST, LOAD, RECORDS, RUNS, TRACK
from fedrepro.base.progress import resolve
from fedrepro.report import text

data_app = typer.Typer(help="The data: what is here, how to get the rest, preparing arrays.")
records_app = typer.Typer(help="Recorded runs: pack many into few files, unpack, check.")

LONG = 60  # characters of a line that is not printed twice

Names = Annotated[list[str] | None, Argument(help="Data sets or domains; default: all.")]
Root = Annotated[
    Path | None,
    Option(
        "--root",
        "--data-root",
        help="Folder of the official files; default: $FEDREPRO_DATA or ~/.cache/fedrepro/data.",
    ),
]
Runs = Annotated[Path, Option(help="Folder of the run records.", show_default=False)]


def _there(runs: Path) -> Path:
    need(runs.is_dir(), f"no runs folder {runs}; name one with --runs")
    return runs


Known = Annotated[
    Path, Option(callback=_there, help="Folder of the run records.", show_default=False)
]


def _load(given: list[Path] | None) -> list[Path] | None:
    """Load the methods of some files, in this process and in those it starts."""
    for file in map(Path.resolve, given or ()):
        need(os.pathsep not in str(file), f"{file} has {os.pathsep!r} in its path; rename it")
        os.environ[LOAD] = os.pathsep.join(map(str, [*files.loaded(), file]))
    return given


Load = Annotated[
    list[Path] | None,
    Option(callback=_load, exists=True, dir_okay=False, help="A file with your own methods."),
]


def _track(name: str | None) -> str | None:
    """Track the runs, in this process and in those it starts."""
    if name:
        resolve(name)
        os.environ[TRACK] = name
    return name


Track = Annotated[
    str | None,
    Option(callback=_track, help="tensorboard (extra of that name): events in RUNS/<id>."),
]


def changes_of(words: Sequence[str] | None) -> dict[str, Any]:
    """Settings of a protocol from ``name=value``; values as in YAML."""
    import yaml

    found = {}
    for word in words or ():
        name, equals, value = word.partition("=")
        need(name and equals, f"--set {word}: write name=value, such as rounds=30")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date
            told = f"--set {word}: cannot read {value}; put quotes around it, as in YAML"
            raise FedReproError(told) from None
    return found


Set = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="A setting of the protocol to replace, such as rounds=30 or optimizer.lr=0.03; repeat "
        "it for others. Not at scale paper; refused where a table compares its values.",
    ),
]


@data_app.command()
def status(names: Names = None, root: Root = None) -> None:
    """What is here: hash, number of images, licence, path; also of folder:PATH."""
    from fedrepro import data

    rows = data.status(names or (), root)
    header = ("domain", "here", "hash", "images", "source", "licence", "path")
    lines = []
    for r in rows:
        facts = (r.hash, r.images, r.source, r.licence, r.path)
        shown = ("-" if fact in (None, "") else str(fact) for fact in facts)
        lines.append((r.domain, "yes" if r.present else "no", *shown))
    typer.echo(text.aligned(header, lines))
    for row in rows:
        if row.note:
            typer.echo(f"{row.domain}: {row.note.removeprefix(f'{row.domain}: ')}")


@data_app.command()
def fetch(names: Names = None, root: Root = None) -> None:
    """Download what is allowed; explain how to get the rest by hand.

    A download that fails is named, and the others continue; the exit status is then 1."""
    from fedrepro import data
    from fedrepro.data.domains import domain_names

    failed, told = False, dict[str, str]()
    for name in domain_names(names or ()):
        try:
            said, wrong = data.fetch(name, root), False
        except FedReproError as error:
            said, wrong = str(error), True
        said = said.removeprefix(f"{name}: ")
        first = told.setdefault(said, name)
        again = first != name and len(said) > LONG
        typer.echo(f"{name}: {f'as for {first}' if again else said}", err=wrong)
        failed |= wrong
    raise typer.Exit(failed)


@data_app.command()
def prepare(
    names: Names = None,
    root: Root = None,
    size: Annotated[
        list[int] | None,
        Option(help="Image size in pixels, may be repeated; default: the papers' sizes."),
    ] = None,
) -> None:
    """Turn files into arrays. This takes time only once."""
    from fedrepro import data

    for line in data.prepare(names or (), size or (), root):
        typer.echo(line)


@records_app.command()
def pack(runs: Known = RUNS) -> None:
    """Move finished runs into packed files of the same folder, with all accuracies and bytes.

    Not all is kept: other numbers are rounded to two or three digits; loss terms, test losses and
    the server's log are those of about 50 rounds; features are left out. If a notebook draws a
    run's features, their t-SNE points are kept. The notebooks' glued results are kept too."""
    from fedrepro.records import packed  # torch comes with it
    from fedrepro.report.results import collect, keep

    drawn = {
        result.record.run_id
        for study, names in collect(runs / "notebooks")
        for name in names
        if study.paper.experiment(name).kind == "features"
        for result in study.results(name)
    }
    keep(runs)
    typer.echo(f"{packed.pack(runs, drawn)} runs packed in {runs}")


@records_app.command()
def unpack(out: Annotated[Path, Option(help="Folder for the runs.")], runs: Known = RUNS) -> None:
    """Write packed runs as folders, as `fedrepro run` does, with what `pack` kept of them."""
    from fedrepro.records import packed

    typer.echo(f"{packed.unpack(runs, out)} runs in {out}")


@records_app.command()
def check(
    runs: Annotated[
        Path | None, Option(help="Default: runs/ or, if there is none, the book's records.")
    ] = None,
) -> None:
    """Compute all ids and hashes of packed runs again."""
    folder = _there(runs or (RECORDS if RECORDS.is_dir() and not RUNS.is_dir() else RUNS))
    from fedrepro.records import packed

    if wrong := packed.check(folder):
        typer.echo("\n".join(wrong))
        raise typer.Exit(1)
    count = len(packed.Pack(folder).runs)
    need(count, f"no packed runs in {folder}; name another folder, or pack its runs first")
    typer.echo(f"{count} packed runs in {folder} are complete")


def campaign(
    minutes: Annotated[
        float | None, Option(min=0, help="Stop after this many; default: at the list's end.")
    ] = None,
    show: Annotated[
        bool, Option("--list", help="Only show what is done, under way and waiting.")
    ] = False,
    runs: Runs = RUNS,
    jobs: Annotated[
        int | None, Option(min=1, help="Runs at a time; default: one per core.")
    ] = None,
    file: Annotated[Path, Option(help="The list of runs.")] = LIST,
    load: Load = None,
    root: Root = None,
) -> None:
    """Train a list of long runs in order of priority.

    Each run has a process with one thread and the lowest priority, and uses a GPU if there is one.
    If it was stopped or killed, the same command continues from the last checkpoints."""
    need(file != LIST or LIST.is_file(), f"no list {LIST}: {CLONE}, or name one with --file")
    from fedrepro import papers
    from fedrepro.campaign import read, table, train  # torch comes with it
    from fedrepro.data.manifest import data_root
    from fedrepro.sweep import cores

    todo, jobs = read(file), jobs or cores()
    named = {run.arm.method for run in todo} - papers.written()
    need(named or not load, "--load adds no row by itself: name its methods in an entry")
    files.check_runs(runs := files.full(runs).resolve())
    if root is not None:
        data_root(root)
    if show:
        typer.echo(table(todo, runs, jobs))
        return
    if failed := train(todo, runs, root, jobs, minutes, typer.echo):
        typer.echo(f"{failed} of {len(todo)} runs failed; the same command tries them again")
        raise typer.Exit(1)


def bench(
    context: typer.Context,
    name: Annotated[str | None, Argument(help="Default: list them.")] = None,
) -> None:
    """Run a benchmark by name; words after the name are passed to it."""
    import ast

    texts = {p.stem: p.read_text("utf-8") for p in (CHECKOUT / "benchmarks").glob("*.py")}
    scripts = sorted(stem for stem, code in texts.items() if "__main__" in code)
    need(scripts, f"no benchmarks in {CHECKOUT}: {CLONE}")
    if name is None:
        docs = [ast.get_docstring(ast.parse(texts[stem])) or "-" for stem in scripts]
        lines = zip(scripts, (" ".join(d.split("\n\n")[0].split()) for d in docs), strict=True)
        typer.echo(text.aligned(("benchmark", "measures"), lines))
        return
    script = str(CHECKOUT / "benchmarks" / f"{one_of(name, scripts, 'benchmark')}.py")
    done = subprocess.run([sys.executable, script, *context.args], check=False)
    raise typer.Exit(done.returncode)
