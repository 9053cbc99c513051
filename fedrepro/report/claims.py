"""The papers' claims, answered: holds, contradicted or open.

A claim is data in its paper's file (`papers.schema.Claim`). Each of its tests compares rows of one
experiment, on each data set it was run on. Differences are paired over seeds; their spread is
pooled over the comparisons of a test on a data set. To it comes the variance over test images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # scipy.stats takes a second to import

from fedrepro.federated import metrics
from fedrepro.papers import Claim, Comparison, Paper
from fedrepro.quantities.base import get
from fedrepro.quantities.noise import Noise, combined
from fedrepro.records import Record
from fedrepro.report.results import FLAT, Results, recorded

Word = Literal["holds", "contradicted", "open"]
LEVEL = 0.05
POWER = 0.8
SCALES = ("paper", "reduced")  # smoke answers nothing


@dataclass(frozen=True)
class Difference(metrics.Estimate):
    """The row less another, in one column, as the mean over seeds, and the margin."""

    other: str
    column: str
    margin: float
    printed: float | None
    spread: float = 0.0  # variance of the paired differences over seeds,
    pairs: int = 1  # pooled over so many of them
    images: float = 0.0  # variance of the mean over test images

    @property
    def p(self) -> float:
        """Of the claim's being wrong: how likely so large a difference is at the margin."""
        return self.below(-self._t) if self.freedom else 1.0

    @property
    def reverse(self) -> float:
        return self.below(self._t) if self.freedom else 1.0

    @property
    def _t(self) -> float:
        gap = self.mean - self.margin
        return gap / self.error if self.error else math.copysign(math.inf, gap) if gap else 0.0

    @property
    def exact(self) -> bool:
        """Whether it is counted, so that no draw can move it."""
        return math.isinf(self.freedom) and not self.error

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, two-sided; None with one seed, and of a count."""
        return None if not self.freedom or self.exact else self.between()

    @property
    def least_seen(self) -> float | None:
        """The smallest distance from the margin that such runs show four times of five."""
        return None if not self.freedom or self.exact else _seen(self.error, self.freedom)

    @property
    def seeds_needed(self) -> int | None:
        """As many seeds show a lead of the printed size four times of five; None where no number of
        them does, for want of test images, or where none is printed."""
        lead = (self.printed or 0.0) - self.margin
        if not self.spread or lead <= _seen(math.sqrt(self.images), math.inf):
            return None
        seeds = 2
        while lead < _seen(*self._with(seeds)):
            seeds += 1
        return seeds

    def _with(self, seeds: int) -> tuple[float, float]:
        own = self.spread / seeds, self.pairs * (seeds - 1)
        return combined(own, (self.images, math.inf))


def _seen(error: float, freedom: float) -> float:
    """The smallest distance from the margin that is found four times of five."""
    return float(stdtrit(freedom, 1 - LEVEL) + stdtrit(freedom, POWER)) * error


@dataclass(frozen=True)
class Part:
    """One test of a claim on one data set. differences: none where nothing was run. hours: of one
    core, that one seed of all its rows took."""

    test: Comparison
    dataset: str
    scale: str
    seeds: int
    differences: tuple[Difference, ...]
    rising: tuple[str, ...] = ()
    hours: float = 0.0
    verdict: Word = "open"

    @property
    def weakest(self) -> Difference | None:
        return max(self.differences, key=lambda d: d.p, default=None)

    @property
    def why(self) -> str:
        """One line: what was compared, and what decided."""
        where = self.test.experiment + (f" on {self.dataset}" if self.dataset else "")
        weakest = self.weakest
        if weakest is None:
            return f"{where}: not run"
        runs = "counted" if weakest.exact else f"{self.seeds} seeds"
        more, less = (self.test.better, weakest.other)[:: -1 if self.test.lower else 1]
        said = f"{where}, {self.scale}, {runs}: {more} less {less} ({weakest.column})"
        said += f" {weakest.mean:+.3g}"
        if weakest.exact:
            return said
        if weakest.interval is None:
            return f"{said}; one seed has no interval"
        low, high = weakest.interval
        said += f" [{low:.3g}, {high:.3g}], p {weakest.p:.2g}"
        if self.rising:
            return f"{said}; still rising: {', '.join(self.rising)}"
        if self.verdict == "open" and weakest.least_seen is not None:
            said += f"; these runs show {weakest.least_seen:.3g} and more{self._cost(weakest)}"
        return said

    def _cost(self, weakest: Difference) -> str:
        """The printed lead, and what it takes to show one of its size."""
        if weakest.printed is None:
            return ""
        said, seeds = f", printed {weakest.printed:+.3g}", weakest.seeds_needed
        if seeds is None and weakest.printed > weakest.margin:
            return f"{said}, for which no number of seeds makes up for the few test images"
        if seeds is None or seeds <= self.seeds:
            return said
        hours = (seeds - self.seeds) * self.hours
        return f"{said}, which takes {seeds} seeds: {hours:.1g} hours of one core more"


@dataclass(frozen=True)
class Answer:
    """A claim's answer: its parts', put together."""

    paper: str
    claim: Claim
    parts: tuple[Part, ...] = field(default=())

    @property
    def verdict(self) -> Word:
        words = {part.verdict for part in self.parts}
        if "contradicted" in words:
            return "contradicted"
        return "holds" if words == {"holds"} else "open"

    @property
    def scale(self) -> str:
        """Of the parts that were run."""
        return ", ".join(dict.fromkeys(part.scale for part in self.parts if part.differences))

    @property
    def answer(self) -> str:
        """The verdict, and where it is an answer the scale it holds at, or that it was counted."""
        if self.verdict == "open":
            return self.verdict
        counted = all(d.exact for part in self.parts for d in part.differences)
        return f"{self.verdict}, counted" if counted else f"{self.verdict} at scale {self.scale}"

    def row(self) -> dict[str, Any]:
        """As `fedrepro claims --json` prints it; effect, interval and p of the weakest part."""
        ran = [part for part in self.parts if part.weakest is not None]
        parts = [part for part in ran if part.verdict == self.verdict] or ran
        weakest = max((p.weakest for p in parts if p.weakest), key=lambda d: d.p, default=None)
        return {
            "paper": self.paper,
            "id": self.claim.id,
            "claim": self.claim.claim,
            "where": self.claim.where,
            "scale": self.scale,
            "verdict": self.verdict,
            "effect": weakest.mean if weakest else None,
            "interval": weakest.interval if weakest else None,
            "p": weakest.p if weakest and weakest.freedom else None,
            "evidence": [part.why for part in self.parts] or [self.claim.untested],
        }


Images = Callable[[Comparison, str, str, str, str], float]
Hours = Callable[[str, str, str, str], float]


@cache
def of_recorded(name: str) -> list[Answer]:
    """Every claim of a paper, answered from the runs kept with the book."""
    return answered(recorded(name))


def answered(found: Results) -> list[Answer]:
    """Every claim of one paper, answered from recorded runs."""
    claims = found.paper.claims
    names = {test.experiment for claim in claims for test in claim.tests}
    names |= {test.against for claim in claims for test in claim.tests}
    cells = pd.DataFrame([row for name in sorted(names - {""}) for row in found.cells(name)])
    rows: dict[tuple[str, str, str, str], list[Record]] = {}
    for study, experiment, result in found.named_runs(*names):
        for name in {result.label, result.arm.row or result.label}:
            row = experiment, study.dataset, study.scale, name
            rows.setdefault(row, []).append(result.record)
    images = _images(found.paper, rows)
    return answers(found.paper, cells, found.late_gains(*names), images, partial(_hours, rows))


def _hours(rows: Mapping[tuple[str, str, str, str], Sequence[Record]], *row: Any) -> float:
    """What a row's run took as a mean over its seeds; row: experiment, data set, scale, name."""
    spent = [float(metrics.seconds(record.curve).sum()) / 3600 for record in rows.get(row, ())]
    return sum(spent) / len(spent) if spent else 0.0


