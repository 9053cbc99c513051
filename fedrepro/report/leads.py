"""The leads of the papers' main claims, ours beside the printed ones, and all of them in a picture.

``python -m fedrepro.report.leads book/_static/main-claims.png`` writes README's.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.transforms import blended_transform_factory

from fedrepro import papers
from fedrepro.papers import Paper
from fedrepro.quantities.base import get
from fedrepro.report.claims import Answer, Difference, Part, of_recorded
from fedrepro.report.picture import OURS, PAPER, SMALL, Picture, label_axes, picture
from fedrepro.report.sections import MINUS
from fedrepro.report.text import dataset_name


@dataclass(frozen=True)
class Lead:
    """Of a claim's row over another on one data set, where the claim has least support: the printed
    one and ours, accuracies in points. interval: 95 %, none of a count."""

    where: str
    part: Part
    least: Difference
    ours: float
    interval: tuple[float, float] | None
    printed: float | None
    unit: str = ""

    @property
    def shown(self) -> tuple[str, str]:
        """The printed lead and ours as texts: ``+1.6``, ``+0.5 [-1.1, +2.1] over FedBN``."""
        lower = self.part.test.lower

        def signed(value: float) -> str:
            return f"{value:{'' if lower else '+'}.1f}".replace("-", MINUS)

        ours = signed(self.ours)
        if self.interval is not None:
            ours += " [{}, {}]".format(*map(signed, self.interval))
        ours += self.unit + f" {'less than' if lower else 'over'} {self.least.other}"
        ours += "; still rising" * bool(self.part.rising)
        ours += "; earlier settings" * bool(self.part.past)
        return "" if self.printed is None else signed(self.printed) + self.unit, ours


def leads(paper: Paper, parts: Sequence[Part]) -> list[Lead]:
    """One for each data set that a claim was run on."""
    found: dict[str, Lead] = {}
    for part in parts:
        least = part.weakest
        if least is None or (part.dataset in found and found[part.dataset].least.p >= least.p):
            continue
        spec = paper.experiment(part.test.experiment)
        whole = get(spec.kind).whole
        points = 100 / whole if whole else 1.0
        low, high = least.interval or (math.nan, math.nan)
        found[part.dataset] = Lead(
            *(dataset_name(part.dataset), part, least, points * least.mean),
            None if least.interval is None else (points * low, points * high),
            None if least.printed is None else points * least.printed,
            f" {paper.table(spec.table).unit}" if spec.table and not whole else "",
        )
    return list(found.values())


def main() -> list[tuple[Paper, Answer]]:
    """Every main claim of every paper, answered."""
    found = [(papers.load(name), one) for name in papers.list() for one in of_recorded(name)]
    return [(paper, one) for paper, one in found if one.claim.main]


Rows = list[tuple[str, Lead | None]]  # a claim, then its data sets with their leads


def _rows() -> Rows:
    """Every lead that has an interval, data sets under their claim."""
    rows: Rows = []
    for paper, one in main():
        if own := [lead for lead in leads(paper, one.parts) if lead.interval]:
            rows.append((f"{paper.short}: {one.claim.main}", None))
            rows += [(lead.where, lead) for lead in own]
    return rows


def drawn() -> Picture:
    """The leads. Hollow: rising curves, or rows of earlier settings."""
    rows = _rows()
    figure, axes = picture(1.1 + 0.23 * len(rows))
    ax = axes[0, 0]
    for place, (name, lead) in enumerate(rows):
        if lead is None or lead.interval is None:
            at = blended_transform_factory(figure.transFigure, ax.transData)
            text = ax.text(0.015, place, name, transform=at, va="center", size=SMALL, zorder=3)
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
            text.set_in_layout(False)
            continue
        if lead.printed is not None:
            ax.plot(lead.printed, place, "D", color=PAPER, markersize=8)
        ax.hlines(place, *lead.interval, color=OURS, linewidth=2)
        settled = not (lead.part.rising or lead.part.past)
        ax.plot(lead.ours, place, "o", color=OURS, mfc=OURS if settled else "white")
    ax.plot([], [], "o-", color=OURS, label="ours, 95 %")
    ax.plot([], [], "o", color=OURS, mfc="white", label="still rising, or earlier settings")
    ax.plot([], [], "D", color=PAPER, markersize=8, label="printed")
    ax.axvline(0, color=PAPER, linewidth=1)
    places = [place for place, (_, lead) in enumerate(rows) if lead]
    ax.set_yticks(places, [rows[place][0] for place in places])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(rows) - 0.5, -0.7)
    label_axes(ax, "lead over the rival, in points", grid="x")
    handles = ax.get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=3, fontsize=SMALL, frameon=False)
    figure.caption = caption(rows)
    return figure


def caption(rows: Rows | None = None) -> str:
    """The picture in words, without drawing it."""
    found = [lead for _, lead in (_rows() if rows is None else rows) if lead is not None]
    intervals = [lead.interval for lead in found if lead.interval]
    above, below = sum(low > 0 for low, _ in intervals), sum(high < 0 for _, high in intervals)
    return (
        f"Main claims on their data sets, {len(found)} rows: our lead over the rival that supports "
        f"the claim least, with its 95 % interval, beside the printed lead, in points. Ours is "
        f"above 0 in {above}, below 0 in {below}, not told from 0 in "
        f"{len(found) - above - below}; in {sum(bool(lead.part.rising) for lead in found)} the "
        "curves still rise"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(drawn().png())
