"""Figures of images, their counts and their representations."""

import math
import re
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedrepro.base.rng import numpy_stream
from fedrepro.data.federation import Federation
from fedrepro.quantities.base import Figure
from fedrepro.report import picture as shared
from fedrepro.report.picture import Picture

MEAN, EDGE = "#FF0000", {"edgecolors": "black", "linewidths": 0.8}
ROLES: dict[str, dict[str, Any]] = {
    "image": {"s": 10, "alpha": 0.35, "edgecolors": "none", "zorder": 1},
    "prototype": {"s": 70, "zorder": 2, **EDGE},
    "mean of prototypes": {"s": 190, "marker": "*", "color": MEAN, "zorder": 3, **EDGE},
}
BLUES: dict[str, Any] = {"cmap": "Blues", "vmin": 0, "cbar": False}  # of a heat map
CONFUSED = 8  # methods in a figure of confusions
SEEN = {"found": "found", "behind": "behind it", "another": "another"}


def sample_grid(federation: Federation, per_class: int = 1) -> Picture:
    """Random training images: ``per_class`` rows per client, one column per class."""
    clients, classes, size = federation.clients, federation.classes, federation.size
    step, rows = size + 2, len(clients) * per_class
    tiles = np.full((rows, step, len(classes), step, 3), 255, np.uint8)
    for index, client in enumerate(clients):
        generator = numpy_stream(0, "figure", client=index)
        labels, pixels = client.train.labels.cpu().numpy(), client.train.images.cpu().numpy()
        for column in range(len(classes)):
            chosen = generator.permutation(np.flatnonzero(labels == column))
            for row, image in enumerate(chosen[:per_class], index * per_class):
                tiles[row, :size, column, :size] = pixels[image].transpose(1, 2, 0)
    sheet = tiles.reshape(rows * step, -1, 3)[:-2, :-2]
    figure, ax = shared.single(0.55 + 0.7 * _long(classes) + 3.9 * rows / len(classes))
    ax.imshow(sheet, interpolation="nearest" if size < 48 else "antialiased")
    middle = size / 2 - 0.5
    ax.set_xticks([step * i + middle for i in range(len(classes))], classes)
    ax.xaxis.tick_top()
    _name_classes(ax, classes, "left")
    centres = [step * (per_class * i + (per_class - 1) / 2) + middle for i in range(len(clients))]
    ax.set_yticks(centres, [_wrapped(client.name, 10) for client in clients])
    ax.spines[:].set_visible(False)
    ax.xaxis.set_label_position("top")
    shared.label_axes(ax, "class", "client")
    return figure


def _long(names: Sequence[str]) -> bool:
    return max(map(len, names)) > 3


def _name_classes(ax: Any, names: Sequence[str], side: str) -> None:
    """Small names without ticks; long ones are turned."""
    ax.tick_params(length=0, labelsize=shared.SMALL)
    if _long(names):
        ax.tick_params(axis="x", labelrotation=60)
        for text in ax.get_xticklabels():
            text.set(ha=side, rotation_mode="anchor")


def _wrapped(name: str, width: int) -> str:
    """A long name broken once, after a hyphen or an underscore."""
    return re.sub("([-_])", r"\1\n", name, count=1) if len(name) > width else name


