"""Figures of the paper's numbers beside ours, from the frames of `verdicts`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedrepro.base.errors import FedReproError
from fedrepro.report.picture import (
    COLOURS,
    GRID,
    OURS,
    PAPER,
    SMALL,
    TEXT,
    Picture,
    checked,
    label_axes,
    legend_above,
    picture,
)
from fedrepro.report.sections import AXES, Section, number, sections
from fedrepro.report.verdicts import ORDER_COLUMNS

HALF = 0.17  # how far a pair of marks stands from its method's line


def beside(table: pd.DataFrame) -> Picture:
    """A frame of `verdicts.build_table`, drawn: a panel a column, methods downwards, the printed
    mean and deviation above ours. A stand-in column says so in its title.

    FedReproError: an empty frame, or runs on several data sets or scales.
    """
    section = _one_section(table)
    cols = 1 if len(section.columns) == 1 else 2
    rows = math.ceil(len(section.columns) / cols)
    height = rows * (0.85 + 0.27 * len(section.methods)) + 0.9
    figure, axes = picture(height, rows, cols, sharey=True)
    units = {section.unit(column) for column in section.columns}
    for ax in axes.flat[len(section.columns) :]:
        ax.set_axis_off()
    for ax, column in zip(axes.flat, section.columns, strict=False):
        unit = section.unit(column)
        cells = [section.cells.get((method, column), {}) for method in section.methods]
        _pairs(ax, cells)
        label_axes(ax, "" if len(units) == 1 else AXES.get(unit, unit), "", section.heading(column))
        ax.set_yticks(range(len(cells)), section.methods)
        ax.set_ylim(len(cells) - 0.5, -0.5)
        ax.grid(axis="both", color=GRID)
        ax.locator_params(axis="x", nbins=4)
    if len(units) == 1:
        figure.supxlabel(AXES.get(*units, *units), fontsize=TEXT)
    fullest = max(axes.flat, key=lambda ax: len(ax.get_legend_handles_labels()[1]))
    legend_above(figure, fullest, 2, title=section.statement)
    return figure


def _one_section(table: pd.DataFrame) -> Section:
    found = sections(table)
    if len(found) > 1:
        names = ", ".join(f"{s.dataset} at scale {s.scale}" for s in found)
        raise FedReproError(f"runs of {names} in one figure; give the cells of one")
    return found[0]


def _pairs(ax: Axes, cells: Sequence[Any]) -> None:
    """Printed and own value of each cell with its deviation; nothing where there is none."""
    series: tuple[tuple[str, float, dict[str, Any], str], ...] = (
        ("published", -HALF, {"color": PAPER, "marker": "s", "mfc": "white"}, "paper"),
        ("ours", HALF, {"color": OURS, "marker": "o"}, "ours"),
    )
    for key, shift, style, name in series:
        values = np.array([_float(cell.get(key)) for cell in cells])
        stds = np.array([_float(cell.get(f"{key}_std")) for cell in cells])
        if np.isnan(values).all():
            continue
        places = np.arange(len(cells)) + shift
        ax.errorbar(
            *(values, places),
            xerr=np.nan_to_num(stds),
            **style,
            linestyle="none",
            markersize=5.5,
            capsize=2.5,
            label=f"{name}, mean ± std",
        )


def _float(value: Any) -> float:
    return math.nan if value is None or pd.isna(value) else float(value)


def seconds(table: pd.DataFrame, reference: str = "FedAvg") -> Picture:
    """Training time as a ratio to the reference method, the paper's bar beside ours.

    table: `verdicts.build_table` of an experiment with ``relative_to`` (values are ratios).
    """
    section = _one_section(table)
    column = section.columns[0]
    if section.unit(column) != "ratio":
        raise FedReproError(f"{section.table} holds no ratios; give the table of training times")
    cells = [section.cells.get((method, column), {}) for method in section.methods]
    figure, axes = picture(1.4 + 0.55 * len(cells))
    ax = axes[0, 0]
    longest = 0.0
    for key, shift, style, name in (
        ("published", -0.2, {"facecolor": "white", "edgecolor": PAPER, "hatch": "////"}, "paper"),
        ("ours", 0.2, {"facecolor": OURS, "edgecolor": OURS}, "ours"),
    ):
        values = [_float(cell.get(key)) for cell in cells]
        bars = np.nan_to_num(np.array(values))
        ax.barh(np.arange(len(cells)) + shift, bars, 0.36, **style, label=name)
        for place, value in enumerate(values):
            text = number(value, "ratio") if not math.isnan(value) else "none"
            where = (np.nan_to_num(value), place + shift)
            ax.annotate(text, where, (4, 0), textcoords="offset points", va="center", size=SMALL)
        longest = max(longest, float(bars.max()))
    ax.axvline(1, color="black", linewidth=1, linestyle=":")
    ax.set_xlim(0, 1.18 * max(longest, 1))
    ax.set_yticks(range(len(cells)), section.methods)
    ax.invert_yaxis()
    label_axes(ax, f"training time, as a ratio to {reference}")
    legend_above(figure, ax)
    return figure


def order(ranks: pd.DataFrame, column: str = "avg") -> Picture:
    """The order of the methods in one column: the paper's ranks left, ours right, joined by lines.
    A method that ranks higher with us than in the paper is a solid line, lower a dashed one, equal
    a dotted one.

    ranks: a frame of `verdicts.order`, of one table, data set and scale.
    """
    ranks = checked(ranks, ORDER_COLUMNS, "order of methods")
    rows = ranks[ranks.column == column]
    if rows.empty:
        known = ", ".join(dict.fromkeys(ranks.column))
        raise FedReproError(f"no ranks in column {column!r}; choose from {known}")
    if len(rows[["table", "dataset", "scale"]].drop_duplicates()) > 1:
        raise FedReproError("ranks of several tables or scales in one figure; give those of one")
    figure, axes = picture(1.3 + 0.36 * len(rows))
    ax = axes[0, 0]
    for row in rows.to_dict("records"):
        pair = [float(row["rank_published"]), float(row["rank_ours"])]
        line, colour = ":", PAPER
        if pair[1] != pair[0]:
            line, colour = ("-", COLOURS[0]) if pair[1] < pair[0] else ("--", COLOURS[1])
        ax.plot([0, 1], pair, linestyle=line, color=colour, marker="o", label=row["method"])
    for side, key, align in ((-0.05, "rank_published", "right"), (1.05, "rank_ours", "left")):
        for rank in rows[key].unique():
            text = "\n".join(rows.method[rows[key] == rank])  # one line a method that shares it
            ax.text(side, float(rank), text, ha=align, va="center", size=SMALL)
    tau = float(rows.tau.iloc[0])
    ax.set_xticks([0, 1], ["paper", f"ours ({rows.scale.iloc[0]})"])
    ax.set_yticks(range(1, len(rows) + 1))
    inches = 0.07 * rows.method.str.len().max() + 0.1  # of the longest name, beside a line of 4.2
    room = min(max(0.75, inches / max(4.2 - 2 * inches, 0.1)), 2.5)
    ax.set_xlim(-room, 1 + room)
    ax.set_ylim(len(rows) + 0.5, 0.5)
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(axis="x", length=0)
    agreement = "" if math.isnan(tau) else f", Kendall's tau = {number(tau, 'ratio')}"
    label_axes(ax, "", "rank (1 is best)", f"{column}{agreement}")
    return figure
