"""The commands `fedrepro records ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrepro.base.errors import FedReproError

app = typer.Typer(help="Recorded runs: many in few files, and back.")
Runs = Annotated[Path, typer.Option(help="Folder of the run records.")]


@app.command()
def pack(runs: Runs = Path("runs")) -> None:
    """Move finished runs into packed files of the same folder. Features are left out; of runs whose
    features a notebook draws, t-SNE points are kept. What the notebooks glued is kept beside
    them."""
    from fedrepro.records.packed import pack as packed
    from fedrepro.report.results import collect, keep

    found = collect(_there(runs) / "notebooks")
    drawn = {
        result.record.run_id
        for study, names in found.studies
        for name in names
        if study.paper.experiment(name).kind == "features"
        for result in study.results(name)
    }
    keep(runs)
    typer.echo(f"{packed(runs, drawn)} runs packed in {runs}")


@app.command()
def unpack(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")], runs: Runs = Path("runs")
) -> None:
    """Write packed runs as folders, as `fedrepro run` leaves them but for features."""
    from fedrepro.records.packed import unpack as unpacked

    typer.echo(f"{unpacked(_there(runs), out)} runs in {out}")


@app.command()
def check(runs: Runs = Path("runs")) -> None:
    """Compute all ids and hashes of packed runs again."""
    from fedrepro.records.packed import Pack
    from fedrepro.records.packed import check as checked

    wrong = checked(_there(runs))
    if wrong:
        typer.echo("\n".join(wrong))
        raise typer.Exit(1)
    typer.echo(f"{len(Pack(runs).runs)} packed runs are whole")


def _there(runs: Path) -> Path:
    if not runs.is_dir():
        raise FedReproError(f"no runs folder {runs}; name one with --runs")
    return runs
