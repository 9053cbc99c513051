"""A published cell against re-run seeds: the rules, fixed before any run, and nothing else.

The book prints ``rules_markdown()`` on its page "how to read a verdict"; what stands there is what
``verdict`` does. Nothing here trains, reads a run folder or knows a method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, Literal

import pandas as pd
from scipy import stats

from fedrepro.federated.metrics import ROUNDING
from fedrepro.papers import Paper, Table, contradicts
from fedrepro.quantities.paper_run import Study

Word = Literal[
    "reproduced",
    "within noise",
    "higher",
    "lower",
    "inconclusive",
    "not comparable",
    "no verdict",
    "not run",
]
TOLERANCE = 2.0  # percentage points
MIN_SEEDS = 3
CONFIDENCE = 0.95
TOLERANCES = {"percent": TOLERANCE, "fraction": TOLERANCE / 100}  # by unit; other units have none
LOWER_IS_BETTER = ("rounds", "GB", "MB", "hours", "seconds", "ratio", "MI score")
BESIDE_STANDIN = "trained beside a stand-in client"
COLUMNS = (
    *("paper", "table", "dataset", "method", "column", "published", "published_std"),
    *("ours", "ours_std", "seeds", "scale", "verdict", "why"),
    *("difference", "low", "high", "unit", "marks", "standin", "authors", "contradicted"),
)
ORDER_COLUMNS = (
    *("paper", "table", "dataset", "scale", "column", "method"),
    *("rank_ours", "rank_published", "methods", "tau"),
)

RULES: tuple[tuple[Word, str], ...] = (
    ("not run", "no run of ours; the printed cell is listed all the same"),
    ("no verdict", "the run is at scale smoke, or the paper prints no number in this place"),
    (
        "not comparable",
        "the run is at another scale than the paper's, the column is itself a stand-in, or it is "
        "an average that contains one",
    ),
    ("inconclusive", f"fewer than {MIN_SEEDS} seeds, or a seed without a value"),
    ("reproduced", f"d is at most {TOLERANCE:g} percentage points either way"),
    ("within noise", "the interval of d holds 0"),
    ("higher", "d is positive and its interval does not hold 0"),
    ("lower", "d is negative and its interval does not hold 0"),
)
NOTES: tuple[str, ...] = (
    "d is the mean of our seeds minus the printed number, under the score rule the paper used; "
    "where the paper does not name its rule, under the one the protocol page gives.",
    f"The interval is the {CONFIDENCE:.0%} interval of d, printed from two seeds on: Welch's "
    "where the paper gives a standard deviation over a known number of trials (taken as a sample "
    "standard deviation), else a prediction interval for one more run, from the spread of our "
    "seeds: d ± t(n-1) s √(1 + 1/n).",
    "Columns in other units than percent (rounds, traffic, time) have no tolerance: the rule "
    "reproduced is left out for them.",
    "A deviation that can move a number (a stand-in client beside it, a subset, smaller source "
    "images) does not refuse the verdict: it is printed with it as a mark.",
    "What is counted and not trained (images, clients, parameters, bytes) needs one seed and has "
    "no interval: it is *reproduced* where it is the printed number to its last digit, else "
    "*higher* or *lower*.",
    "A run whose training diverged has no number: its row stays, with the seed and the round as a "
    "mark.",
    "Runs at scale reduced are read by the order of the methods only: our ranks beside the paper's "
    "with Kendall's tau, per column.",
)


@dataclass(frozen=True)
class Verdict:
    """difference: ours - published (None without both). interval: 95 % interval of the difference
    (None below two seeds). why: the rule that decided. marks: deviations printed beside it."""

    verdict: Word
    difference: float | None
    interval: tuple[float, float] | None
    why: str
    marks: tuple[str, ...] = ()


def rules_markdown() -> str:
    """The rules as the book prints them, in the order they are tried."""
    lines = [
        "The first rule that applies gives the verdict.",
        "",
        "| verdict | when |",
        "|---|---|",
    ]
    lines += [f"| *{word}* | {rule} |" for word, rule in RULES]
    return "\n".join([*lines, "", *(f"- {note}" for note in NOTES), ""])


def interval(
    published: float, published_std: float | None, published_n: int | None, ours: Sequence[float]
) -> tuple[float, float] | None:
    """The 95 % interval of mean(ours) - published; None below two seeds.

    Welch with Satterthwaite's degrees of freedom where the paper gives std and n >= 2, else a
    prediction interval from our seeds. No spread anywhere gives an interval of no width.
    """
    count = len(ours)
    if count < 2:
        return None
    difference, ours_var = fmean(ours) - published, stdev(ours) ** 2
    if published_std is not None and published_n is not None and published_n >= 2:
        mine, theirs = ours_var / count, published_std**2 / published_n
        spread = math.sqrt(mine + theirs)
        satterthwaite = mine**2 / (count - 1) + theirs**2 / (published_n - 1)
        freedom = (mine + theirs) ** 2 / satterthwaite if satterthwaite > 0 else math.inf
    else:
        spread = math.sqrt(ours_var * (1 + 1 / count))
        freedom = count - 1
    if spread == 0:
        return difference, difference
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * spread
    return difference - half, difference + half


def verdict(
    published: float | None,
    published_std: float | None,
    published_n: int | None,
    ours: Sequence[float],
    *,
    scale: str,
    standin: bool = False,
    marks: Sequence[str] = (),
    unit: str = "percent",
    counted: int | None = None,
) -> Verdict:
    """The verdict of one cell.

    published, published_std: as printed, in ``unit``; published_n: trials behind them. ours: one
    number a seed, same unit; NaN where a seed has no value (target not reached). standin: the
    column is a stand-in, or an average that contains one. counted: decimals of the printed number,
    where ours was counted and not trained.
    """
    kept = tuple(dict.fromkeys(marks))
    if not ours:
        return Verdict("not run", None, None, "no run of ours", kept)
    if scale == "smoke":
        return Verdict("no verdict", None, None, "scale smoke checks the path only", kept)
    if published is None:
        return Verdict("no verdict", None, None, "the paper prints no number here", kept)
    valid = [value for value in ours if not math.isnan(value)]
    difference = fmean(valid) - published if valid else None
    bounds = interval(published, published_std, published_n, valid)
    if counted is not None and difference is not None and scale == "paper" and not standin:
        word, why = _counted(difference, counted)
    else:
        word, why = _decide(len(ours), len(valid), difference, bounds, scale, standin, unit)
    return Verdict(word, difference, bounds, why, kept)


def _counted(difference: float, decimals: int) -> tuple[Word, str]:
    if abs(difference) <= 0.5 * 10**-decimals + ROUNDING:
        return "reproduced", "counted: the printed number to its last digit"
    return "higher" if difference > 0 else "lower", "counted: not the printed number"


def _decide(
    seeds: int,
    valid: int,
    difference: float | None,
    bounds: tuple[float, float] | None,
    scale: str,
    standin: bool,
    unit: str,
) -> tuple[Word, str]:
    """RULES from *not comparable* on, in their order."""
    if scale != "paper":
        return (
            "not comparable",
            f"scale {scale}: only the order of methods is read",
        )
    if standin:
        return "not comparable", "the column is a stand-in or an average that contains one"
    if seeds < MIN_SEEDS:
        return "inconclusive", f"{seeds} of at least {MIN_SEEDS} seeds"
    if valid < seeds or difference is None or bounds is None:
        return (
            "inconclusive",
            f"{seeds - valid} of {seeds} seeds have no value: target not reached, or diverged",
        )
    tolerance = TOLERANCES.get(unit)
    if tolerance is not None and abs(difference) <= tolerance + ROUNDING:
        return "reproduced", f"difference at most {tolerance:g} either way"
    if bounds[0] - ROUNDING <= 0 <= bounds[1] + ROUNDING:
        return "within noise", "the 95 % interval holds 0"
    word: Word = "higher" if difference > 0 else "lower"
    return word, "the 95 % interval does not hold 0"


def build_table(paper: Paper, table: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One printed table beside our runs, tidy: a row per cell and (data set, scale) it was run at.

    rows: one mapping per (method, column, seed) with keys dataset, method (the printed row's name),
    column (a domain, ``avg`` or a printed column), seed, value (in the column's unit; None or NaN
    where there is none), scale, standin (the column's own data is a stand-in), marks, alone
    (nothing travelled between clients, so that no other's stand-in can touch it) and counted
    (nothing was trained for it). Rows whose ``table`` names another table are left out. For an
    experiment with ``relative_to`` values are ratios to that row, and so are the published ones
    here.

    Published cells without a run of ours come last with verdict *not run*; our rows without a
    printed cell keep their numbers with verdict *no verdict*. standin: the column is a stand-in, or
    an average that contains one.
    """
    ours = _collect(paper, table, rows)
    shown = [_cell_row(paper, table, key, found) for key, found in ours.items()]
    covered = {(method, column) for _, _, method, column in ours}
    printed = paper.table(table)
    dataset = next((e.dataset for e in paper.experiments if e.table == table), "")
    for row in printed.rows:
        for column in printed.columns:
            if (row.method, column) not in covered:
                key = (dataset, "", row.method, column)
                shown.append(_cell_row(paper, table, key, _Found({}, False, ())))
    return pd.DataFrame(shown, columns=list(COLUMNS))


