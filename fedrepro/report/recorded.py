"""Views of the recorded notebooks for the book's result pages. Nothing is trained here; every
number comes from what the executed notebooks glued. What is not recorded is said to be so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.quantities.cells import wide
from fedrepro.report import ablations, plots, verdicts
from fedrepro.report.notebook import show
from fedrepro.report.picture import Picture
from fedrepro.report.scraps import Collected, collect
from fedrepro.report.sections import sections, spread
from fedrepro.report.tables import Html, beside_table

__all__ = ["notebooks", "show"]

FOLDER = Path(__file__).resolve().parents[2] / "book" / "runs"
DRIFT = FOLDER / "drift.json"
SHARED = FOLDER / "shared-digits.json"
NOTHING = "No run is recorded yet for this."


class Found(Collected):
    """Recorded notebooks, and the paper a page asked for (None: every paper's)."""

    def __init__(self, notebooks: Iterable[dict[str, Any]], paper: str | None = None) -> None:
        super().__init__(notebooks)
        self.paper = paper

    def where(self, **facts: Any) -> Found:
        return Found(super().where(**facts).notebooks, self.paper)


def notebooks(paper: str | None = None, folder: Path | None = None) -> Found:
    """The executed notebooks that are kept with the book. Runs at scale smoke are left out: they
    check the path and are no results."""
    found = collect(folder or FOLDER / "notebooks", paper)
    kept = [book for book in found.notebooks if book["study"]["scale"] != "smoke"]
    return Found(kept, paper)


def _paper(found: Collected) -> papers.Paper:
    """The paper a page asked for; where it named none, the one all notebooks are of."""
    names = {book["study"]["paper"] for book in found.notebooks}
    if isinstance(found, Found) and found.paper is not None:
        names = {found.paper}
    if len(names) != 1:
        raise FedReproError("a table is of one paper; name it, as in notebooks('adcol')")
    return papers.load(names.pop())


def nothing(printed: str = "") -> Html:
    """The line for what is not recorded; printed: the paper's own table, folded away under it."""
    return Html(f"<p><em>{NOTHING}</em></p>{_folded(printed) if printed else ''}", NOTHING)


def _folded(printed: str) -> str:
    return f"<details><summary>The printed numbers</summary>\n{printed}</details>"


def of_one_scale(found: Collected, dataset: str, experiment: str | None = None) -> Collected:
    """The notebooks on a data set, for one figure, whose scales must not mix: those at scale paper
    once they hold every row (of an experiment) that those at reduced hold, else the latter."""
    full, rest = (found.where(dataset=dataset, scale=scale) for scale in ("paper", "reduced"))
    rows = [
        {(row["table"], row["method"]) for row in _cells(books, experiment)}
        for books in (full, rest)
    ]
    return full if rows[0] >= rows[1] else rest


def _cells(found: Collected, experiment: str | None) -> list[dict[str, Any]]:
    return [
        row
        for book in found.notebooks
        for row in book["cells"]
        if experiment in (None, row["table"])
    ]


def runs_of(found: Collected, experiment: str) -> list[tuple[str, dict[str, Any]]]:
    """The runs of an experiment, each with its label there."""
    return [(name, run) for run in found.runs for used, name in run["used"] if used == experiment]


def built(found: Collected, experiment: str) -> pd.DataFrame:
    """A printed table beside our runs, as `verdicts.build_table` gives it."""
    paper = _paper(found)
    table = paper.experiment(experiment).table or experiment
    rows = [{**row, "table": table} for row in _cells(found, experiment)]
    return verdicts.build_table(paper, table, rows)


def overview(found: Collected) -> pd.DataFrame | Html:
    """What is recorded: seeds and different runs by data set and scale; no runs where all is
    counted."""
    if not found.notebooks:
        return nothing()
    rows = [
        {**book["study"], "run": run}
        for book in found.notebooks
        for run in [run["run_id"] for run in book["runs"]] or [None]
    ]
    frame = pd.DataFrame(rows).sort_values("seed")
    grouped = frame.groupby(["dataset", "scale"], as_index=False)
    return grouped.agg(
        seeds=("seed", lambda seeds: ", ".join(map(str, seeds.unique()))),
        runs=("run", "nunique"),
    ).set_index("dataset")


def table(found: Collected, experiment: str) -> Html:
    """A printed table beside the seeds of each data set and scale it was run at; the printed one,
    folded away, where it was not run, or only on other data."""
    paper = _paper(found)
    caption = f"{paper.short}, {experiment}: {paper.experiment(experiment).caption}"
    rows = built(found, experiment)
    shown = beside_table(rows, caption)
    if not _cells(found, experiment):
        return nothing(shown.html)
    if not all(section.bare for section in sections(rows)):
        return shown
    table = paper.experiment(experiment).table
    printed = verdicts.build_table(paper, table, []) if table else pd.DataFrame()
    if printed.empty:
        return shown
    return Html(shown.html + _folded(beside_table(printed, caption).html), shown.summary)


def beside(found: Collected, experiment: str, columns: Sequence[str] = ("avg",)) -> Picture | Html:
    """Of each data set a table was run on: the table, its figure, and the order of the methods in
    some columns. One line where it was not run."""
    shown: list[Picture | Html] = []
    for dataset in dict.fromkeys(row["dataset"] for row in _cells(found, experiment)):
        here = found.where(dataset=dataset)
        rows = built(here, experiment)
        shown += [table(here, experiment), *_each(rows, plots.beside)]
        for column in columns:
            shown += _orders(rows, column)
    return _shown(shown) if shown else table(found, experiment)


def headline(found: Collected, experiments: dict[str, str], scale: str = "reduced") -> str:
    """The mean column of some tables as Markdown, ours of one scale beside the paper's: for the
    README, which a test holds to this. experiments: a heading by experiment id."""
    parts = []
    for experiment, heading in experiments.items():
        rows = built(found.where(scale=scale), experiment)
        rows = rows[(rows.column == "avg") & rows.ours.notna()].set_index("method")
        paper = [f"{row.published:.1f} ± {row.published_std:.1f}" for row in rows.itertuples()]
        ours = [f"{row.ours:.1f} ± {row.ours_std:.1f}" for row in rows.itertuples()]
        parts.append(pd.DataFrame({f"{heading}: paper": paper, "re-run": ours}, index=rows.index))
    table = pd.concat(parts, axis=1)
    lines = [["method", *table.columns], ["---"] * (1 + table.shape[1])]
    lines += [[str(name), *row] for name, row in zip(table.index, table.to_numpy(), strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def across(
    found: Collected, experiment: str, datasets: Sequence[str], column: str = "avg"
) -> pd.DataFrame | Html:
    """Our means of one column on two data sets side by side, and the second less the first: what a
    reading of the data is worth. Only methods and scales that both have."""
    rows = built(found, experiment)
    rows = rows[(rows.column == column) & rows.ours.notna() & rows.dataset.isin(datasets)]
    pair = rows.pivot(index=["scale", "method"], columns="dataset", values="ours")
    pair = pair.reindex(index=list(dict.fromkeys(zip(rows.scale, rows.method, strict=True))))
    pair = pair.reindex(columns=list(datasets)).astype(float).dropna()
    if pair.empty:
        return nothing()
    pair["difference"] = pair[datasets[1]] - pair[datasets[0]]
    return pair.round(1).rename_axis(index=["scale", "method"], columns=None)


def rules(found: Collected, experiment: str, dataset: str) -> pd.DataFrame | Html:
    """Mean accuracy under each score rule, mean and deviation over seeds: a row a label."""
    rows = [
        {"method": label, "rule": rule, "value": score["avg"]}
        for label, run in runs_of(of_one_scale(found, dataset, experiment), experiment)
        for rule, score in run["scores"].items()
    ]
    if not rows:
        return nothing()
    frame = pd.DataFrame(rows)
    grouped = frame.groupby(["method", "rule"], sort=False).value
    text = [
        spread(mean, std, "percent")
        for mean, std in zip(grouped.mean(), grouped.std(), strict=True)
    ]
    shown = pd.Series(text, index=grouped.mean().index).unstack("rule", fill_value="–")
    shown = shown.reindex(index=frame.method.unique(), columns=frame.rule.unique())
    return shown.rename(columns={"best-test": "best-test (optimistic)"}).rename_axis(columns=None)


def numbers(found: Collected, experiment: str, dataset: str) -> pd.DataFrame | Html:
    """Our numbers of what the paper draws and does not print: means over seeds, a row a label."""
    rows = _cells(of_one_scale(found, dataset, experiment), experiment)
    return wide(rows).round(3) if rows else nothing()


# Figures.


def _each(frame: pd.DataFrame, draw: Callable[[pd.DataFrame], Picture]) -> list[Picture]:
    """A picture a (data set, scale) that has numbers of ours."""
    ran = frame[frame.ours.notna()] if "ours" in frame else frame
    groups = ran[["dataset", "scale"]].drop_duplicates().itertuples(index=False)
    return [draw(frame[(frame.dataset == d) & (frame.scale == s)]) for d, s in groups]


def figure(
    found: Collected, experiment: str, draw: Callable[[pd.DataFrame], Picture]
) -> Picture | Html:
    """A figure of a table (`plots.beside`, `plots.seconds`)."""
    return _shown(_each(built(found, experiment), draw))


def ranks(found: Collected, experiment: str, column: str = "avg") -> Picture | Html:
    """The order of the methods in one column, ours beside the paper's."""
    return _shown(_orders(built(found, experiment), column))


def _orders(rows: pd.DataFrame, column: str) -> list[Picture]:
    order = verdicts.order(rows)
    order = order[(order.column == column) & (order.methods > 1)]
    return _each(order, lambda rows: plots.order(rows, column))


def _shown(things: Sequence[Picture | Html]) -> Picture | Html:
    """The last of several things, as a cell's value; those before it are displayed."""
    if not things:
        return nothing()
    show(things[:-1])
    return things[-1]


def curves(found: Collected, experiment: str, dataset: str, x: Any) -> Picture | Html:
    """Accuracy while training, over rounds or bytes."""
    frame = of_one_scale(found, dataset, experiment).curves(experiment)
    return nothing() if frame.empty else plots.curves(frame, x=x)


def _means(found: Collected, experiment: str, dataset: str) -> pd.DataFrame:
    """Mean accuracy of each arm and seed: label, seed, value."""
    rows = [
        row
        for row in _cells(of_one_scale(found, dataset, experiment), experiment)
        if row["column"] == "avg"
    ]
    frame = pd.DataFrame(rows, columns=["method", "seed", "value"])
    return frame.rename(columns={"method": "label"})


def sweep(found: Collected, experiment: str, dataset: str, xlabel: str) -> Picture | Html:
    """Mean accuracy against one varied setting."""
    frame = _means(found, experiment, dataset)
    return nothing() if frame.empty else plots.sweep(frame, xlabel)


def grid(found: Collected, experiment: str, dataset: str, printed: str) -> Picture | Html:
    """Mean accuracy over a grid of two settings; printed: the table with what the paper says of
    some of them."""
    frame = _means(found, experiment, dataset)
    cells = {row.method: row.cells[0].value for row in _paper(found).table(printed).rows}
    known = {label: value for label, value in cells.items() if value is not None}
    return nothing() if frame.empty else ablations.heat_map(frame, known)


def by_domain(found: Collected, experiment: str, dataset: str) -> Picture | Html:
    """Accuracy of each arm domain by domain, under the paper's own score rule."""
    rule = str(_paper(found).reporting["score_rule"].value)
    rows = [
        {"method": label, "seed": run["seed"], "column": column, "value": value}
        for label, run in runs_of(of_one_scale(found, dataset, experiment), experiment)
        for column, value in run["scores"].get(rule, {}).items()
    ]
    return ablations.by_domain(rows) if rows else nothing()


def radar(found: Collected, experiment: str, dataset: str) -> Picture | Html:
    """Accuracy of each arm domain by domain around a centre."""
    rows = _cells(of_one_scale(found, dataset, experiment), experiment)
    return ablations.radar(rows) if rows else nothing()


def picture(found: Collected, dataset: str, name: str) -> Html:
    """A figure that the executed notebooks of a data set hold."""
    books = [b for b in of_one_scale(found, dataset).notebooks if f"picture-{name}" in b]
    return Collected(books).picture(name) if books else nothing()


def in_and_out(
    found: Collected, experiment: str, dataset: str, xlabel: str, reference: str = ""
) -> Picture | Html:
    """Accuracy out of and in the clients' domains against a varied setting, a picture each.
    reference: an arm that has not got the setting, drawn as a level line."""
    frame = pd.DataFrame(_cells(of_one_scale(found, dataset, experiment), experiment))
    pictures = []
    for column in ("out of domain", "in domain") if len(frame) else ():
        rows = frame[frame.column == column]
        label = rows.method.str.replace(r"^(\w+) ([\d.]+)$", r"\1=\2", regex=True)
        rows = rows.assign(label=label)[["label", "seed", "value"]]
        level = rows[rows.label == reference]
        rows = rows[rows.label != reference]
        places = dict.fromkeys(str(name).rpartition(", ")[2] for name in rows.label)
        lines = [level.assign(label=f"{reference}, {place}") for place in places if len(level)]
        rows = pd.concat([*lines, rows], ignore_index=True)
        if len(rows):
            pictures.append(plots.sweep(rows, xlabel, ylabel=f"accuracy {column} (fraction)"))
    return _shown(pictures)


def traffic(found: Collected, experiment: str, dataset: str) -> Picture | Html:
    """What travelled in the whole run, all clients together, by kind of message."""
    rows = [
        {"label": label, "seed": run["seed"], "kind": kind, "bytes": sent}
        for label, run in runs_of(of_one_scale(found, dataset, experiment), experiment)
        for kind, sent in run["bytes"].items()
    ]
    return plots.traffic(pd.DataFrame(rows), log=True) if rows else nothing()


def embedding(found: Collected, dataset: str, *by: Any) -> Picture | Html:
    """Test representations in the plane, of the first seed: a picture for domains, for classes."""
    kept = of_one_scale(found, dataset).notebooks
    books = [book["embedding"] for book in kept if book.get("embedding")]
    return _shown([plots.embedding(pd.DataFrame(books[0]), by=one) for one in by if books])


# The data.


def counts(found: Collected, dataset: str) -> pd.DataFrame | Html:
    """Images by domain, split and class."""
    books = of_one_scale(found, dataset).notebooks
    if not books:
        return nothing()
    frame = pd.DataFrame(books[0]["counts"])
    return frame.pivot_table(
        index=["domain", "split"], columns="class", values="images", aggfunc="sum", sort=False
    ).rename_axis(columns=None)


def drift() -> pd.DataFrame | Html:
    """Accuracy of a network trained on one embedded domain and tested on another."""
    return pd.read_json(DRIFT, orient="index").round(1) if DRIFT.exists() else nothing()


def shared_digits() -> pd.DataFrame | Html:
    """Test images of one domain whose digit another trains on, in a protocol's data."""
    return pd.read_json(SHARED).set_index("protocol") if SHARED.exists() else nothing()


# What the papers' files say.


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
    found = papers.load(paper).claims
    return _prose(("claim", "where"), [(one.claim, one.where) for one in found], "claims")


def blocked(paper: str) -> Html:
    """The tables and figures that are not run, and why."""
    found = [e for e in papers.load(paper).experiments if e.state != "runs"]
    rows = [(f"{e.id}: {e.caption}", e.reason) for e in found]
    return _prose(("table or figure", "why it is not run"), rows, "what is not run")


def _prose(head: Sequence[str], rows: Iterable[Sequence[str]], summary: str) -> Html:
    """A table of sentences."""
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    lines = ("".join(f"<td>{escape(text)}</td>" for text in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    text = f'<table class="protocol"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>'
    return Html(text, summary)
