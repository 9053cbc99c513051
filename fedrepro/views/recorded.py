"""Views of the recorded notebooks for the book's result pages. Nothing is trained here; every
number comes from what the executed notebooks glued."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro import papers, verdicts
from fedrepro.runs.environment import describe_build
from fedrepro.views import plots
from fedrepro.views.notebook import show
from fedrepro.views.picture import Picture
from fedrepro.views.scraps import Collected, collect
from fedrepro.views.tables import Html, beside_table

__all__ = ["notebooks", "show"]

FOLDER = Path(__file__).resolve().parents[2] / "book" / "runs"
DRIFT = FOLDER / "drift.json"
NOTHING = "No run is recorded yet for this."


def notebooks(paper: str | None = None, folder: Path | None = None) -> Collected:
    """The executed notebooks that are kept with the book. Runs at scale smoke are left out: they
    check the path and are no results."""
    found = collect(folder or FOLDER / "notebooks", paper)
    return Collected(book for book in found.notebooks if book["study"]["scale"] != "smoke")


def _nothing() -> Html:
    return Html(f"<p><em>{NOTHING}</em></p>", NOTHING)


def _cells(found: Collected, experiment: str) -> list[dict[str, Any]]:
    return [row for book in found.notebooks for row in book["cells"] if row["table"] == experiment]


def _built(found: Collected, experiment: str) -> pd.DataFrame:
    paper = papers.load("adcol" if not found.notebooks else found.notebooks[0]["study"]["paper"])
    table = paper.experiment(experiment).table or experiment
    rows = [{**row, "table": table} for row in _cells(found, experiment)]
    return verdicts.build_table(paper, table, rows)


def overview(found: Collected) -> pd.DataFrame:
    """What is recorded: notebooks by data set, scale and seed."""
    rows = [book["study"] for book in found.notebooks]
    columns = ["dataset", "scale", "seeds", "runs"]
    if not rows:
        return pd.DataFrame(columns=columns)
    frame = pd.DataFrame(rows).assign(runs=[len(book["runs"]) for book in found.notebooks])
    grouped = frame.sort_values("seed").groupby(["dataset", "scale"], as_index=False)
    return grouped.agg(
        seeds=("seed", lambda s: ", ".join(map(str, s))), runs=("runs", "sum")
    ).set_index("dataset")


def table(found: Collected, experiment: str) -> Html:
    """A printed table beside the seeds of each data set and scale it was run at."""
    paper = papers.load("adcol" if not found.notebooks else found.notebooks[0]["study"]["paper"])
    caption = f"{paper.short}, {experiment}: {paper.experiment(experiment).caption}"
    return beside_table(_built(found, experiment), caption)


def headline(found: Collected, experiments: dict[str, str]) -> str:
    """The mean column of some tables as Markdown, ours beside the paper's: for the README, which a
    test holds to this. experiments: a heading by experiment id."""
    parts = []
    for experiment, heading in experiments.items():
        rows = _built(found, experiment)
        rows = rows[(rows.column == "avg") & rows.ours.notna()].set_index("method")
        paper = [f"{row.published:.1f} ± {row.published_std:.1f}" for row in rows.itertuples()]
        ours = [f"{row.ours:.1f} ± {row.ours_std:.1f}" for row in rows.itertuples()]
        parts.append(pd.DataFrame({f"{heading}: paper": paper, "re-run": ours}, index=rows.index))
    table = pd.concat(parts, axis=1)
    lines = [["method", *table.columns], ["---"] * (1 + table.shape[1])]
    lines += [[str(name), *row] for name, row in zip(table.index, table.to_numpy(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _each(frame: pd.DataFrame, draw: Callable[[pd.DataFrame], Picture]) -> list[Picture]:
    """A picture a (data set, scale) that has numbers of ours."""
    ran = frame[frame.ours.notna()] if "ours" in frame else frame
    groups = ran[["dataset", "scale"]].drop_duplicates().itertuples(index=False)
    return [draw(frame[(frame.dataset == d) & (frame.scale == s)]) for d, s in groups]


def figure(
    found: Collected, experiment: str, draw: Callable[[pd.DataFrame], Picture]
) -> Picture | Html | None:
    """A figure of a table (`plots.beside`, `plots.seconds`)."""
    return _shown(_each(_built(found, experiment), draw))


def ranks(found: Collected, experiment: str) -> Picture | Html | None:
    """The order of the methods in the mean column, ours beside the paper's."""
    return _shown(_each(verdicts.order(_built(found, experiment)), plots.order))


def _shown(pictures: list[Picture]) -> Picture | Html | None:
    if not pictures:
        return _nothing()
    show(pictures[:-1])
    return pictures[-1]


