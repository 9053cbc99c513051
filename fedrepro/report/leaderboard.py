"""The common protocol's page: methods of all papers in one order, with bootstrap intervals, and its
agreement with the papers' printed orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from scipy import stats

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.federated import metrics
from fedrepro.papers import Experiment, Paper
from fedrepro.quantities.base import wide
from fedrepro.quantities.paper_run import Study
from fedrepro.report.picture import COLOURS, GRID, Picture, label_axes, picture
from fedrepro.report.results import Results
from fedrepro.report.tables import Html
from fedrepro.report.views import nothing, show

DRAWS = 4000
INTERVAL = (2.5, 97.5)  # percentiles


def ranks(scores: pd.DataFrame, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Methods, best mean accuracy first: columns mean, rank, low, high.

    scores: method, seed, column (a domain) and value in percent, one row each. Ties share the mean
    rank. low, high: the 95 % percentile interval of the rank when seeds and domains are both drawn
    with replacement, the same ones for every method.

    Raises:
        FedReproError: a method has no value for a seed or a domain of another.
    """
    table = scores.pivot(index="method", columns=["seed", "column"], values="value")
    full = pd.MultiIndex.from_product([scores.seed.unique(), scores.column.unique()])
    missing = table.reindex(columns=full).isna().any(axis=1)
    if missing.any():
        raise FedReproError(
            f"{', '.join(table.index[missing])} have no value for a seed or a domain of others; "
            "run them with the same seeds"
        )
    seeds, domains = (len(level) for level in full.levels)
    values = table[full].to_numpy(float).reshape(len(table), seeds, domains)
    rng = np.random.default_rng(seed)
    s = rng.integers(seeds, size=(draws, seeds, 1))
    d = rng.integers(domains, size=(draws, 1, domains))
    drawn = stats.rankdata(-values[:, s, d].mean(axis=(2, 3)).round(9), axis=0)
    low, high = np.percentile(drawn, INTERVAL, axis=1, method="nearest")
    means = values.mean(axis=(1, 2)).round(9)
    found = {"mean": means, "rank": stats.rankdata(-means), "low": low, "high": high}
    return pd.DataFrame(found, index=table.index).sort_values("rank", kind="stable")


def printed(paper: Paper, table: str, column: str = "avg") -> dict[str, float]:
    """A printed column by method, for the rows that are one method."""
    experiment = next(e for e in paper.experiments if e.table == table)
    arms = [arm for arm in paper.arm_specs(experiment.id) if not arm.alternative]
    methods = [arm.method for arm in arms]
    cells = {a.method: paper.table(table).cell(a.label, column) for a in arms}
    return {
        method: cell.value
        for method, cell in cells.items()
        if cell is not None and cell.value is not None and methods.count(method) == 1
    }


def compared(experiment: Experiment, dataset: str, ours: Mapping[str, float]) -> pd.DataFrame:
    """Kendall's tau-b of our order of methods and each paper's, for the methods in both.

    ours: mean accuracy by method. Columns paper, table, methods, tau, p (two-sided, of tau = 0),
    best here, best there; one row per table that `experiment.compared` lists for the data set.
    """
    rows = []
    for name, table, column in experiment.compared.get(dataset, ()):
        paper = papers.load(name)
        theirs = printed(paper, table, column)
        both = [method for method in ours if method in theirs]
        mine, other = ([source[m] for m in both] for source in (ours, theirs))
        tau, p = stats.kendalltau(mine, other) if len(both) > 1 else (np.nan, np.nan)
        rows.append(
            {
                "paper": paper.short,
                "table": table,
                "methods": len(both),
                "tau": float(tau),
                "p": float(p),
                "best here": max(both, key=lambda m: ours[m], default=""),
                "best there": max(both, key=lambda m: theirs[m], default=""),
            }
        )
    return pd.DataFrame(rows)


# The recorded seeds together.


def datasets(found: Results, experiment: str) -> list[str]:
    """The data sets with runs of an experiment, in the protocol's order."""
    have = {study.dataset for study in found.holding(experiment)}
    return [name for name in found.paper.datasets if name in have]


def scores(found: Results, experiment: str, dataset: str) -> tuple[pd.DataFrame, list[str]]:
    """Accuracy in percent: method, seed, column (a domain), value. Second: the methods with a
    diverged seed, which are left out."""
    frame = pd.DataFrame(found.of_one_scale(dataset, experiment).cells(experiment))
    if frame.empty:
        raise FedReproError(f"no notebook of the common protocol has {experiment} on {dataset}")
    frame = frame[frame.column != "avg"][["method", "seed", "column", "value"]]
    diverged = list(frame[frame.value.isna()].method.unique())
    return frame[~frame.method.isin(diverged)], diverged


