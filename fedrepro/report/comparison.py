"""The statistics behind one cell's verdict: our seeds beside a printed number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Literal

from fedrepro.federated.metrics import CONFIDENCE, ROUNDING, Estimate
from fedrepro.papers import Paper
from fedrepro.quantities.noise import Noise, combined, of_printed, tested_images
from fedrepro.records import Record

Word = Literal[
    "agrees",
    "higher",
    "lower",
    "close",
    "open",
    "counted equal",
    "counted unequal",
    "no verdict",
    "not run",
]


@dataclass(frozen=True)
class Compared(Estimate):
    """Our number less the printed one. tolerance: Δ."""

    tolerance: float
    one_run: bool = False

    @property
    def p(self) -> float:
        """Two-sided, of no difference."""
        if not self.error:
            return 0.0 if abs(self.mean) > ROUNDING else 1.0
        return 2 * self.below(-abs(self.mean) / self.error)

    def word(self, adjusted: float) -> tuple[Word, str]:
        """The verdict and why. adjusted: p after the table's correction."""
        low, high = self.between(0.9)
        close = abs(self.mean) <= self.tolerance + ROUNDING
        run = "one run: " * self.one_run
        delta = f"±{self.tolerance:.3g}"
        if self.tolerance and max(-low, high) <= self.tolerance + ROUNDING:
            return "agrees", f"{run}the 90 % interval lies within {delta}"
        if not close and adjusted < 1 - CONFIDENCE:
            word: Word = "higher" if self.mean > 0 else "lower"
            return word, f"{run}beyond {delta}, p {adjusted:.2g} over the table"
        if close and self.tolerance:
            return "close", f"{run}within {delta}, its 90 % interval is not"
        return "open", f"{run}d is beyond {delta}, p {adjusted:.2g} over the table"


def compared(
    published: float,
    published_std: float | None,
    trials: int,
    ours: Sequence[float],
    *,
    pooled: tuple[float, float] | None = None,
    images: float = 0.0,
    theirs: float = 0.0,
    tolerance: float = 0.0,
) -> Compared | None:
    """Our seeds beside a printed number; None where no spread is known.

    published_std: over so many trials; None where it is not printed or not usable. pooled: variance
    of one run and its degrees of freedom, for a single seed. images, theirs: variance of our
    number and of the printed one over draws of test images.
    """
    own = (variance(ours), float(len(ours) - 1)) if len(ours) > 1 else pooled
    if own is None:
        return None
    spread, freedom = own
    if published_std is None or trials < 2:
        parts = [(spread * (1 / len(ours) + 1 / trials), freedom)]
    else:
        parts = [(spread / len(ours), freedom), (published_std**2 / trials, trials - 1)]
    error, known = combined(*parts, (images + theirs, math.inf))
    return Compared(fmean(ours) - published, error, known, tolerance, len(ours) == 1)


def drawn(
    paper: Paper, table: str, method: str, column: str, runs: Sequence[Record], noise: Noise
) -> tuple[float, float]:
    """Variance over draws of test images, of our runs' mean and of the printed number, in its unit;
    none where both test the same images. column: ours, a domain or a plain mean of all domains."""
    if runs[0].protocol.data.same_tests:
        return 0.0, 0.0
    printed, images = paper.table(table), tested_images(runs[0])
    domains = [column] if column in images else list(images)
    own, *cells = (
        printed.cell(method, paper.column(table, name) or name) for name in (column, *domains)
    )
    known = [cell if cell is not None and cell.value is not None else own for cell in cells]
    whole = 1.0 if printed.unit_of(paper.column(table, column) or column) == "fraction" else 100.0
    shares = [cell.value / whole for cell in known if cell is not None and cell.value is not None]
    theirs = of_printed(shares, [images[domain] for domain in domains])
    return whole**2 * noise.variance([runs], column), whole**2 * theirs
