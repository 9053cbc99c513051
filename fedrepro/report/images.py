"""Figures of images, their counts and their representations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import numpy_stream
from fedrepro.data.federation import Federation
from fedrepro.quantities.base import Figure
from fedrepro.report import interactive
from fedrepro.report.picture import (
    COLOURS,
    GRID,
    MARKERS,
    SMALL,
    TEXT,
    Picture,
    checked,
    label_axes,
    legend_above,
    picture,
)

# By role: size of the mark, how much shows through, its edge.
ROLES = {
    "image": (10, 0.35, "none"),
    "prototype": (70, 1.0, "black"),
    "mean of prototypes": (190, 1.0, "black"),
}
MEAN = "#FF0000"
SEEN = (("found", "found"), ("behind", "behind it"), ("another", "another"))


def _contact_sheet(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.integer],
    rows: int,
    cols: int,
    gap: int,
) -> npt.NDArray[np.uint8]:
    """A grid of pictures, uint8 (H, W, 3): row r holds the first ``cols`` pictures labelled r.

    images: uint8 (n, 3, h, w); labels: int (n,), the row of each.
    gap: white pixels between pictures; places with no picture left are white.
    """
    height, width = images.shape[2:]
    sheet = np.full((rows * (height + gap) - gap, cols * (width + gap) - gap, 3), 255, np.uint8)
    for row in range(rows):
        for col, index in enumerate(np.flatnonzero(labels == row)[:cols]):
            y, x = row * (height + gap), col * (width + gap)
            sheet[y : y + height, x : x + width] = images[index].transpose(1, 2, 0)
    return sheet


def sample_grid(federation: Federation, per_class: int = 1, seed: int = 0) -> Picture:
    """Training images drawn at random: ``per_class`` rows per client, one column per class. A
    client without images of a class leaves its place white."""
    if per_class < 1:
        raise FedReproError(f"per_class = {per_class}: give 1 or more images a class")
    clients, classes = federation.clients, federation.classes
    blank = np.full((3, federation.size, federation.size), 255, np.uint8)
    images = []
    for index, client in enumerate(clients):
        generator = numpy_stream(seed, "figure", client=index)
        labels, pixels = client.train.labels.cpu().numpy(), client.train.images.cpu().numpy()
        chosen = [generator.permutation(np.flatnonzero(labels == c)) for c in range(len(classes))]
        for row in range(per_class):
            images += [pixels[one[row]] if row < len(one) else blank for one in chosen]
    rows, step = len(clients) * per_class, federation.size + 2
    places = np.repeat(np.arange(rows), len(classes))
    sheet = _contact_sheet(np.stack(images), places, rows=rows, cols=len(classes), gap=2)
    figure, axes = picture(0.55 + 0.7 * _long(classes) + 3.9 * rows / len(classes))
    ax = axes[0, 0]
    ax.imshow(sheet, interpolation="nearest" if federation.size < 48 else "antialiased")
    middle = federation.size / 2 - 0.5
    ax.set_xticks([step * i + middle for i in range(len(classes))], classes)
    ax.xaxis.tick_top()
    _turn(ax, classes, "left")
    centres = [step * (per_class * i + (per_class - 1) / 2) + middle for i in range(len(clients))]
    ax.set_yticks(centres, [_wrapped(client.name, 10) for client in clients])
    ax.tick_params(length=0, labelsize=SMALL)
    ax.spines[:].set_visible(False)
    ax.xaxis.set_label_position("top")
    label_axes(ax, "class", "client")
    return figure


def _long(names: Sequence[str]) -> bool:
    return max(map(len, names)) > 3


def _turn(ax: Any, names: Sequence[str], side: str) -> None:
    """Long names of classes stand aslant."""
    if _long(names):
        ax.tick_params(axis="x", labelrotation=60)
        for text in ax.get_xticklabels():
            text.set(ha=side, rotation_mode="anchor")


def _wrapped(name: str, width: int) -> str:
    """A long name broken once, after a hyphen or an underscore."""
    cut = min((i for i in map(name.find, "-_") if i >= 0), default=-1) + 1
    return f"{name[:cut]}\n{name[cut:]}" if len(name) > width and cut else name


def counts_chart(federation: Federation, shares: bool = False) -> Picture:
    """Images by client (or domain, where they belong to all of it) and class: one panel per split,
    the number in every place and the sum at the end of its row. shares: percent of each client's
    training images in place of numbers."""
    from seaborn import heatmap

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
    height = sum(heights) + 0.6 * _long(federation.classes)
    figure, axes = picture(height, len(tables), height_ratios=heights, sharex=True)
    for ax, (split, table) in zip(axes[:, 0], tables.items(), strict=True):
        heatmap(
            table.rename(index=lambda name: _wrapped(str(name), 12)),
            annot=table.map(_count),
            fmt="",
            annot_kws={"size": 8.5},
            cmap="Blues",
            vmin=0,
            vmax=1.25 * max(table.to_numpy().max(), 1),
            cbar=False,
            ax=ax,
        )
        for row, total in enumerate(table.sum(axis=1)):
            place = (table.shape[1] + 0.15, row + 0.5)
            ax.text(*place, _count(total), va="center", size=SMALL, weight="bold")
        ax.tick_params(axis="y", labelrotation=0)
        _turn(ax, federation.classes, "right")
        ax.tick_params(length=0, labelsize=SMALL)
        ax.set_xlim(0, table.shape[1] + 1.3)
        owner = "client" if split == "train" else "domain"
        what = "images in percent, by class" if shares else "images by class, and in all"
        label_axes(ax, "", owner, f"{split!s} {what}")
    axes[-1, 0].set_xlabel("class", fontsize=TEXT)
    return figure


def _count(value: float) -> str:
    return f"{value:.0f}" if value < 10_000 else f"{value / 1000:.0f}k"


def embedding(points: pd.DataFrame, by: Literal["domain", "class"] = "domain") -> Picture:
    """Representations in the plane: one panel per label, a colour and marker for each domain or
    class.

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
            chosen, text = part[part[key] == group], str(group)
            letter = f"${text}$" if by == "class" and text.isalnum() and len(text) == 1 else None
            ax.scatter(
                *(chosen.x, chosen.y),
                s=28 if letter else 16,
                marker=letter or MARKERS[index % 12],
                color=COLOURS[index % 10],
                linewidth=0.4 if letter else 0,
                alpha=0.85,
                label=text,
            )
        _bare(ax)
        label_axes(ax, title=str(label))
    if rows * cols > len(panels):
        shape = {"loc": "center", "ncols": 2 if by == "class" else 1, "markerscale": 1.5}
        texts = axes[0, 0].get_legend_handles_labels()
        axes.flat[-1].legend(*texts, fontsize=SMALL, title=by, **shape)
    else:
        legend_above(figure, axes[0, 0], 5 if by == "class" else 3)
    figure.drawn_live = interactive.embedding(points, by)
    return figure