def _images(paper: Paper, rows: Mapping[tuple[str, str, str, str], Sequence[Record]]) -> Images:
    """The variance of a difference over test images; rows: the runs behind each row."""
    noise = Noise(paper.rule)

    def variance(test: Comparison, dataset: str, scale: str, other: str, column: str) -> float:
        whole = get(paper.experiment(test.experiment).kind).whole
        if not whole:
            return 0.0
        compared = [rows[test.experiment, dataset, scale, test.better]]
        if test.above is None:
            compared.append(rows[test.against or test.experiment, dataset, scale, other])
        return whole**2 * noise.variance(compared, column)

    return variance


def answers(
    paper: Paper,
    cells: pd.DataFrame,
    gains: Mapping[tuple[str, str, str, str], float] | None = None,
    images: Images = lambda *_: 0.0,
    hours: Hours = lambda *_: 0.0,
) -> list[Answer]:
    """Every claim of a paper, answered from the numbers of recorded runs.

    cells: columns table (the experiment), dataset, scale, method (the row), column, seed, value.
    gains: `Results.late_gains`. images: variance over test images of the difference of a test's
    better row to another, from the test, data set, scale, other row and column. hours: of one run
    of a row, from experiment, data set, scale and row.
    """
    found = []
    for claim in paper.claims:
        seen = cells, gains or {}, images, hours
        parts = [part for test in claim.tests for part in _parts(paper, test, *seen)]
        found.append(Answer(paper.name, claim, tuple(_judged(parts))))
    return found


