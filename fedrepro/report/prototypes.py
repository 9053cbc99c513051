"""Figures of prototypes: in the plane among the embeddings they stand for, and as images that an
attacker makes of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedrepro.base.errors import FedReproError
from fedrepro.quantities.base import Figure
from fedrepro.quantities.figure_arrays import likeness
from fedrepro.report.picture import (
    COLOURS,
    GRID,
    MARKERS,
    SMALL,
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


def plane(points: pd.DataFrame) -> Picture:
    """Embeddings and prototypes: a colour a domain, a marker a class, large with an edge the
    prototypes, red stars the means of prototypes over clients. No ticks: the plane has no unit.

    points: x, y, domain, cls, role, as `with_prototypes` gives them.
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
    for index, domain in enumerate(domains):
        ax.scatter([], [], s=40, marker="s", color=COLOURS[index % 8], label=domain)
    for index, name in enumerate(classes):
        ax.scatter([], [], s=40, marker=MARKERS[index % 12], color="white", edgecolors="black",
                   label=name)  # fmt: skip
    ax.scatter([], [], s=110, marker="*", color=MEAN, edgecolors="black", label=star)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(True)
    ax.spines[:].set_color(GRID)
    legend_above(figure, ax, 3)
    return figure


def inversions(figure: Figure) -> Picture:
    """A row an attacked prototype: the image found, the one behind the prototype and another of
    its class; under the first and the last their likeness to the one behind.

    figure: the arrays of an experiment of kind ``inversion`` (`Study.figure`).
    """
    arrays, names = figure.arrays, figure.facts.get("rows")
    if not names:
        raise FedReproError("no attack to draw; give the figure of an experiment that attacks")
    drawn, axes = picture(0.4 + 1.45 * len(names), len(names), len(SEEN))
    for row, name in enumerate(names):
        for ax, (key, title) in zip(axes[row], SEEN, strict=True):
            image = arrays[key][row]
            small = image.shape[1] < 48
            ax.imshow(np.moveaxis(image, 0, 2), interpolation="nearest" if small else "antialiased")
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
            label_axes(ax, title=title if row == 0 else "")
            if key != "behind":
                ratio, alike = likeness(image, arrays["behind"][row])
                ax.set_xlabel(f"{ratio:.1f} dB, SSIM {alike:.2f}", fontsize=SMALL)
        axes[row, 0].set_ylabel(
            name.replace(", ", ",\n"), rotation=0, ha="right", va="center", fontsize=SMALL
        )
    return drawn