def counts_chart(federation: Federation, shares: bool = False) -> Picture:
    """Images by client (or domain, if they belong to all of it) and class: one panel per split,
    with sums. shares: percent of each client's training images instead of numbers."""
    counts = federation.counts()
    if shares:
        counts = counts[counts.split == "train"]
        sums = counts.groupby("client").images.transform("sum")
        counts = counts.assign(images=100 * counts.images / sums)
    counts["owner"] = counts.client.where(counts.client != "", counts.domain)
    how: dict[str, Any] = {"index": "owner", "columns": "class", "aggfunc": "sum", "sort": False}
    tables = {
        split: rows.pivot_table("images", **how)[list(federation.classes)]
        for split, rows in counts.groupby("split", sort=False)
    }
    heights = [0.33 * len(table) + 0.8 for table in tables.values()]
    height = sum(heights) + 0.6 * _long(federation.classes)
    figure, axes = shared.picture(height, len(tables), height_ratios=heights, sharex=True)
    for ax, (split, table) in zip(axes[:, 0], tables.items(), strict=True):
        named = table.rename(index=lambda name: _wrapped(str(name), 12))
        look = {"fmt": "", "annot_kws": {"size": 8.5}, "ax": ax, **BLUES}
        top = 1.25 * max(table.to_numpy().max(), 1)
        shared.seaborn().heatmap(named, annot=table.map(_count), vmax=top, **look)
        for row, total in enumerate(table.sum(axis=1)):
            place = (table.shape[1] + 0.15, row + 0.5)
            ax.text(*place, _count(total), va="center", size=shared.SMALL, weight="bold")
        ax.tick_params(axis="y", labelrotation=0)
        _name_classes(ax, federation.classes, "right")
        ax.set_xlim(0, table.shape[1] + 1.3)
        owner = "client" if split == "train" else "domain"
        what = "images in percent, by class" if shares else "images by class, and in all"
        shared.label_axes(ax, "", owner, f"{split!s} {what}")
    axes[-1, 0].set_xlabel("class")
    return figure


def _count(value: float) -> str:
    return f"{value:.0f}" if value < 10_000 else f"{value / 1000:.0f}k"


def embedding(points: pd.DataFrame, by: Literal["domain", "class"] = "domain") -> Picture:
    """t-SNE of representations: one panel per label, a colour and marker for each domain or class,
    or its name if that is one character. points: from `record.tsne`, with a label."""
    key = "domain" if by == "domain" else "cls"
    groups = sorted(points[key].unique()) if by == "class" else list(points[key].unique())
    count = points.label.nunique()
    figure, axes = shared.panels(count, 3.6 if count == 1 else 2.4, 0.7)
    for ax, (label, part) in zip(axes.flat, points.groupby("label", sort=False), strict=False):
        for index, group in enumerate(groups):
            look: dict[str, Any] = {"color": shared.COLOURS[index % 10], "alpha": 0.85}
            look |= {"marker": shared.MARKERS[index % 12], "s": 16, "linewidth": 0}
            if by == "class" and group.isalnum() and len(group) == 1:
                look |= {"marker": f"${group}$", "s": 28, "linewidth": 0.4}
            chosen = part[part[key] == group]
            ax.scatter(chosen.x, chosen.y, label=group, **look)
        _bare(ax)
        shared.label_axes(ax, title=str(label))
    if axes.size > count:
        shape = {"loc": "center", "ncols": 2 if by == "class" else 1, "markerscale": 1.5}
        texts = axes[0, 0].get_legend_handles_labels()
        axes.flat[-1].legend(*texts, fontsize=shared.SMALL, title=by, **shape)
    else:
        shared.legend_above(figure, axes[0, 0], 5 if by == "class" else 3)
    figure.drawn_live = shared.live_embedding(points, by, groups)
    figure.caption = f"Test representations by {by}. t-SNE gives the axes no unit"
    return figure


def in_order(rows: pd.DataFrame, own: str) -> pd.DataFrame:
    """Rows of a confusion: its paper's own, readings, FedAvg, then the best; `CONFUSED` rows."""
    right = rows[rows.cls == rows.predicted].groupby("method").images.sum()
    shares = right / rows.groupby("method").images.sum()
    best = sorted(rows.method.unique(), key=shares.get, reverse=True)
    best.sort(key=lambda name: (not name.startswith(own), name not in (own, "FedAvg")))
    return pd.concat([rows[rows.method == name] for name in best[:CONFUSED]], ignore_index=True)


