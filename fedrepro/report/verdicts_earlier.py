"""The verdicts' rules until 2026-11-23, kept for one release: `verdicts --json` shows their word
with today's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.special import stdtrit  # scipy.stats takes a second to import

from fedrepro.federated.metrics import ROUNDING

TOLERANCES = {"percent": 2.0, "fraction": 0.02}  # by unit; other units have none
MIN_SEEDS = 3


def earlier(
    published: float | None,
    published_std: float | None,
    trials: int | None,
    ours: Sequence[float],
    *,
    scale: str,
    standin: bool,
    unit: str,
    counted: int | None,
) -> str:
    """The word of one cell. ours: one number per seed, NaN if a seed has no value. counted:
    decimals of the printed number, if ours was counted and not trained."""
    if not ours:
        return "not run"
    if scale == "smoke" or published is None:
        return "no verdict"
    valid = [value for value in ours if not math.isnan(value)]
    d = fmean(valid) - published if valid else math.nan
    if scale != "paper" or standin:
        return "not comparable"
    if counted is not None and valid:
        same = abs(d) <= 0.5 * 10**-counted + ROUNDING
        return "reproduced" if same else "higher" if d > 0 else "lower"
    if len(valid) < max(len(ours), MIN_SEEDS):
        return "inconclusive"
    if unit in TOLERANCES and abs(d) <= TOLERANCES[unit] + ROUNDING:
        return "reproduced"
    if abs(d) <= _half_width(published_std, trials, valid) + ROUNDING:
        return "within noise"
    return "higher" if d > 0 else "lower"


def _half_width(published_std: float | None, trials: int | None, ours: Sequence[float]) -> float:
    """Half the width of the 95 % interval: Welch's if the paper gives std and trials, else a
    prediction interval."""
    count, own = len(ours), stdev(ours) ** 2
    if published_std is None or trials is None or trials < 2:
        return float(stdtrit(count - 1, 0.975)) * math.sqrt(own * (1 + 1 / count))
    mine, theirs = own / count, published_std**2 / trials
    below = mine**2 / (count - 1) + theirs**2 / (trials - 1)
    freedom = (mine + theirs) ** 2 / below if below > 0 else math.inf
    return float(stdtrit(freedom, 0.975)) * math.sqrt(mine + theirs)
