"""What a claim's test compares: a row less another, seed by seed."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from fedrepro.papers import Comparison, Paper
from fedrepro.quantities.base import get


@dataclass(frozen=True)
class Pair:
    """A test's better row less another in one column, by seed. printed: the same, as printed. unit:
    pairs of one unit have one spread."""

    other: str
    column: str
    gaps: pd.Series
    printed: float | None
    unit: str


@dataclass(frozen=True)
class Spread:
    """Variance of paired differences over seeds, its degrees of freedom, and how many pairs it is
    pooled over."""

    variance: float
    freedom: int
    pairs: int


def pooled(pairs: Iterable[Pair]) -> Spread:
    """Of pairs of one unit, on one data set at one scale."""
    every = [pair.gaps for pair in pairs]
    freedom = sum(len(gaps) - 1 for gaps in every)
    total = sum(float(((gaps - gaps.mean()) ** 2).sum()) for gaps in every)
    return Spread(total / freedom if freedom else 0.0, freedom, len(every))


def paired(paper: Paper, test: Comparison, rows: pd.DataFrame) -> list[Pair]:
    """The pairs of a test in the cells of one data set and scale; none where a row is missing."""
    better = _by_seed(rows, test.experiment, test.better)
    theirs = test.against or test.experiment
    tables = {name: _by_seed(rows, theirs, name) for name in _others(paper, test)}
    if better.empty or any(table.empty for table in tables.values()):
        return []
    sign, found = -1 if test.lower else 1, []
    whole = get(paper.experiment(test.experiment).kind).whole
    for column in _columns(test, better):
        gaps = {name: better[column] - t[column] for name, t in tables.items() if column in t}
        if test.above is not None:
            gaps = {f"{test.above:g}": better[column] - test.above}
        for name, by_seed in gaps.items():
            printed = _printed(paper, test, name, column, sign)
            unit = f"{whole:g}" if whole else column
            found.append(Pair(name, column, sign * by_seed.dropna(), printed, unit))
    return [pair for pair in found if len(pair.gaps)]


def _others(paper: Paper, test: Comparison) -> list[str]:
    if test.above is not None:
        return []
    if test.than != "all":
        return list(test.than)
    specs = paper.arm_specs(test.against or test.experiment)
    return [s.label for s in specs if s.label != test.better and not s.alternative]


def _by_seed(rows: pd.DataFrame, table: str, name: str) -> pd.DataFrame:
    """A row's values: one line per seed, a column per column."""
    own = rows[(rows.table == table) & (rows.method == name) & rows.value.notna()]
    return own.astype({"value": float}).pivot_table("value", "seed", "column")


def _columns(test: Comparison, table: pd.DataFrame) -> list[str]:
    if test.by in ("each", "only"):
        return [str(column) for column in table.columns if column != "avg"]
    names = (test.by,) if isinstance(test.by, str) else test.by
    return [name for name in names if name in table.columns][:1]


def _printed(paper: Paper, test: Comparison, other: str, column: str, sign: int) -> float | None:
    """The printed difference of the same two rows, where both are printed."""
    table = paper.experiment(test.experiment).table
    if table is None or test.against:
        return None
    shown = paper.column(table, column)
    cells = [paper.table(table).cell(name, shown or column) for name in (test.better, other)]
    values = [cell.value for cell in cells if cell is not None and cell.value is not None]
    return sign * (values[0] - values[1]) if len(values) == 2 else None
