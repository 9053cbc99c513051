"""The command line: parses arguments, calls the library, prints tables.
Heavy packages (torch, pandas, papermill) are imported inside the commands that need them."""

import signal
import sys
import traceback
from collections.abc import Collection, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tqdm import tqdm
from typer import Argument, Option
from typer.core import TyperGroup

from fedrepro import __version__, commands
from fedrepro.base.errors import OWN_METHOD, FedReproError, need, one_line, one_of
from fedrepro.base.files import CLONE, RECORDS, RUNS, full, loaded
from fedrepro.commands import Load, Root, Runs, Set, Track, changes_of
from fedrepro.report import text

if TYPE_CHECKING:
    from fedrepro.sweep import Job

_papers = partial(tqdm, unit="paper", leave=False, disable=None)  # seen in a terminal


class OneLine(TyperGroup):
    """Prints every error as one line on standard error: status 2 for the user's, 1 for ours."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        debug = "--debug" in words
        words = [word for word in words if word != "--debug"]
        try:
            status = super().main(words, *rest, **{**extra, "standalone_mode": False})
        except Exception as error:
            if debug:
                traceback.print_exc()
            status = _complain(error)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _say("interrupted: finished rounds are kept; run the same command again to continue")
            raise typer.Exit(130) from None


def _complain(error: Exception) -> int:
    """Print what is wrong and return the exit status."""
    if isinstance(error, FedReproError):
        _say(f"error: {error}")
        return 2
    if hasattr(error, "format_message"):  # a mistake in the command line itself
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "fedrepro"
        _say(f"error: {error.format_message().rstrip('.')}; see `{command} --help`")
        return 2
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) in loaded()]  # of a method's file
    where = f" in {own[-1].name}, line {own[-1].lineno} of {own[-1].filename}" if own else ""
    _say(f"error: {type(error).__name__}{where}: {one_line(error)}; --debug shows where")
    return 1


def _say(line: str) -> None:
    typer.echo(" ".join(line.split()), err=True)


def _split(
    words: list[str] | None, known: Collection[str] = (), load: Sequence[Path] | None = None
) -> list[str] | None:
    """As `text.names_in`; a folder's path may contain commas, too. load: files of methods, which
    must be named."""
    if words is None:
        need(not load, "--load adds no row by itself: name its methods with --methods")
        return None
    found = []
    for word in words:
        place = word.partition(":")[2]  # of a folder
        whole = place and full(place).is_dir()
        found += [word] if whole else text.names_in(word, known)
    need(found, f"no name in {words!r}; separate names with commas")
    for file in load or ():
        from fedrepro.papers import row_of, written_in

        idle = (own := written_in(file)) and own.isdisjoint(row_of(name)[0] for name in found)
        need(not idle, f"--methods names none of {file}: add {', '.join(sorted(own))}")
    return found


def _seeds(words: str) -> list[int]:
    """Seeds separated by commas; 0-2 means 0,1,2."""
    seeds: list[int] = []
    for word in words.split(","):
        first, dash, last = word.strip().partition("-")
        last = last if dash else first
        whole = first.isdecimal() and last.isdecimal() and 0 <= int(last) - int(first) < 1000
        need(whole, f"--seeds {words}: give whole numbers >= 0, as in 0,1,2 or 0-2")
        seeds += range(int(first), int(last) + 1)
    return list(dict.fromkeys(seeds))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedrepro {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=OneLine, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
)
app.add_typer(commands.data_app, name="data")
app.add_typer(commands.records_app, name="records")
app.command()(commands.campaign)
app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    commands.bench
)

OnlyPaper = Annotated[str | None, Option(help="Only this paper's.", parser=str.lower)]
Json = Annotated[bool, Option("--json", help="Print one JSON list of objects.")]
Datasets = Annotated[
    list[str] | None,
    Option(
        help="By commas, or repeat the option; default: the experiments' own. Or folder:PATH, your "
        "own images."
    ),
]
Scale = Annotated[
    str, Option(help="smoke (tests the code), reduced (a small network) or paper (hours per run).")
]
Device = Annotated[str, Option(help="auto, cpu or cuda.")]
Engine = Annotated[str, Option(help="auto, loop or stacked (in records: reference, fused).")]
Methods = Annotated[
    list[str] | None,
    Option(
        help="Methods or rows to run, by commas or semicolons, or repeat the option; default: all "
        "of the paper's. Any other known method gets its own row, and so does one with other "
        "fields: 'FedProx (mu=0.1)'."
    ),
]

Papers = Annotated[
    list[str], Argument(metavar="PAPERS...", help="Papers by name.", parser=str.lower)
]
Part = Annotated[str, Argument(help="Its table or figure, such as table-1; all: all that can run.")]
Seed = Annotated[int, Option(help="0 or a positive whole number.")]
Jobs = Annotated[
    int | None, Option(min=1, help="Notebooks at a time; default one per core (GPU: one).")
]
Scheduler = Annotated[str | None, Option(help="Address of a dask scheduler; default: start one.")]
Resume = Annotated[
    bool, Option("--resume", help="Skip complete notebooks, executed with the same --load.")
]


@app.callback()
def _options(
    debug: Annotated[bool, Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print it and exit.")
    ] = False,
) -> None:
    """Five papers on federated learning under feature skew, re-run and compared."""


@app.command()
def methods(
    name: Annotated[str | None, Argument(help="Only this method.")] = None,
    load: Load = None,
    as_json: Json = False,
) -> None:
    """The methods: fields, defaults, and their sources."""
    from fedrepro import papers

    if name is not None:
        name = papers.row_of(name)[0]
        one_of(name, sorted(papers.known_methods([name])), "method", OWN_METHOD)
    from fedrepro import methods as registry

    rows = [row for row in registry.describe() if name in (None, row["name"])]
    if as_json:
        typer.echo(text.as_json(rows, text.METHOD_KEYS))
        return
    for row in rows:
        typer.echo(f"{row['name']}  ({row['paper']})")
        for field in row["fields"]:
            others = ", ".join(str(other) for other in field["alternatives"])
            also = f" [also {others}]" if others else ""
            typer.echo(f"  {field['name']} = {field['default']}{also}: {field['source']}")


@app.command()
def experiments(paper: OnlyPaper = None, as_json: Json = False) -> None:
    """Every table and figure of the papers, and its state."""
    from fedrepro import papers

    rows = papers.experiments(paper)
    header = ("paper", "id", "dataset", "state", "caption", "reason")
    table = text.aligned(header, [[row[key] for key in header] for row in rows])
    typer.echo(text.as_json(rows) if as_json else table)


@app.command()
def run(
    paper: Annotated[str, Argument(help="A paper's name, such as adcol.", parser=str.lower)],
    experiment: Part = "all",
    dataset: Datasets = None,
    methods: Methods = None,
    load: Load = None,
    seed: Seed = 0,
    scale: Scale = "smoke",
    changes: Set = None,
    device: Device = "auto",
    engine: Engine = "auto",
    runs: Runs = RUNS,
    data_root: Root = None,
    track: Track = None,
) -> None:
    """Train or read runs; print their table next to the paper's.

    Recorded runs in RUNS are read, interrupted runs continue, the rest is trained."""
    from fedrepro import papers

    asks = papers.load(paper)
    how: dict[str, Any] = {"only": _split(methods, asks.labels, load)}
    how |= {"changes": changes_of(changes), "device": device, "engine": engine}
    names = _split(dataset) or papers.default_datasets(asks, experiment, scale)
    asked = [papers.Question(asks, name, scale, seed, **how) for name in names]
    todo = [(one.dataset, name) for one in asked for name in one.chosen(experiment)]
    where = f"{experiment} on {', '.join(names)}"
    need(todo, f"nothing to run for {where}; see `fedrepro experiments`")
    from fedrepro.base.progress import progress
    from fedrepro.quantities.base import study  # torch comes with it
    from fedrepro.records.record import pick_device
    from fedrepro.report.printout import result

    pick_device(device)
    how |= {"runs_dir": runs, "data_root": data_root, "progress": progress()}
    studies = [(study(paper, data, scale, seed, **how), name) for data, name in todo]
    for one, name in studies:
        one.announce([name])
    for one, name in studies:
        typer.echo(result(one, name))


@app.command("sweep")
def sweep_command(
    names: Papers,
    seeds: Annotated[str, Option(help="Seeds by commas; 0-2 means 0,1,2.")] = "0,1,2",
    scale: Scale = "smoke",
    changes: Set = None,
    dataset: Datasets = None,
    methods: Methods = None,
    load: Load = None,
    experiment: Annotated[str, Option(help="One table or figure, or all.")] = "all",
    jobs: Jobs = None,
    on: Annotated[str, Option(help="local, or dask (extra `cluster`).")] = "local",
    scheduler: Scheduler = None,
    resume: Resume = False,
    runs: Runs = RUNS,
    device: Device = "auto",
    data_root: Root = None,
    track: Track = None,
) -> None:
    """Execute a paper's notebook for many seeds.

    papermill writes them to RUNS/notebooks, one for each paper, data set and seed.

    Trained runs are kept in RUNS: executing again is cheap, and interrupted runs continue. A
    notebook that fails is kept as ...failed.ipynb and named at the end; the exit status is then 1.
    With dask every worker needs this installation and the same folders."""
    from fedrepro import papers
    from fedrepro.sweep import plan

    need(on in ("local", "dask"), f"cannot run on {on!r}; choose from local, dask")
    need(scheduler is None or on == "dask", "a scheduler is used with dask only; add --on dask")
    labels = {label for name in names for label in papers.load(name).labels}
    changed = changes_of(changes)
    common = {
        "experiment": experiment,
        "methods": _split(methods, labels, load),
        "scale": scale,
        **({"changes": changed} if changed else {}),
        "device": device,
        "data_root": str(full(data_root).resolve()) if data_root else None,
        "runs_dir": str(full(runs).resolve()),
    }
    planned = plan(names, _split(dataset), _seeds(seeds), common)
    _execute(planned, workers=jobs, resume=resume, on=on, scheduler=scheduler)


def _execute(planned: "Sequence[Job]", **how: Any) -> None:
    """Run a sweep, show its progress, and exit with its status."""
    from fedrepro.records.record import pick_device
    from fedrepro.report.printout import MEANS, over_seeds
    from fedrepro.sweep import summary, sweep

    if how["on"] == "local":
        pick_device(planned[0].parameters["device"])
    ended, every = [], len(planned)
    try:
        with closing(sweep(planned, **how)) as running:  # an interrupt here ends the notebooks too
            bar = tqdm(running, total=every, unit="notebook", disable=None)
            for outcome in bar:  # seen in a terminal; elsewhere there is a line for each
                ended.append(outcome)
                line = f"{outcome.job.output.stem}  {outcome.state}"
                bar.set_postfix_str(line)
                if bar.disable:
                    line = f"{len(ended)}/{every}  {line}  {outcome.seconds:.1f} s"
                    typer.echo(line, err=True)
    except KeyboardInterrupt:
        _say(
            f"interrupted: {len(ended)} of {every} notebooks ended, finished rounds are kept; run "
            "the same command again with --resume"
        )
        raise typer.Exit(130) from None
    ended.sort(key=lambda outcome: planned.index(outcome.job))
    typer.echo(summary(ended))
    if rows := over_seeds(planned[0].output.parent, [job.path for job in ended if job.path]):
        typer.echo(f"\n{text.aligned(MEANS, rows)}")
    if any(outcome.state == "failed" for outcome in ended):
        raise typer.Exit(1)


@app.command()
def verdicts(
    paper: OnlyPaper = None,
    as_json: Json = False,
    notebooks: Annotated[
        Path | None,
        Option(
            help="Folder of executed notebooks; default: the book's recorded ones and "
            "runs/notebooks."
        ),
    ] = None,
) -> None:
    """Every published cell: the paper's value, ours, the verdict, why."""
    from fedrepro import papers

    there = notebooks is None or notebooks.is_dir()
    need(there, f"no folder {notebooks}; run `fedrepro sweep` or correct --notebooks")
    wanted = [papers.load(name) for name in ([paper] if paper else papers.names())]
    from fedrepro.report.printout import cell_lines, published_cells  # torch comes with it

    own = [notebooks.resolve()] if notebooks else []
    own = [at / "notebooks" if (at / "notebooks").is_dir() else at for at in own]  # of runs, too
    places = own or [RECORDS / "notebooks", RUNS / "notebooks"]
    rows = published_cells(places, _papers(wanted))
    typer.echo(text.as_json(rows, text.CELL_KEYS) if as_json else cell_lines(rows))