def beside(run: Study, experiment: str) -> pd.DataFrame:
    """The printed table beside one seed's numbers."""
    table = run.paper.experiment(experiment).table or experiment
    return build_table(run.paper, table, [{**r, "table": table} for r in run.cells(experiment)])


Key = tuple[str, str, str, str]  # data set, scale, method, column


@dataclass(frozen=True)
class _Found:
    values: dict[int, float]  # seed -> value, NaN where it has none
    standin: bool
    marks: tuple[str, ...]
    counted: bool = False
    foreign: bool = False  # an average over other columns than the printed ones


def _collect(paper: Paper, table: str, rows: Iterable[Mapping[str, Any]]) -> dict[Key, _Found]:
    """Our rows by cell. A stand-in column makes the average of its row a stand-in, one the paper
    does not print makes it foreign; the other columns of a row with a stand-in are marked."""
    cells: dict[Key, _Found] = {}
    alone: set[Key] = set()
    for row in rows:
        if row.get("table", table) != table:
            continue
        column = paper.column(table, row["column"]) or row["column"]
        key = (row["dataset"], row["scale"], row["method"], column)
        value = math.nan if row["value"] is None else float(row["value"])
        old = cells.get(key, _Found({}, False, ()))
        standin = old.standin or bool(row.get("standin", False))
        marks = (*old.marks, *row.get("marks", ()))
        values = {**old.values, int(row["seed"]): value}
        cells[key] = _Found(values, standin, marks, bool(row.get("counted")))
        if row.get("alone"):
            alone.add(key)
    printed = paper.table(table).columns
    beside = {key[:3] for key, found in cells.items() if found.standin}
    foreign = {key[:3] for key in cells if key[3] not in printed}
    for key, found in cells.items():
        if key[3] == "avg":
            standin = found.standin or key[:3] in beside
            cells[key] = replace(found, standin=standin, foreign=key[:3] in foreign)
        elif key[:3] in beside and not found.standin and key not in alone:
            cells[key] = replace(found, marks=(*found.marks, BESIDE_STANDIN))
    return cells