def confusion(frame: pd.DataFrame) -> Picture:
    """How the test images of each class are classified, in percent: one panel per domain, classes
    downwards. The picture is of the first method, its interactive form has them all.

    frame: method, domain, cls, predicted, percent and images, as `views.confusion` makes it.
    """
    from seaborn import heatmap

    columns = ("method", "domain", "cls", "predicted", "percent", "images")
    frame = checked(frame, columns, "confusion of classes")
    first, classes = frame.method.iloc[0], sorted(frame.cls.unique())
    panels = list(frame[frame.method == first].groupby("domain", sort=False))
    rows = math.ceil(len(panels) / 2)
    figure, axes = picture(2.6 * rows + 0.3, rows, 2)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    for ax, (domain, part) in zip(axes.flat, panels, strict=False):
        table = part.pivot_table(index="cls", columns="predicted", values="percent", sort=False)
        table = table.reindex(index=classes, columns=classes).fillna(0)
        heatmap(table, cmap="Blues", vmin=0, vmax=100, cbar=False, square=True, ax=ax)
        ax.tick_params(length=0, labelsize=SMALL)
        _turn(ax, classes, "right")
        label_axes(ax, "predicted", "class", str(domain))
    figure.suptitle(f"{first}: % of each class", fontsize=TEXT)
    figure.drawn_live = interactive.confusion(frame)
    return figure


