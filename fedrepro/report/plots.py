"""The figures, drawn from saved arrays and frames.

Every function returns a `Picture`, which a notebook shows once as a cell's last expression. An
empty frame, or one without the needed columns, is a `FedReproError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import numpy_stream
from fedrepro.data.federation import Federation
from fedrepro.report.comparisons import beside, order, seconds
from fedrepro.report.picture import (
    COLOURS,
    GRID,
    LINES,
    MARKERS,
    OURS,
    PAPER,
    SMALL,
    TEXT,
    Picture,
    checked,
    label_axes,
    legend_above,
    logarithmic_x,
    looks,
    picture,
)
from fedrepro.report.sections import number
from fedrepro.report.sheets import contact_sheet

__all__ = [
    "Picture",
    "beside",
    "counts_chart",
    "curves",
    "embedding",
    "order",
    "sample_grid",
    "seconds",
    "sweep",
    "traffic",
]

ACCURACY = "mean test accuracy (%)"


def wrapped(name: str, width: int = 10) -> str:
    """A long name broken once, after a hyphen or an underscore."""
    return name if len(name) <= width else re.sub(r"([-_])", r"\1\n", name, count=1)


# The data.


def sample_grid(federation: Federation, per_class: int = 1, seed: int = 0) -> Picture:
    """Training images drawn at random: a row a client (``per_class`` of them), a column a class.
    A client without images of a class leaves its place white."""
    if per_class < 1:
        raise FedReproError(f"per_class = {per_class}: give 1 or more images a class")
    clients, classes = federation.clients, federation.classes
    blank = np.full((3, federation.size, federation.size), 255, np.uint8)
    images = []
    for index, client in enumerate(clients):
        generator = numpy_stream(seed, "figure", client=index)
        labels = client.train.labels.cpu().numpy()
        chosen = [generator.permutation(np.flatnonzero(labels == c)) for c in range(len(classes))]
        for row in range(per_class):
            pixels = client.train.images.cpu().numpy()
            images += [pixels[one[row]] if row < len(one) else blank for one in chosen]
    rows, step = len(clients) * per_class, federation.size + 2
    places = np.repeat(np.arange(rows), len(classes))
    sheet = contact_sheet(np.stack(images), places, rows=rows, cols=len(classes), gap=2)
    turned = max(len(name) for name in classes) > 3
    figure, axes = picture(0.55 + 0.7 * turned + 3.9 * rows / len(classes))
    ax = axes[0, 0]
    ax.imshow(sheet, interpolation="nearest" if federation.size < 48 else "antialiased")
    middle = federation.size / 2 - 0.5
    ax.set_xticks([step * i + middle for i in range(len(classes))], classes)
    ax.xaxis.tick_top()
    if turned:
        ax.tick_params(axis="x", labelrotation=60)
        for text in ax.get_xticklabels():
            text.set(ha="left", rotation_mode="anchor")
    centres = [step * (per_class * i + (per_class - 1) / 2) + middle for i in range(len(clients))]
    ax.set_yticks(centres, [wrapped(client.name) for client in clients])
    ax.tick_params(length=0, labelsize=SMALL)
    ax.spines[:].set_visible(False)
    ax.xaxis.set_label_position("top")
    label_axes(ax, "class", "client")
    return figure


def counts_chart(federation: Federation, shares: bool = False) -> Picture:
    """Images by client (or domain, where they belong to all of it) and class: a panel a split,
    the number in every place and the sum at the end of its row. shares: percent of each client's
    training images in place of numbers."""
    counts = federation.counts()
    if shares:
        counts = counts[counts.split == "train"]
        sums = counts.groupby("client").images.transform("sum")
        counts = counts.assign(images=100 * counts.images / sums)
    counts["owner"] = counts.client.where(counts.client != "", counts.domain)
    tables = {
        split: rows.pivot_table(
            index="owner", columns="class", values="images", aggfunc="sum", sort=False
        )[list(federation.classes)]
        for split, rows in counts.groupby("split", sort=False)
    }
    heights = [0.33 * len(table) + 0.8 for table in tables.values()]
    turned = max(len(name) for name in federation.classes) > 3
    figure, axes = picture(
        sum(heights) + 0.6 * turned, len(tables), height_ratios=heights, sharex=True
    )
    for ax, (split, table) in zip(axes[:, 0], tables.items(), strict=True):
        values = table.to_numpy(dtype=float)
        sns.heatmap(
            table.rename(index=lambda name: wrapped(str(name), 12)),
            annot=table.map(_count),
            fmt="",
            annot_kws={"size": 8.5},
            cmap="Blues",
            vmin=0,
            vmax=1.25 * max(values.max(), 1),
            cbar=False,
            ax=ax,
        )
        for row, total in enumerate(values.sum(axis=1) + 0.0):
            place = (values.shape[1] + 0.15, row + 0.5)
            ax.text(*place, _count(total), va="center", size=SMALL, weight="bold")
        ax.tick_params(axis="y", labelrotation=0)
        if turned:
            ax.tick_params(axis="x", labelrotation=60)
            for text in ax.get_xticklabels():
                text.set(ha="right", rotation_mode="anchor")
        ax.tick_params(length=0, labelsize=SMALL)
        ax.set_xlim(0, values.shape[1] + 1.3)
        owner = "client" if split == "train" else "domain"
        what = "images in percent, by class" if shares else "images by class, and in all"
        label_axes(ax, "", owner, f"{split!s} {what}")
    axes[-1, 0].set_xlabel("class", fontsize=TEXT)
    return figure


def _count(value: float) -> str:
    return f"{value:.0f}" if value < 10_000 else f"{value / 1000:.0f}k"


# Our runs.


def curves(
    frame: pd.DataFrame,
    x: Literal["round", "bytes"] = "round",
    y: str = "avg",
    ylabel: str | None = None,
) -> Picture:
    """Test accuracy while training: a line a label, the mean over seeds, in a band from the lowest
    to the highest seed. A mean ends where the first of its seeds does.

    frame: as `Collected.curves` gives it: label, seed, round, avg, bytes and domains. x="bytes":
    one client's traffic so far in MB (10^6 bytes), on a logarithmic axis; a label that sends
    nothing is a level line at its last accuracy.
    """
    if x not in ("round", "bytes"):
        raise FedReproError(f"x = {x!r}: draw curves over 'round' or 'bytes'")
    frame = checked(frame, list(dict.fromkeys(("label", "seed", "round", x, y))), "curves")
    figure, axes = picture(3.9 + 0.2 * math.ceil(frame.label.nunique() / 3))
    ax = axes[0, 0]
    styles = looks(frame.label)
    for index, (label, rows) in enumerate(frame.groupby("label", sort=False)):
        by_round = rows.groupby("round")
        rows = rows[by_round.seed.transform("nunique") == rows.seed.nunique()]
        style = styles[str(label)]
        if x == "bytes":
            last = rows[rows["round"] == rows["round"].max()][y].mean()
            rows = rows.assign(bytes=by_round.bytes.transform("mean") / 1e6)
            rows = rows[rows.bytes > 0]  # round 0 has sent nothing
            if rows.empty:
                del style["marker"]
                ax.axhline(last, **style, linewidth=1.6, label=f"{label} (sends nothing)")
                continue
        length = rows["round"].nunique()
        style["markevery"] = (index % 3, max(1, length // 6)) if length > 8 else 1
        sns.lineplot(
            rows,
            x=x,
            y=y,
            errorbar=("pi", 100) if rows.seed.nunique() > 1 else None,
            err_kws={"alpha": 0.15, "linewidth": 0},
            **style,
            markersize=5.5,
            markeredgewidth=0,
            linewidth=1.8,
            label=str(label),
            legend=False,
            ax=ax,
        )
    ax.grid(color=GRID)
    if x == "bytes":
        logarithmic_x(ax)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    where = "one client's traffic so far (MB)" if x == "bytes" else "communication round"
    default = ACCURACY if y == "avg" else f"test accuracy on {y} (%)"
    label_axes(ax, where, ylabel or default)
    legend_above(figure, ax)
    return figure


def sweep(
    frame: pd.DataFrame,
    xlabel: str,
    reference: Mapping[str, float] | None = None,
    ylabel: str = ACCURACY,
) -> Picture:
    """One varied setting: a point a label in the order given, mean and standard deviation over
    seeds, each seed a thin dot. Labels ``mu=0.1`` are shortened to their values; labels
    ``FedAvg, N=10`` are drawn as a line for each name before the comma.

    frame: label, seed, value. reference: level lines by name, in the unit of ``value``.
    """
    frame = checked(frame, ("label", "seed", "value"), "sweep")
    figure, axes = picture(3.6)
    ax = axes[0, 0]
    cut = [label.rpartition(", ") for label in frame.label.astype(str)]
    lines = {part[0] for part in cut}
    frame = frame.assign(line=[part[0] for part in cut], label=[part[2] for part in cut])
    names, styles = list(dict.fromkeys(frame.label)), looks(frame.line)
    for line, rows in frame.groupby("line", sort=False):
        style = {"color": OURS, "fmt": "o-", "label": "mean ± std over seeds"}
        if len(lines) > 1:
            style = {**styles[str(line)], "label": str(line)}
        _points(ax, [rows.value[rows.label == n].astype(float).dropna() for n in names], style)
    for index, (name, level) in enumerate((reference or {}).items()):
        colour, line = COLOURS[1 + index % 7], LINES[1 + index % 7]
        ax.axhline(level, color=colour, linestyle=line, label=name, linewidth=1.6)
    parts = [name.partition("=") for name in names]
    same = len({part[0] for part in parts}) == 1 and all(part[2] for part in parts)
    ax.set_xticks(range(len(names)), [part[2] for part in parts] if same else names)
    ax.set_xlim(-0.4, len(names) - 0.6)
    ax.grid(axis="y", color=GRID)
    label_axes(ax, xlabel, ylabel)
    legend_above(figure, ax, 2 if len(lines) < 3 else 4)
    return figure


def _points(ax: Axes, values: Sequence[pd.Series[float]], style: Mapping[str, Any]) -> None:
    """One line of a sweep: the seeds' values at each place, their mean and deviation."""
    for place, seeds in enumerate(values):
        ax.plot([place + 0.12] * len(seeds), seeds, ".", color=PAPER, alpha=0.7, markersize=5)
    means = [seeds.mean() for seeds in values]
    stds = [seeds.std() if len(seeds) > 1 else 0.0 for seeds in values]
    where = range(len(values))
    ax.errorbar(where, means, stds, linewidth=1.4, capsize=4, markersize=7, **style)