def _printed(paper: Paper, table: str, method: str, column: str) -> dict[str, Any]:
    """Printed mean, its std where it runs over trials, and unit; what the authors' own files hold
    and whether that contradicts it. Ratios where the experiment is one."""
    printed = paper.table(table)
    cell, filed = printed.cell(method, column), paper.filed
    value = cell.value if cell is not None else None
    theirs = filed.value(table, method, column) if filed is not None and cell is not None else None
    found = {
        "published": value,
        "published_std": cell.std if cell is not None and printed.std_over == "trials" else None,
        "unit": printed.unit_of(column),
        "authors": theirs,
        "contradicted": filed is not None
        and cell is not None
        and contradicts(theirs, cell.printed),
    }
    own = (e.relative_to for e in paper.experiments if e.table == table)
    if reference := next(own, None):
        base = printed.cell(reference, column)
        filed_base = filed.value(table, reference, column) if filed is not None else None
        found |= {"published_std": None, "unit": "ratio"}
        found["published"] = _ratio(value, base.value if base is not None else None)
        found["authors"] = _ratio(theirs, filed_base)
    return found


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _cell_row(paper: Paper, table: str, key: Key, found: _Found) -> dict[str, Any]:
    dataset, scale, method, column = key
    printed = _printed(paper, table, method, column)
    trials = paper.reporting.get("trials")
    values = [found.values[seed] for seed in sorted(found.values)]
    judged = verdict(
        printed["published"],
        printed["published_std"],
        int(trials.value) if trials is not None else None,
        values,
        scale=scale,
        standin=found.standin or found.foreign,
        marks=found.marks,
        unit=printed["unit"],
        counted=_decimals(paper.table(table), method, column) if found.counted else None,
    )
    valid = [value for value in values if not math.isnan(value)]
    low, high = judged.interval or (None, None)
    return {
        "paper": paper.name,
        "table": table,
        "dataset": dataset,
        "method": method,
        "column": column,
        "ours": fmean(valid) if valid else None,
        "ours_std": stdev(valid) if len(valid) > 1 else None,
        "seeds": len(values),
        "scale": scale or None,
        "verdict": judged.verdict,
        "why": judged.why,
        "difference": judged.difference,
        "low": low,
        "high": high,
        "marks": judged.marks,
        "standin": found.standin,
        **printed,
    }


def _decimals(printed: Table, method: str, column: str) -> int:
    """Digits after the point of a printed number."""
    cell = printed.cell(method, column)
    return len(cell.printed.partition("±")[0].partition(".")[2]) if cell is not None else 0


def order(table: pd.DataFrame) -> pd.DataFrame:
    """The order of the methods, ours beside the paper's, per column of a ``build_table`` frame.

    Ranks start at 1 for the best (ties share the mean rank); only methods with both numbers count.
    tau: Kendall's tau-b over them, NaN below two methods or where all tie. Any scale but smoke.
    """
    both = table[table.ours.notna() & table.published.notna() & (table.scale != "smoke")]
    shown: list[pd.DataFrame] = []
    for _, group in both.groupby(["table", "dataset", "scale", "column"], sort=False):
        ranked = group.copy()
        lower = bool(ranked.unit.isin(LOWER_IS_BETTER).all())
        ranked["rank_ours"] = ranked.ours.astype(float).round(9).rank(ascending=lower)
        ranked["rank_published"] = ranked.published.astype(float).rank(ascending=lower)
        ranked["methods"] = len(ranked)
        ranked["tau"] = (
            float(stats.kendalltau(ranked.rank_ours, ranked.rank_published).statistic)
            if len(ranked) > 1
            else math.nan
        )
        shown.append(ranked[list(ORDER_COLUMNS)])
    return (
        pd.concat(shown, ignore_index=True) if shown else pd.DataFrame(columns=list(ORDER_COLUMNS))
    )