def confusion(frame: pd.DataFrame) -> Picture:
    """Confusion of the test images of each class, in percent: one panel per domain, true classes
    downwards. The picture shows the first method, its interactive form all. frame: `in_order`."""
    first, classes = frame.method.iloc[0], sorted(frame.cls.unique())
    domains = frame[frame.method == first].groupby("domain", sort=False)
    figure, axes = shared.panels(len(domains), 2.6, 0.3)
    for ax, (domain, part) in zip(axes.flat, domains, strict=False):
        table = part.pivot_table(index="cls", columns="predicted", values="percent", sort=False)
        table = table.reindex(index=classes, columns=classes).fillna(0)
        # Without seaborn's labels: it draws the figure for each panel to see whether they fit.
        bare = {"xticklabels": False, "yticklabels": False, "square": True}
        shared.seaborn().heatmap(table, vmax=100, ax=ax, **bare, **BLUES)
        places = np.arange(0, len(classes), math.ceil(len(classes) / 20))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(places + 0.5, [classes[place] for place in places])
        _name_classes(ax, classes, "right")
        shared.label_axes(ax, "predicted class", "true class", str(domain))
    figure.suptitle(f"{first}: from 0 (white) to 100 % of a row", fontsize=shared.TEXT)
    figure.caption = "Of the test images of a true class, how many are taken for which class"
    figure.drawn_live = shared.live_confusion(frame)
    return figure


def _bare(ax: Any) -> None:
    """A frame without ticks."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=shared.GRID)


def plane(points: pd.DataFrame) -> Picture:
    """t-SNE of embeddings and prototypes: a colour for each domain, a marker for each class.
    Prototypes are large with an edge; red stars are the means of prototypes over clients.
    points: x, y, domain, cls, role, from `counted.with_prototypes`."""
    star = "mean of prototypes"
    domains = list(dict.fromkeys(points[points.role != star].domain))
    classes = list(dict.fromkeys(points.cls))
    colours = dict(zip(domains, cycle(shared.COLOURS[:8]), strict=False))
    markers = dict(zip(classes, cycle(shared.MARKERS), strict=False))
    figure, ax = shared.single(5.2 + 0.25 * (len(domains) + len(classes)) / 3)
    for (role, domain, name), part in points.groupby(["role", "domain", "cls"], sort=False):
        look = {"marker": markers[name], "color": colours.get(domain), **ROLES[role]}
        ax.scatter(part.x, part.y, **look)
    key = partial(ax.scatter, [], [], edgecolors="black")
    for label, colour in colours.items():
        key(s=40, marker="s", color=colour, label=label)
    for label, marker in markers.items():
        key(s=40, marker=marker, color="white", label=label)
    key(s=110, marker="*", color=MEAN, label=star)
    _bare(ax)
    shared.legend_above(figure, ax, 3)
    figure.caption = "t-SNE (axes without unit). Small: images; large: their clients' prototypes"
    every = list(points.domain.unique())
    figure.drawn_live = shared.live_embedding(points.assign(label=points.role), "domain", every)
    return figure


def inversions(figure: Figure, cells: Sequence[dict[str, Any]]) -> Picture:
    """One row per attacked prototype: the found image, the one behind it and another of its class;
    below, their similarity to the one behind. figure, cells: of kind ``inversion``."""
    names = figure.facts["rows"]
    likeness = {(row["method"], row["column"]): row["value"] for row in cells}
    drawn, axes = shared.picture(0.4 + 1.45 * len(names), len(names), len(SEEN))
    for row, name in enumerate(names):
        for ax, (key, title) in zip(axes[row], SEEN.items(), strict=True):
            image = figure.arrays[key][row]
            smooth = "nearest" if image.shape[1] < 48 else "antialiased"
            ax.imshow(np.moveaxis(image, 0, 2), interpolation=smooth)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            shared.label_axes(ax, title=title if row == 0 else "")
            if key != "behind":
                what = "after" if key == "found" else "of another"
                ratio, alike = likeness[name, f"PSNR {what}"], likeness[name, f"SSIM {what}"]
                near = f"{ratio:.1f} dB" if ratio is not None else "the same"
                ax.set_xlabel(f"{near}, SSIM {alike:.2f}", fontsize=shared.SMALL)
        text = {"rotation": 0, "ha": "right", "va": "center", "fontsize": shared.SMALL}
        axes[row, 0].set_ylabel(name.replace(", ", ",\n"), **text)
    drawn.caption = "PSNR (dB) and SSIM with the image behind the prototype; higher: more alike"
    return drawn