@app.command()
def claims(paper: OnlyPaper = None, as_json: Json = False) -> None:
    """What the papers claim: holds, contradicted or open, and why."""
    from fedrepro import papers

    need(RECORDS.is_dir(), f"no recorded runs in {RECORDS}: {CLONE}")
    names = [papers.load(name).name for name in ([paper] if paper else papers.names())]
    from fedrepro.report.claims import of_recorded  # torch comes with it
    from fedrepro.report.printout import claim_lines

    answers = [answer for name in _papers(names) for answer in of_recorded(name)]
    shown = text.as_json([a.row() for a in answers]) if as_json else claim_lines(answers)
    typer.echo(shown, nl=as_json)


@app.command()
def book(
    runs: Annotated[
        Path | None,
        Option(help="Your own run records, added as pages; default: runs/ if it exists."),
    ] = None,
    show: Annotated[bool, Option("--open", help="Open its first page.")] = False,
) -> None:
    """Build the site from recorded runs.

    Prints the path of its first page."""
    from fedrepro.pages import build_book

    page = build_book(runs or (RUNS if RUNS.is_dir() else None), say=_say)
    typer.echo(str(page))
    if show:
        typer.launch(page.as_uri())


def main() -> None:
    """The entry point `fedrepro`."""
    # Both, because a shell may start a background job that ignores SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    app()


if __name__ == "__main__":
    main()
