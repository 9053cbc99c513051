"""Figures of ablations: a grid of two settings, and arms domain by domain, beside each other or
around a centre."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedrepro import papers
from fedrepro.errors import FedReproError
from fedrepro.views.picture import (
    COLOURS,
    GRID,
    LINES,
    MARKERS,
    SMALL,
    Picture,
    checked,
    label_axes,
    legend_above,
    picture,
)
from fedrepro.views.sections import number

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
    table = np.full((len(rows), len(columns)), np.nan)
    for label, (row, column) in places.items():
        table[rows.index(row), columns.index(column)] = means[label]
    figure, axes = picture(1.2 + 0.75 * len(rows))
    ax = axes[0, 0]
    shown = ax.imshow(table, cmap="cividis", origin="lower", aspect="auto")
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for label, place in places.items():
        row, column = rows.index(place[0]), columns.index(place[1])
        text = number(table[row, column], "percent")
        if printed and label in printed:
            text += f"\n(paper {number(printed[label], 'percent')})"
        colour = "white" if table[row, column] < middle else "black"
        ax.text(column, row, text, ha="center", va="center", size=SMALL, color=colour)
    ax.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
    ax.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(shown, ax=ax)
    bar.set_label("mean test accuracy (%)", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
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
    for index, label in enumerate(labels):
        seeds = frame[frame.method == label].groupby("column").value
        mean, low, high = (
            table.reindex(columns) for table in (seeds.mean(), seeds.min(), seeds.max())
        )
        shift = SPREAD * ((index + 0.5) / len(labels) - 0.5)
        colour = COLOURS[index % 8]
        ax.vlines(np.arange(len(columns)) + shift, low, high, color=colour, linewidth=1.4)
        ax.plot(
            *(np.arange(len(columns)) + shift, mean),
            linestyle="none",
            marker=MARKERS[index % 12],
            color=colour,
            label=str(label),
        )
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
    for index, (label, row) in enumerate(wide.iterrows()):
        closed = [*row, row.iloc[0]]
        style = {"linestyle": LINES[index % len(LINES)], "marker": MARKERS[index % 12]}
        ax.plot([*angles, angles[0]], closed, color=COLOURS[index % 8], label=str(label), **style)
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