def _judged(parts: list[Part]) -> Iterator[Part]:
    """The parts with their words. Holm's correction is over all differences of the claim."""
    every = [d for part in parts for d in part.differences]
    order = np.argsort([d.reverse for d in every], kind="stable")
    adjusted, worst = {}, 0.0
    for rank, place in enumerate(order):
        worst = max(worst, min(1.0, every[place].reverse * (len(every) - rank)))
        adjusted[id(every[place])] = worst
    for part in parts:
        word: Word = "open"
        if part.differences and not part.rising:
            if any(adjusted[id(d)] < LEVEL for d in part.differences):
                word = "contradicted"
            elif all(d.p < LEVEL for d in part.differences):
                word = "holds"
        yield Part(**{**vars(part), "verdict": word})


def _parts(
    paper: Paper,
    test: Comparison,
    cells: pd.DataFrame,
    gains: Mapping[tuple[str, str, str, str], float],
    images: Images,
    hours: Hours,
) -> list[Part]:
    """A test on each data set that holds its rows, at the largest scale that does."""
    rows = cells[cells.table.isin([test.experiment, test.against])] if len(cells) else cells
    parts = []
    for dataset in dict.fromkeys(rows.dataset) if len(rows) else ():
        if test.dataset and paper.datasets[dataset].protocol != test.dataset:
            continue
        for scale in SCALES[: 1 if test.paper_only else None]:
            here = rows[(rows.dataset == dataset) & (rows.scale == scale)]
            differences, seeds = _differences(
                paper, test, here, partial(images, test, dataset, scale)
            )
            if differences:
                compared = {test.better: test.experiment}
                compared |= {d.other: test.against or test.experiment for d in differences}
                rising = [
                    name
                    for name, used in compared.items()
                    if gains.get((used, dataset, scale, name), 0.0) >= FLAT
                ]
                shown = tuple(rising) if scale != "paper" else ()
                spent = sum(hours(used, dataset, scale, name) for name, used in compared.items())
                parts.append(Part(test, dataset, scale, seeds, differences, shown, spent))
                break
    return parts or [Part(test, "", "", 0, ())]


def _differences(
    paper: Paper, test: Comparison, rows: pd.DataFrame, images: Callable[[str, str], float]
) -> tuple[tuple[Difference, ...], int]:
    """The differences of a test in the cells of one data set and scale, and the number of seeds;
    none where a row is missing."""
    own = rows[rows.table == test.experiment]
    theirs = rows[rows.table == test.against] if test.against else own
    better = _by_seed(own, test.better)
    others = _others(paper, test)
    tables = {name: _by_seed(theirs, name) for name in others}
    if better.empty or any(table.empty for table in tables.values()):
        return (), 0
    sign, pairs = -1 if test.lower else 1, []
    for column in _columns(test, better):
        if test.above is not None:
            gaps = sign * (better[column].dropna() - test.above)
            pairs.append((f"{test.above:g}", column, gaps))
        for name, table in tables.items():
            if column in table:
                pairs.append((name, column, (sign * (better[column] - table[column])).dropna()))
    pairs = [pair for pair in pairs if len(pair[2])]
    counted = get(paper.experiment(test.experiment).kind).counted
    freedom = sum(len(d) - 1 for *_, d in pairs)
    pooled = sum(float(d.var(ddof=1)) * (len(d) - 1) for *_, d in pairs if len(d) > 1)
    found = []
    for name, column, d in pairs:
        error, known, spread, drawn = 0.0, math.inf if counted else 0.0, 0.0, 0.0
        if freedom and not counted:
            spread, drawn = pooled / freedom, images(name, column)
            error, known = combined((spread / len(d), freedom), (drawn, math.inf))
        printed = _printed(paper, test, name, column, sign)
        sizes = test.margin, printed, spread, len(pairs), drawn
        found.append(Difference(float(d.mean()), error, known, name, column, *sizes))
    return tuple(found), min((len(d) for *_, d in pairs), default=0)


def _others(paper: Paper, test: Comparison) -> list[str]:
    if test.above is not None:
        return []
    if test.than != "all":
        return list(test.than)
    specs = paper.arm_specs(test.against or test.experiment)
    return [s.label for s in specs if s.label != test.better and not s.alternative]


def _by_seed(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """A row's values: one line per seed, a column per column."""
    own = rows[(rows.method == name) & rows.value.notna()]
    return own.assign(value=own.value.astype(float)).pivot_table(
        index="seed", columns="column", values="value"
    )


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
    values = [cell.value if cell is not None else None for cell in cells]
    if values[0] is None or values[1] is None:
        return None
    return sign * (values[0] - values[1])
