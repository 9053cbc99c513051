"""The common protocol's page: methods of all papers in one order, from the recorded notebooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.federated import metrics
from fedrepro.papers import Experiment
from fedrepro.quantities.paper_run import Study
from fedrepro.report import ranking
from fedrepro.report.notebook import show
from fedrepro.report.picture import COLOURS, GRID, Picture, label_axes, picture
from fedrepro.report.recorded import nothing, of_one_scale, runs_of
from fedrepro.report.scraps import Collected
from fedrepro.report.tables import Html

PAPER = papers.load("common")
_LINE = 0.27  # inches a method


def recorded_on(found: Collected, experiment: str) -> list[str]:
    """The data sets an experiment has notebooks of, in the protocol's order."""
    have = {book["study"]["dataset"] for book in found.notebooks if _rows(book, experiment)}
    return [name for name in PAPER.datasets if name in have]


def _rows(book: dict[str, object], experiment: str) -> list[dict[str, object]]:
    cells = book["cells"]
    assert isinstance(cells, list)
    return [row for row in cells if row["table"] == experiment]


def scores(found: Collected, experiment: str, dataset: str) -> pd.DataFrame:
    """Accuracy in percent: method, seed, column (a domain), value; without methods of which the
    training of a seed diverged."""
    frame = _frame(found, experiment, dataset)
    return frame[~frame.method.isin(_diverged(frame))]


def _diverged(frame: pd.DataFrame) -> list[str]:
    return list(frame[frame.value.isna()].method.unique())


def _frame(found: Collected, experiment: str, dataset: str) -> pd.DataFrame:
    books = of_one_scale(found, dataset, experiment).notebooks
    frame = pd.DataFrame([row for book in books for row in _rows(book, experiment)])
    if frame.empty:
        raise FedReproError(f"no notebook of the common protocol holds {experiment} on {dataset}")
    return frame[frame.column != "avg"][["method", "seed", "column", "value"]]


def table(found: Collected, experiment: str, dataset: str) -> pd.DataFrame:
    """A row a method, best first: rank with its interval, mean, spread over seeds, each domain;
    the data set's name in the corner. Those that diverged come last, without a rank."""
    frame = scores(found, experiment, dataset)
    order = ranking.ranks(frame)
    domains = frame.pivot_table(index="method", columns="column", values="value", sort=False)
    seeds = frame.groupby(["method", "seed"]).value.mean()
    shown = pd.DataFrame(
        {
            "rank": order["rank"],
            "95 % of draws": [
                f"{low:g} to {high:g}" for low, high in zip(order.low, order.high, strict=True)
            ],
            "mean": order["mean"].round(1),
            "std over seeds": seeds.groupby("method").std().reindex(order.index).round(1),
        }
    )
    shown = shown.join(domains.round(1)).rename_axis(index="method", columns=dataset)
    diverged = _diverged(_frame(found, experiment, dataset))
    shown = shown.reindex([*shown.index, *diverged])
    shown.loc[diverged, "95 % of draws"] = "diverged"
    return shown


def overall(found: Collected, experiment: str) -> pd.DataFrame | Html:
    """Mean rank over the data sets, best first, beside the rank on each."""
    if not recorded_on(found, experiment):
        return nothing()
    each = {
        dataset: ranking.ranks(scores(found, experiment, dataset))["rank"]
        for dataset in recorded_on(found, experiment)
    }
    frame = pd.DataFrame(each)
    frame.insert(0, "mean rank", frame.mean(axis=1).round(2))
    return frame.sort_values("mean rank", kind="stable").rename_axis("method")


def agreement(found: Collected, experiment: str) -> pd.DataFrame | Html:
    """Kendall's tau of our order and each paper's own, a row a printed table."""
    if not recorded_on(found, experiment):
        return nothing()
    one: Experiment = PAPER.experiment(experiment)
    known = {name: papers.load(name) for name in papers.list()}
    frames = []
    for dataset in recorded_on(found, experiment):
        mean = ranking.ranks(scores(found, experiment, dataset))["mean"].to_dict()
        rows = ranking.agreement(one, dataset, mean, known)
        frames.append(rows.assign(dataset=dataset))
    frame = pd.concat(frames, ignore_index=True)
    return frame.round({"tau": 2, "p": 2}).set_index(["dataset", "paper", "table"])


def chosen(found: Collected, experiment: str) -> pd.DataFrame | Html:
    """The tuned value by method and data set, and the validation accuracy of each value tried, in
    percent."""
    if not recorded_on(found, experiment):
        return nothing()
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for dataset in recorded_on(found, experiment):
        for label, run in runs_of(of_one_scale(found, dataset, experiment), experiment):
            if run.get("tries"):
                tries = run["tries"]
                best = metrics.best_value(tries)
                shown = {value: round(accuracy, 1) for value, accuracy in tries.items()}
                rows[label, run["dataset"]] = {"chosen": best, **shown}
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index = pd.MultiIndex.from_tuples(frame.index, names=["method", "dataset"])
    return frame.unstack().swaplevel(axis=1).sort_index(axis=1, level=0, sort_remaining=False)


def figure(found: Collected, experiment: str, dataset: str) -> Picture:
    """Ranks with their intervals, methods downwards."""
    order = ranking.ranks(scores(found, experiment, dataset))
    figure, axes = picture(0.9 + _LINE * len(order))
    ax, places = axes[0, 0], range(len(order))
    ax.hlines(places, order.low, order.high, color=COLOURS[0], linewidth=3, alpha=0.35)
    ax.plot(order["rank"], places, "o", color=COLOURS[0])
    ax.set_yticks(places, order.index)
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_xlim(0.5, len(order) + 0.5)
    ax.grid(axis="both", color=GRID)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_axes(ax, "rank (1 is best); bar: 95 % of draws", "", dataset)
    return figure


def show_each(found: Collected, experiment: str, view: Callable[..., Any]) -> None:
    """A view of every data set that has notebooks; one line where none has."""
    names = recorded_on(found, experiment)
    show([view(found, experiment, name) for name in names] or [nothing()])


# For one seed, in the notebook.


def one_seed(study: Study, experiment: str) -> pd.DataFrame:
    """Accuracy in percent, a row a method, best mean first."""
    frame = pd.DataFrame(study.cells(experiment))
    wide = frame.pivot_table(index="method", columns="column", values="value", sort=False)
    return wide.sort_values("avg", ascending=False, kind="stable").round(1)


def tried(study: Study, experiment: str) -> pd.DataFrame:
    """Validation accuracy in percent, a row a method, a column a value that was tried."""
    rows = {r.label: dict(r.tries) for r in study.results(experiment)}
    return pd.DataFrame.from_dict(rows, orient="index").round(1).rename_axis("method")
