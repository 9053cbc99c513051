"""Figures of ablations: a grid of two settings, and arms domain by domain, beside each other or
around a centre."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.report.picture import (
    GRID,
    SMALL,
    Picture,
    checked,
    label_axes,
    legend_above,
    looks,
    picture,
)
from fedrepro.report.sections import number

PAIR = re.compile(r"(\w+)=([-+.\de]+), *(\w+)=([-+.\de]+)")
SPREAD = 0.6  # of a column's width, over which its labels' marks stand side by side


def heat_map(frame: pd.DataFrame, printed: Mapping[str, float] | None = None) -> Picture:
    """Mean accuracy over a grid of two settings, the mean over seeds in each place.

    frame: label, seed, value, the labels of the form ``mu=0.1, delta=0.2``; the first setting goes
    upwards. printed: the paper's numbers by label, in a second line. A place without a run is
    white. FedReproError: an empty frame, a label of another form.
    """
    frame = checked(frame, ("label", "seed", "value"), "grid of two settings")
    found = {str(label): PAIR.fullmatch(str(label)) for label in frame.label}
    names = {(m[1], m[3]) for m in found.values() if m}
    if None in found.values() or len(names) != 1:
        raise FedReproError("labels of a grid read 'mu=0.1, delta=0.2', all of the same two names")
    (down, across) = names.pop()
    places = {label: (float(m[2]), float(m[4])) for label, m in found.items() if m}
    rows, columns = (sorted({place[i] for place in places.values()}) for i in (0, 1))
    means = frame.groupby("label").value.mean()
    table = pd.DataFrame(index=rows[::-1], columns=columns, dtype=float)
    texts = pd.DataFrame("", index=table.index, columns=columns)
    for label, place in places.items():
        table.loc[place] = means[label]
        texts.loc[place] = number(means[label], "percent")
        if printed and label in printed:
            texts.loc[place] += f"\n(paper {number(printed[label], 'percent')})"
    figure, axes = picture(1.2 + 0.75 * len(rows))
    ax = axes[0, 0]
    table.index, table.columns = ([f"{v:g}" for v in axis] for axis in table.axes)
    sns.heatmap(
        table,
        annot=texts,
        fmt="",
        annot_kws={"size": SMALL},
        cmap="cividis",
        cbar_kws={"label": "mean test accuracy (%)"},
        ax=ax,
    )
    ax.tick_params(axis="y", labelrotation=0)
    label_axes(ax, across, down)
    return figure


def by_domain(cells: Sequence[Mapping[str, Any]]) -> Picture:
    """Variants side by side: a column a domain and their mean, a mark a label, the mean over seeds
    with the lowest and highest seed as a line.

    cells: rows with method, column, seed and value, as `Study.cells` gives them.
    """
    frame = checked(
        pd.DataFrame(cells), ("method", "column", "seed", "value"), "accuracies by domain"
    )
    columns = list(dict.fromkeys(frame.column))
    labels = list(dict.fromkeys(frame.method))
    figure, axes = picture(3.4 + 0.2 * len(labels) / 2)
    ax = axes[0, 0]
    styles = looks(labels)
    sns.pointplot(
        frame,
        x="column",
        y="value",
        hue="method",
        palette=[styles[label]["color"] for label in labels],
        markers=[styles[label]["marker"] for label in labels],
        linestyle="none",
        dodge=SPREAD * (1 - 1 / len(labels)) or False,
        errorbar=("pi", 100),
        err_kws={"linewidth": 1.4},
        markersize=6,
        ax=ax,
    )
    ax.get_legend().remove()
    ax.set_xticks(range(len(columns)), [name.replace("-", "-\n", 1) for name in columns])
    for place in np.arange(len(columns) - 1) + 0.5:
        ax.axvline(place, color=GRID, linewidth=0.8)
    ax.grid(axis="y", color=GRID)
    label_axes(ax, "", "test accuracy (%)")
    legend_above(figure, ax, 2)
    return figure


def radar(cells: Sequence[Mapping[str, Any]]) -> Picture:
    """Variants as closed lines around a centre: a spoke a domain, the mean over seeds. The spokes
    begin at the whole ten below the lowest value, so that lengths are no proportions.

    cells: rows with method, column, seed and value in percent, as `Study.cells` gives them; their
    mean over domains (`avg`) is left out. FedReproError below three domains.
    """
    columns = ("method", "column", "seed", "value")
    frame = checked(pd.DataFrame(cells), columns, "accuracies by domain")
    wide = frame[frame.column != "avg"].pivot_table(
        index="method", columns="column", values="value", sort=False
    )
    if wide.shape[1] < 3:
        raise FedReproError(f"a radar chart needs three domains, not {wide.shape[1]}; draw bars")
    angles = np.linspace(0, 2 * np.pi, wide.shape[1], endpoint=False)
    figure, axes = picture(4.4 + 0.2 * len(wide) / 2, subplot_kw={"projection": "polar"})
    ax = axes[0, 0]
    for (label, row), style in zip(wide.iterrows(), looks(wide.index).values(), strict=True):
        ax.plot([*angles, angles[0]], [*row, row.iloc[0]], label=str(label), **style)
    ax.set_xticks(angles, wide.columns)
    ax.tick_params(axis="x", pad=16)  # names stand beside the circle, not on it
    ax.set_ylim(np.floor(wide.min().min() / 10) * 10, 100)
    ax.set_rlabel_position(180 / wide.shape[1])
    ax.grid(color=GRID)
    legend_above(figure, ax, 2, title="test accuracy (%)")
    return figure


def filed(paper: str, table: str, rows: Sequence[str] = (), without: Sequence[str] = ()) -> Picture:
    """The same chart of what the authors' own files hold of a printed table: all rows, some, or all
    but some. FedReproError where there is no such file."""
    found = papers.load(paper).filed
    if found is None or table not in found.domains:
        raise FedReproError(f"no file of {paper}'s authors holds {table} domain by domain")
    kept = found.domains[table]
    chosen = [row for row in kept.rows if row not in without and (not rows or row in rows)]
    cells = [
        {"method": row, "column": column, "seed": 1, "value": value}
        for row in chosen
        for column, value in zip(kept.columns, kept.rows[row], strict=True)
    ]
    return radar(cells)