def curves(found: Collected, experiment: str, dataset: str, x: Any) -> Picture | Html:
    """Accuracy while training, over rounds or bytes."""
    frame = found.where(dataset=dataset).curves(experiment)
    return _nothing() if frame.empty else plots.curves(frame, x=x)


def sweep(found: Collected, experiment: str, dataset: str, xlabel: str) -> Picture | Html:
    """Mean accuracy against one varied setting."""
    rows = pd.DataFrame(_cells(found.where(dataset=dataset), experiment))
    if rows.empty:
        return _nothing()
    rows = rows[rows.column == "avg"].rename(columns={"method": "label"})
    return plots.sweep(rows[["label", "seed", "value"]], xlabel)


def embedding(found: Collected, dataset: str, by: Any) -> Picture | Html:
    """Test representations in the plane, of the first seed."""
    books = [b for b in found.where(dataset=dataset).notebooks if b.get("embedding")]
    return plots.embedding(pd.DataFrame(books[0]["embedding"]), by=by) if books else _nothing()


def samples(found: Collected, dataset: str) -> Html:
    """The sample grid of a data set."""
    books = found.where(dataset=dataset)
    return books.picture("samples") if books.notebooks else _nothing()


def counts(found: Collected, dataset: str) -> pd.DataFrame | Html:
    """Images by domain, split and class."""
    books = found.where(dataset=dataset).notebooks
    if not books:
        return _nothing()
    frame = pd.DataFrame(books[0]["counts"])
    return frame.pivot_table(
        index=["domain", "split"], columns="class", values="images", aggfunc="sum", sort=False
    ).rename_axis(columns=None)


def drift() -> pd.DataFrame | Html:
    """Accuracy of a network trained on one embedded domain and tested on another."""
    return pd.read_json(DRIFT, orient="index").round(1) if DRIFT.exists() else _nothing()


def scales(paper: str, dataset: str) -> pd.DataFrame:
    """The settings in which the scales of a protocol differ."""
    one = papers.load(paper)
    table = pd.DataFrame(
        {
            scale: one.sources(dataset, scale).set_index("setting").value
            for scale in ("paper", "reduced", "smoke")
        }
    )
    return table[table.nunique(axis=1) > 1]


def claims(paper: str) -> Html:
    """What the paper says it shows, in our words, and where."""
    one = papers.load(paper)
    rows = "".join(
        f"<tr><td>{escape(claim.claim)}</td><td>{escape(claim.where)}</td></tr>\n"
        for claim in one.claims
    )
    head = '<thead><tr><th scope="col">claim</th><th scope="col">where</th></tr></thead>'
    return Html(f'<table class="protocol">{head}<tbody>{rows}</tbody></table>', "claims")


# Execution facts.


def executions(found: Collected) -> pd.DataFrame | Html:
    """Date, machine, versions and commit, a row a group of runs that share them."""
    rows = [
        {
            "paper": book["study"]["paper"],
            "dataset": run["dataset"],
            "scale": run["scale"],
            "date": run["environment"]["date"][:10],
            "machine": f"{run['environment']['device']}, {run['environment']['threads']} thread",
            "python": run["environment"]["python"],
            **{k: run["environment"]["packages"][k] for k in ("torch", "torchvision", "numpy")},
            "commit": (run["environment"]["commit"] or "unknown")[:10]
            + (" (changed files)" if run["environment"]["dirty"] else ""),
        }
        for book in found.notebooks
        for run in Collected([book]).runs
    ]
    if not rows:
        return _nothing()
    frame = pd.DataFrame(rows).fillna("none")
    return frame.groupby(list(frame.columns), sort=False).size().rename("runs").reset_index()


def hashes(found: Collected) -> pd.DataFrame | Html:
    """The data behind the runs."""
    rows = {
        (run["dataset"], run["scale"], what): {"sha256": value[:16]}
        for run in found.runs
        for what, value in run["hashes"].items()
    }
    if not rows:
        return _nothing()
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.names = ["dataset", "scale", "what"]
    return frame


def every_run(found: Collected) -> pd.DataFrame | Html:
    """Id, method, seed and mean accuracy under all four score rules, a row a run."""
    rows = [
        {
            "run id": run["run_id"],
            "dataset": run["dataset"],
            "scale": run["scale"],
            "run": run["label"],
            "seed": run["seed"],
            "rounds": run["rounds"],
            **{rule: round(score["avg"], 2) for rule, score in run["scores"].items()},
        }
        for run in found.runs
    ]
    if not rows:
        return _nothing()
    frame = pd.DataFrame(rows).rename(columns={"best-test": "best-test (optimistic)"})
    return frame.set_index("run id").sort_values(["dataset", "scale", "run", "seed"])


def this_build() -> pd.DataFrame:
    """Date, versions and commit of the machine that builds the pages."""
    return pd.Series(describe_build(), name="").to_frame().rename_axis("fact")