def embedding(points: pd.DataFrame, by: Literal["domain", "class"] = "domain") -> Picture:
    """Representations in the plane: a panel a label, a colour and marker a domain or class.

    points: label, x, y, domain, cls, as `embedding.tsne` gives them with a label added. Classes of
    one character are drawn as that character. The plane has no unit, so it has no ticks.
    """
    if by not in ("domain", "class"):
        raise FedReproError(f"by = {by!r}: colour points by 'domain' or 'class'")
    points = checked(points, ("label", "x", "y", "domain", "cls"), "embedding")
    key = "domain" if by == "domain" else "cls"
    groups = sorted(points[key].unique()) if by == "class" else list(points[key].unique())
    panels = list(points.groupby("label", sort=False))
    cols = 1 if len(panels) == 1 else 2
    rows = math.ceil(len(panels) / cols)
    figure, axes = picture((3.6 if cols == 1 else 2.4) * rows + 0.7, rows, cols)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (label, part) in zip(axes.flat, panels, strict=False):
        for index, group in enumerate(groups):
            chosen = part[part[key] == group]
            text = str(group)
            marker = f"${text}$" if by == "class" and text.isalnum() and len(text) == 1 else None
            sns.scatterplot(
                chosen,
                x="x",
                y="y",
                s=28 if marker else 16,
                marker=marker or MARKERS[index % 12],
                color=COLOURS[index % 10],
                edgecolor=COLOURS[index % 10],
                linewidth=0.4 if marker else 0,
                alpha=0.85,
                label=text,
                legend=False,
                ax=ax,
            )
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(True)
        ax.spines[:].set_color(GRID)
        label_axes(ax, title=str(label))
    if rows * cols > len(panels):
        handles, labels = axes[0, 0].get_legend_handles_labels()
        ncols = 2 if by == "class" else 1
        free = axes.flat[-1]
        free.legend(
            handles, labels, loc="center", ncols=ncols, fontsize=SMALL, title=by, markerscale=1.5
        )
    else:
        legend_above(figure, axes[0, 0], 5 if by == "class" else 3)
    return figure


