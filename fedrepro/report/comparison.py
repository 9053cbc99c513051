"""The statistics behind one cell's verdict: our seeds beside a printed number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Literal

from fedrepro.federated.metrics import CONFIDENCE, ROUNDING, Estimate
from fedrepro.quantities.noise import combined

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
    tolerance: float = 0.0,
) -> Compared | None:
    """Our seeds beside a printed number; None where no spread is known.

    published_std: over so many trials; None where it is not printed or not usable. pooled: variance
    of one run and its degrees of freedom, for a single seed. images: variance of our number over
    draws of test images; the paper's is taken as equal.
    """
    own = (variance(ours), float(len(ours) - 1)) if len(ours) > 1 else pooled
    if own is None:
        return None
    spread, freedom = own
    if published_std is None or trials < 2:
        parts = [(spread * (1 / len(ours) + 1 / trials), freedom)]
    else:
        parts = [(spread / len(ours), freedom), (published_std**2 / trials, trials - 1)]
    error, known = combined(*parts, (2 * images, math.inf))
    return Compared(fmean(ours) - published, error, known, tolerance, len(ours) == 1)