def table(found: Results, experiment: str, dataset: str) -> pd.DataFrame:
    """One row per method, best first: rank with its interval, mean, spread over seeds, each domain;
    the data set's name in the corner. Diverged methods come last, without a rank."""
    frame, diverged = scores(found, experiment, dataset)
    order = ranks(frame)
    domains = frame.pivot_table(index="method", columns="column", values="value", sort=False)
    seeds = frame.groupby(["method", "seed"]).value.mean().groupby("method").std()
    drawn = [f"{low:g} to {high:g}" for low, high in zip(order.low, order.high, strict=True)]
    shown = pd.DataFrame(
        {
            "rank": order["rank"],
            "95 % of draws": drawn,
            "mean": order["mean"].round(1),
            "std over seeds": seeds.reindex(order.index).round(1),
        }
    )
    shown = shown.join(domains.round(1)).rename_axis(index="method", columns=dataset)
    shown = shown.reindex([*shown.index, *diverged])
    shown.loc[diverged, "95 % of draws"] = "diverged"
    return shown


def overall(found: Results, experiment: str) -> pd.DataFrame | Html:
    """Mean rank over the data sets, best first, and the rank on each."""
    names = datasets(found, experiment)
    if not names:
        return nothing()
    frame = pd.DataFrame({d: ranks(scores(found, experiment, d)[0])["rank"] for d in names})
    frame.insert(0, "mean rank", frame.mean(axis=1).round(2))
    return frame.sort_values("mean rank", kind="stable").rename_axis("method")


def agreement(found: Results, experiment: str) -> pd.DataFrame | Html:
    """Kendall's tau of our order and each paper's own: one row per printed table."""
    names, frames = datasets(found, experiment), []
    for dataset in names:
        mean = ranks(scores(found, experiment, dataset)[0])["mean"].to_dict()
        rows = compared(found.paper.experiment(experiment), dataset, mean)
        frames.append(rows.assign(dataset=dataset))
    if not names:
        return nothing()
    frame = pd.concat(frames, ignore_index=True)
    return frame.round({"tau": 2, "p": 2}).set_index(["dataset", "paper", "table"])


def chosen(found: Results, experiment: str) -> pd.DataFrame | Html:
    """The tuned value by method and data set, and the validation accuracy of each tried value, in
    percent."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    for dataset in datasets(found, experiment):
        for _, result in found.of_one_scale(dataset, experiment).runs(experiment):
            if (result.label, dataset) not in rows and (tries := result.tries):
                shown = {value: round(accuracy, 1) for value, accuracy in tries.items()}
                rows[result.label, dataset] = {"chosen": metrics.best_value(tries), **shown}
    if not rows:
        return nothing()
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index = pd.MultiIndex.from_tuples(frame.index, names=["method", "dataset"])
    return frame.unstack().swaplevel(axis=1).sort_index(axis=1, level=0, sort_remaining=False)


def figure(found: Results, experiment: str, dataset: str) -> Picture:
    """Ranks with their intervals, methods downwards."""
    order = ranks(scores(found, experiment, dataset)[0])
    figure, axes = picture(0.9 + 0.27 * len(order))
    ax, places = axes[0, 0], range(len(order))
    ax.hlines(places, order.low, order.high, color=COLOURS[0], linewidth=3, alpha=0.35)
    ax.plot(order["rank"], places, "o", color=COLOURS[0])
    ax.set_yticks(places, order.index)
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_xlim(0.5, len(order) + 0.5)
    ax.grid(axis="both", color=GRID)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    label_axes(ax, "rank (1 is best); bar: 95 % of draws", "", dataset)
    figure.caption = f"Ranks of the methods in {experiment} with their intervals"
    return figure


def show_each(found: Results, experiment: str, view: Callable[..., Any]) -> None:
    """A view for every data set with runs; one line if none has any."""
    names = datasets(found, experiment)
    show([view(found, experiment, name) for name in names] or [nothing()])


# For one seed, in the notebook.


def one_seed(study: Study, experiment: str) -> pd.DataFrame:
    """Accuracy in percent: one row per method, best mean first."""
    rows = wide(study.cells(experiment)).rename_axis("method")
    return rows.sort_values("avg", ascending=False, kind="stable").round(1)


def tried(study: Study, experiment: str) -> pd.DataFrame:
    """Validation accuracy in percent: one row per method, one column per tried value."""
    rows = {r.label: r.tries for r in study.results(experiment)}
    return pd.DataFrame.from_dict(rows, orient="index").round(1).rename_axis("method")