def traffic(
    frame: pd.DataFrame, log: bool = False, xlabel: str = "traffic of the run, all clients"
) -> Picture:
    """What travelled: a bar a label, a part a kind of payload, the sum at its end.

    frame: label, kind (``down/model``, ``up/representations``, ...), bytes, and seed where there
    are several (their mean is drawn). Uploads are hatched. log: a marker a kind on a logarithmic
    axis, for a stack has no meaning there.
    """
    frame = checked(frame, ("label", "kind", "bytes"), "traffic")
    table = frame.pivot_table(
        index="label", columns="kind", values="bytes", aggfunc="mean", sort=False
    )
    table = table[sorted(table.columns)].fillna(0.0)
    unit, size = _byte_unit(float(table.sum(axis=1).max()))
    payloads = list(dict.fromkeys(str(kind).partition("/")[2] for kind in table.columns))
    figure, axes = picture(1.3 + 0.42 * len(table) + 0.22 * math.ceil(len(table.columns) / 2))
    ax, start = axes[0, 0], np.zeros(len(table))
    for kind in table.columns:
        direction, _, payload = str(kind).partition("/")
        place, values = payloads.index(payload), table[kind].to_numpy() / size
        up, label = direction == "up", f"{payload} {direction}"
        if log:
            _kind_marks(ax, values, place, up, label)
            continue
        style = {"color": COLOURS[place % 8], "edgecolor": "white", "linewidth": 0.5}
        hatch = "////" if up else ""
        ax.barh(range(len(table)), values, 0.65, left=start, label=label, hatch=hatch, **style)
        start = start + values
    if log:
        logarithmic_x(ax)
    else:
        _sums(ax, start, unit)
    ax.set_yticks(range(len(table)), [str(name) for name in table.index])
    ax.invert_yaxis()
    ax.grid(axis="x", color=GRID)
    label_axes(ax, f"{xlabel} ({unit})")
    legend_above(figure, ax, 2)
    return figure


def _kind_marks(ax: Axes, values: npt.NDArray[Any], payload: int, up: bool, label: str) -> None:
    """One kind's marker a row, downloads full and above, uploads hollow and below."""
    colour = COLOURS[payload % 8]
    ax.plot(
        np.where(values > 0, values, np.nan),
        np.arange(len(values)) + (0.14 if up else -0.14),
        MARKERS[payload % 12],
        color=colour,
        markerfacecolor="white" if up else colour,
        label=label,
    )


def _sums(ax: Axes, sums: npt.NDArray[Any], unit: str) -> None:
    """The sum at the end of each row's bar, with room for it."""
    near: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
    for row, value in enumerate(sums):
        ax.annotate(number(value, unit), (value, row), **near, va="center", size=SMALL)
    ax.set_xlim(0, 1.16 * max(sums.max(), 1e-9))


def _byte_unit(largest: float) -> tuple[str, float]:
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next((pair for pair in units if largest >= pair[1]), ("bytes", 1.0))
