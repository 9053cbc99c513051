"""Can a printed mean and deviation come from T accuracies on N test images? The GRIM and GRIMMER
checks of meta-science, only arithmetic: a number that does not fit may also mean another test set,
another number of trials, or an intermediate rounding."""

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from html import escape
from itertools import product
from math import ceil, floor, sqrt
from typing import Any

import numpy as np
import pandas as pd

from fedrepro.papers import Paper, Table
from fedrepro.report.tables import Html, nothing, whole

CLOSE = 1e-9
FITS = {"means": ("one run", "all evaluations"), "deviations": ("over T - 1", "over T")}


def mean_fits(printed: str, images: int, evaluations: int) -> bool:
    """Whether some mean of T accuracies on N images is printed as given (in percent)."""
    return bool(_counts(printed, images * evaluations))


def stds_fit(mean: str, stds: Sequence[str], images: int, evaluations: int, ddof: int) -> float:
    """The share of some deviations, with as many digits each, that fit with the printed mean."""
    half, printed = _half(stds[0]), np.array(stds, dtype=float)
    # One accuracy x images over the mean, one x under it, the rest at it: if one image moves the
    # deviation by less than the rounding, some x fits.
    room = float(printed.max()) * sqrt(max(0, evaluations - ddof) / 2) + 100 / images
    fine = evaluations > ddof and 100 / images * sqrt(2 / (evaluations - ddof)) <= 2 * half
    inside = room <= float(mean) <= 100 - room
    if fine and inside and len(_counts(mean, images * evaluations)) >= evaluations > 1:
        return 1.0
    how = images, evaluations, ddof, float(printed.max()) + half
    found = [std for total in _counts(mean, images * evaluations) for std in _stds(total, *how)]
    near = abs(np.array(found)[:, None] - printed) <= half + CLOSE
    return float(near.any(axis=0).mean())


def by_chance(printed: str, images: int, evaluations: int) -> float:
    """The share of numbers near the printed one, with as many digits, that fit by chance."""
    near = [number for number in _near(printed, 200) if float(number) <= 100]
    return float(np.mean([mean_fits(number, images, evaluations) for number in near]))


def _near(printed: str, reach: int) -> list[str]:
    digits, step = len(printed.partition(".")[2]), 2 * _half(printed)
    near = [f"{float(printed) + k * step:.{digits}f}" for k in range(-reach, reach + 1)]
    return [number for number in near if not number.startswith("-")]


def average_fits(cells: list[str], average: str) -> bool:
    """Whether the mean of printed numbers is the printed average, within the rounding of both."""
    room = _half(average) + float(np.mean([_half(cell) for cell in cells]))
    return abs(float(np.mean([float(cell) for cell in cells])) - float(average)) <= room + CLOSE


def checked(paper: Paper) -> pd.DataFrame:
    """One row per table and column whose test images are known: how many printed means and
    deviations fit, in two ways each, and the share of each that fits by chance. tells: whether some
    number, or one near it, does not fit. no such mean: those that are no mean of T accuracies."""
    rows = []
    for known in paper.tested:
        for name, (column, images) in product(known.tables, known.images.items()):
            table, trials = paper.table(name), known.evaluations
            cells = {method: _cell(table, method, column) for method in table.rows}
            cells = {method: cell for method, cell in cells.items() if cell[0] != "-"}
            means, pairs = [mean for mean, _ in cells.values()], [c for c in cells.values() if c[1]]
            row: dict[str, Any] = {"table": name, "column": column, "images": images}
            row |= {"evaluations": trials, "means": len(means), "deviations": len(pairs)}
            found: dict[str, tuple[list[bool], list[float]]] = {}
            for what, n in zip(FITS["means"], (1, trials), strict=True):
                shares = [by_chance(mean, images, n) for mean in means]
                found[what] = [mean_fits(mean, images, n) for mean in means], shares
            for what, d in zip(FITS["deviations"], (1, 0), strict=True):
                shares = [stds_fit(m, _near(s, 10), images, trials, d) for m, s in pairs]
                found[what] = [stds_fit(m, [s], images, trials, d) == 1 for m, s in pairs], shares
            for what, (fits, shares) in found.items():
                share = round(float(np.mean(shares or [1])), 2)
                row |= {f"fit {what}": sum(fits), f"by chance, {what}": share}
                row["tells"] = row.get("tells", False) or share < 1 or not all(fits)
            unfit = [f"{m} {c[0]}" for m, c in cells.items() if not mean_fits(c[0], images, trials)]
            row["no such mean"] = ", ".join(unfit)
            rows.append(row)
    return pd.DataFrame(rows)


