"""The order of methods on one protocol: ranks with bootstrap intervals, and how far they agree
with the order a paper prints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats

from fedrepro.base.errors import FedReproError
from fedrepro.papers import Experiment, Paper

DRAWS = 4000
INTERVAL = (2.5, 97.5)  # percentiles


def ranks(scores: pd.DataFrame, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Methods from the best mean accuracy down: columns mean, rank, low, high.

    scores: method, seed, column (a domain) and value in percent, one row each. Ties share the mean
    rank. low, high: the 95 % percentile interval of the rank when seeds and domains are both drawn
    with replacement, the same ones for every method.

    Raises:
        FedReproError: a method lacks a seed or a domain that another has.
    """
    wide = scores.pivot(index="method", columns=["seed", "column"], values="value")
    full = pd.MultiIndex.from_product([scores.seed.unique(), scores.column.unique()])
    missing = wide.reindex(columns=full).isna().any(axis=1)
    if missing.any():
        raise FedReproError(
            f"{', '.join(wide.index[missing])} lack a seed or a domain that others have; "
            "run them with the same seeds"
        )
    seeds, domains = (len(level) for level in full.levels)
    values = wide[full].to_numpy(float).reshape(len(wide), seeds, domains)
    rng = np.random.default_rng(seed)
    s = rng.integers(seeds, size=(draws, seeds, 1))
    d = rng.integers(domains, size=(draws, 1, domains))
    drawn = stats.rankdata(-values[:, s, d].mean(axis=(2, 3)).round(9), axis=0)
    low, high = np.percentile(drawn, INTERVAL, axis=1, method="nearest")
    means = values.mean(axis=(1, 2)).round(9)
    table = {"mean": means, "rank": stats.rankdata(-means), "low": low, "high": high}
    return pd.DataFrame(table, index=wide.index).sort_values("rank", kind="stable")


def printed(paper: Paper, table: str, column: str = "avg") -> dict[str, float]:
    """A printed column by method, of the rows that are a method of their own."""
    experiment = next(e for e in paper.experiments if e.table == table)
    arms = [arm for arm in paper.arm_specs(experiment.id) if not arm.alternative]
    methods = [arm.method for arm in arms]
    cells = {a.method: paper.table(table).cell(a.label, column) for a in arms}
    return {
        method: cell.value
        for method, cell in cells.items()
        if cell is not None and cell.value is not None and methods.count(method) == 1
    }


def agreement(
    experiment: Experiment, dataset: str, ours: Mapping[str, float], papers: Mapping[str, Paper]
) -> pd.DataFrame:
    """Kendall's tau-b of our order of methods and each paper's, over the methods both have.

    ours: mean accuracy by method. Columns paper, table, methods, tau, p (two-sided, of tau = 0),
    best here, best there; a row a table that `experiment.compared` lists for the data set.
    """
    rows = []
    for name, table, column in experiment.compared.get(dataset, ()):
        theirs = printed(papers[name], table, column)
        both = [method for method in ours if method in theirs]
        mine, other = ([source[m] for m in both] for source in (ours, theirs))
        tau = stats.kendalltau(mine, other) if len(both) > 1 else None
        rows.append(
            {
                "paper": papers[name].short,
                "table": table,
                "methods": len(both),
                "tau": float(tau.statistic) if tau is not None else float("nan"),
                "p": float(tau.pvalue) if tau is not None else float("nan"),
                "best here": max(both, key=lambda m: ours[m], default=""),
                "best there": max(both, key=lambda m: theirs[m], default=""),
            }
        )
    return pd.DataFrame(rows)