def _bare(ax: Any) -> None:
    """A frame without ticks."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(True)
    ax.spines[:].set_color(GRID)


def plane(points: pd.DataFrame) -> Picture:
    """Embeddings and prototypes: a colour for each domain, a marker for each class, large with an
    edge the prototypes, red stars the means of prototypes over clients.

    points: x, y, domain, cls, role, as `embedding.with_prototypes` gives them.
    """
    points = checked(points, ("x", "y", "domain", "cls", "role"), "plane of prototypes")
    star = "mean of prototypes"
    domains = list(dict.fromkeys(points[points.role != star].domain))
    classes = list(dict.fromkeys(points.cls))
    figure, axes = picture(5.2 + 0.25 * (len(domains) + len(classes)) / 3)
    ax = axes[0, 0]
    for (role, domain, name), part in points.groupby(["role", "domain", "cls"], sort=False):
        size, alpha, edge = ROLES[role]
        ax.scatter(
            *(part.x, part.y),
            s=size,
            alpha=alpha,
            edgecolors=edge,
            linewidths=0.8 if edge != "none" else 0,
            marker="*" if role == star else MARKERS[classes.index(name) % 12],
            color=MEAN if role == star else COLOURS[domains.index(domain) % 8],
            zorder=1 + list(ROLES).index(role),
        )
    keys: list[dict[str, Any]] = [
        *({"s": 40, "marker": "s", "color": COLOURS[i % 8]} for i in range(len(domains))),
        *({"s": 40, "marker": MARKERS[i % 12], "color": "white"} for i in range(len(classes))),
        {"s": 110, "marker": "*", "color": MEAN},
    ]
    for key, label in zip(keys, (*domains, *classes, star), strict=True):
        ax.scatter([], [], edgecolors="black", label=label, **key)
    _bare(ax)
    legend_above(figure, ax, 3)
    return figure


def inversions(figure: Figure, cells: Sequence[dict[str, Any]]) -> Picture:
    """One row per attacked prototype: the image found, the one behind the prototype and another of
    its class; under the first and the last their likeness to the one behind.

    figure, cells: `Study.figure` and `Study.cells` of an experiment of kind ``inversion``.
    """
    arrays, names = figure.arrays, figure.facts.get("rows")
    if not names:
        raise FedReproError("no attack to draw; give the figure of an experiment that attacks")
    likeness = {(row["method"], row["column"]): row["value"] for row in cells}
    drawn, axes = picture(0.4 + 1.45 * len(names), len(names), len(SEEN))
    for row, name in enumerate(names):
        for ax, (key, title) in zip(axes[row], SEEN, strict=True):
            image = arrays[key][row]
            small = image.shape[1] < 48
            ax.imshow(np.moveaxis(image, 0, 2), interpolation="nearest" if small else "antialiased")
            _bare(ax)
            ax.spines[:].set_visible(False)
            label_axes(ax, title=title if row == 0 else "")
            if key != "behind":
                what = "after" if key == "found" else "of another"
                ratio, alike = likeness[name, f"PSNR {what}"], likeness[name, f"SSIM {what}"]
                near = f"{ratio:.1f} dB" if ratio is not None else "the same"
                ax.set_xlabel(f"{near}, SSIM {alike:.2f}", fontsize=SMALL)
        axes[row, 0].set_ylabel(
            name.replace(", ", ",\n"), rotation=0, ha="right", va="center", fontsize=SMALL
        )
    return drawn