def averages(paper: Paper) -> pd.DataFrame:
    """One row per printed average accuracy that is not the mean of its row's other numbers."""
    rows = []
    for table in (t for t in paper.tables if "avg" in t.columns and len(t.columns) > 2):
        columns = [column for column in table.columns if column != "avg"]
        for method in table.rows if table.unit in ("percent", "fraction") else ():
            average, *others = (_cell(table, method, column)[0] for column in ("avg", *columns))
            if "-" not in (average, *others) and not average_fits(others, average):
                mean = round(float(np.mean([float(other) for other in others])), 3)
                rows.append((table.id, method, average, mean))
    return pd.DataFrame(rows, columns=["table", "method", "printed", "mean of the row"])


def shown(paper: Paper) -> Html:
    """What is checked of a paper, and the printed averages that are not their rows' means."""
    label = f"printed numbers of {paper.short}, checked"
    rows = checked(paper)
    if rows.empty:
        return nothing(f"No printed table of {paper.short} has known test sizes.")
    always = rows[~rows["tells"]].groupby("table", sort=False)["column"].agg(", ".join)
    rows, names = rows[rows["tells"]].copy(), ["table", "column", "images", "evaluations"]
    for of, ways in FITS.items():
        for way in ways:
            share = rows[f"by chance, {way}"].map(" ({:.2f})".format)
            found = rows[f"fit {way}"].astype(str) + " of " + rows[of].astype(str) + share
            names.append(f"{of}, {way}")
            rows[names[-1]] = found.where(rows[of] > 0, "–")
    html = whole(rows[names], label, 2).html
    if len(unfit := rows[rows["no such mean"] != ""]):
        cells = zip(unfit["table"], unfit["column"], unfit["no such mean"], strict=True)
        listed = "; ".join(escape(f"{table} {column}: {means}") for table, column, means in cells)
        html += f"<p>Printed means that no accuracies on so many images can give: {listed}.</p>"
    if len(always):
        tables = always.index.to_series().groupby(always, sort=False).agg(", ".join)
        listed = "; ".join(f"{names} ({columns})" for columns, names in tables.items())
        html += (
            f"<p>The check says nothing here, because every nearby number fits, too: {listed}.</p>"
        )
    wrong, what = averages(paper), f"Averages of {paper.short} that are not the mean of their row"
    more = ": none.</p>" if wrong.empty else f":</p>{whole(wrong, what, 2).html}"
    return Html(f"{html}<p>{what}{more}", label)


def _cell(table: Table, method: str, column: str) -> tuple[str, str]:
    """Mean and deviation in percent as printed, the second empty if there is none."""
    cell = table.cell(method, column)
    mean, _, std = (cell.printed if cell else "-").partition("±")
    if table.unit == "fraction" and mean != "-":
        mean = str(Decimal(mean).scaleb(2))
    return mean.strip(), std.strip()


def _half(printed: str) -> float:
    return float(0.5 * 10 ** -len(printed.partition(".")[2]))


def _counts(printed: str, of: int) -> range:
    """The numbers of right answers, out of a total, whose percentage is printed as given."""
    low, high = float(printed) - _half(printed), float(printed) + _half(printed)
    first, last = ceil(low * of / 100 - CLOSE), floor(high * of / 100 + CLOSE)
    return range(max(0, first), min(of, last) + 1)


@lru_cache(maxsize=4096)
def _stds(total: int, images: int, evaluations: int, ddof: int, most: float) -> tuple[float, ...]:
    """Deviations, up to a size, of all sets of accuracies with a given total of right answers."""
    if evaluations == 1:
        return ()
    reach, middle = ceil(most * images / 100 * sqrt(evaluations)), total / evaluations
    steps = range(max(0, floor(middle) - reach), min(images, ceil(middle) + reach) + 1)
    # All except the last are free: their sum and sum of squares, as sets of whole numbers.
    sums = {(0, 0)}
    for _ in range(evaluations - 1):
        sums = {(s + k, q + k**2) for s, q in sums for k in steps}
    squares = {q + (total - s) ** 2 for s, q in sums if 0 <= total - s <= images}
    spread = (np.array(sorted(squares)) - total**2 / evaluations) / (evaluations - ddof)
    found = 100 / images * np.sqrt(np.maximum(spread, 0))
    return tuple(float(value) for value in found[found <= most + CLOSE])
