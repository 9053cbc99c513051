"""Answers to the papers' claims: holds, contradicted or open.

A claim is data in its paper's file (`papers.schema.Claim`). Each of its tests compares rows of one
experiment, on each data set it was run on. Differences are paired over seeds; their spread is
pooled over the comparisons of the claim on a data set. To it comes the variance over test images.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # scipy.stats takes a second to import

from fedrepro.federated import metrics
from fedrepro.papers import Claim, Comparison, Paper
from fedrepro.quantities.base import get
from fedrepro.quantities.noise import Noise, combined
from fedrepro.records import Record
from fedrepro.report.comparison import Pair, Spread, paired, pooled
from fedrepro.report.results import FLAT, Results, kept

Word = Literal["holds", "contradicted", "open"]
LEVEL = 0.05
POWER = 0.8
SCALES = ("paper", "reduced")  # smoke answers nothing


@dataclass(frozen=True)
class Difference(metrics.Estimate):
    """A row minus another, in one column: mean over seeds, and the margin."""

    other: str
    column: str
    margin: float
    printed: float | None
    spread: float = 0.0  # variance of the paired differences over seeds,
    pairs: int = 1  # pooled over this many of them
    images: float = 0.0  # variance of the mean over test images

    @property
    def p(self) -> float:
        """One-sided p: the probability of a difference this large if the truth is at the margin."""
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
        """Whether it is counted, so that it does not depend on chance."""
        return math.isinf(self.freedom) and not self.error

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two-sided 95 % interval; None with one seed, and for a counted value."""
        return None if not self.freedom or self.exact else self.between()

    @property
    def least_seen(self) -> float | None:
        """The smallest distance from the margin that such runs detect with 80 % power."""
        return None if not self.freedom or self.exact else _seen(self.error, self.freedom)

    @property
    def seeds_needed(self) -> int | None:
        """The number of seeds that detects a lead of the printed size with 80 % power. None if no
        number does, because of too few test images, or if no lead is printed."""
        lead, images = (self.printed or 0.0) - self.margin, (self.images, math.inf)
        if not self.spread or lead <= _seen(*combined(images)):
            return None
        owns = ((n, (self.spread / n, self.pairs * (n - 1))) for n in count(2))
        return next(seeds for seeds, own in owns if lead >= _seen(*combined(own, images)))


def _seen(error: float, freedom: float) -> float:
    """The smallest distance from the margin that is detected with 80 % power."""
    return float(stdtrit(freedom, 1 - LEVEL) + stdtrit(freedom, POWER)) * error


@dataclass(frozen=True)
class Part:
    """One test of a claim on one data set. differences: none where nothing was run. hours: of one
    core, that one seed of all its rows took. rising, past: rows that are not flat yet, and rows
    trained with earlier settings; both leave the part open."""

    test: Comparison
    dataset: str
    scale: str
    seeds: int
    differences: tuple[Difference, ...]
    rising: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    hours: float = 0.0
    verdict: Word = "open"

    @property
    def weakest(self) -> Difference | None:
        return max(self.differences, key=lambda d: d.p, default=None)

    @property
    def why(self) -> str:
        """One line: the comparison, and the reason for the answer."""
        where = self.test.experiment + (f" on {self.dataset}" if self.dataset else "")
        weakest = self.weakest
        if weakest is None:
            return f"{where}: not run; what is missing: runs"
        runs = "counted" if weakest.exact else f"{self.seeds} seeds"
        more, less = (self.test.better, weakest.other)[:: -1 if self.test.lower else 1]
        said = f"{where}, {self.scale}, {runs}: {more} minus {less} ({weakest.column})"
        said += f" {weakest.mean:+.3g}"
        if weakest.exact:
            return said
        if weakest.interval is None:
            return f"{said}; one seed has no interval; what is missing: more seeds"
        low, high = weakest.interval
        said += f" [{low:.3g}, {high:.3g}], p {weakest.p:.2g}"
        lists = {"still rising": self.rising, "trained with earlier settings": self.past}
        said += "".join(f"; {why}: {', '.join(names)}" for why, names in lists.items() if names)
        if self.verdict == "open" and weakest.least_seen is not None:
            said += f"; these runs can detect a lead of {weakest.least_seen:.3g} or more "
            said += f"(80 % power){self._cost(weakest)}"
        return said

    def _cost(self, weakest: Difference) -> str:
        """The printed lead, and what it takes to show one of its size."""
        said, seeds = ", none is printed", weakest.seeds_needed
        if weakest.printed is not None:
            said = f", printed {weakest.printed:+.3g}"
        if self.rising or self.past:
            missing = "longer runs" if self.rising else "runs of today's settings"
            return f"{said}; what is missing: {missing}"
        if weakest.printed is None:
            return said
        if seeds is None and weakest.printed > weakest.margin:
            return f"{said}; no number of seeds can detect it, because of the few test images"
        if seeds is None or seeds <= self.seeds:
            return said
        hours = (seeds - self.seeds) * self.hours
        return f"{said}, which needs {seeds} seeds: {hours:.1g} more hours of one core"


@dataclass(frozen=True)
class Answer:
    """A claim's answer, combined from its parts."""

    paper: str
    claim: Claim
    parts: tuple[Part, ...] = ()

    @property
    def verdict(self) -> Word:
        words = {part.verdict for part in self.parts}
        if "contradicted" in words:
            return "contradicted"
        return "holds" if words == {"holds"} else "open"

    @property
    def scale(self) -> str:
        """The scale of the parts that were run."""
        return ", ".join(dict.fromkeys(part.scale for part in self.parts if part.differences))

    @property
    def answer(self) -> str:
        """The verdict; if it is not open, with its scale, or that it was counted."""
        if self.verdict == "open":
            return self.verdict
        counted = all(d.exact for part in self.parts for d in part.differences)
        return f"{self.verdict}, counted" if counted else f"{self.verdict} at scale {self.scale}"

    def row(self) -> dict[str, Any]:
        """As `fedrepro claims --json` prints it; effect and what follows of the weakest part."""
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
            "printed": weakest.printed if weakest else None,
            "least_seen": weakest.least_seen if weakest else None,
            "evidence": [part.why for part in self.parts] or [self.claim.untested],
        }


Row = tuple[str, str, str, str]  # experiment, data set, scale, name
Images = Callable[[Comparison, str, str, str, str], float]
Hours = Callable[[str, str, str, str], float]


@cache
def of_recorded(name: str) -> list[Answer]:
    """The answers to every claim of a paper, from the runs recorded with the book."""
    return answered(kept(name))


def answered(found: Results) -> list[Answer]:
    """The answers to every claim of one paper, from recorded runs."""
    tests = [test for claim in found.paper.claims for test in claim.tests]
    names = {name for test in tests for name in (test.experiment, test.against) if name}
    cells = pd.DataFrame([row for name in sorted(names) for row in found.cells(name)])
    rows: dict[Row, list[Record]] = {}
    for study, experiment, result in found.named_runs(*names):
        for name in {result.label, result.arm.row or result.label}:
            row = experiment, study.dataset, study.scale, name
            rows.setdefault(row, []).append(result.record)
    images = _images(found.paper, rows)
    return answers(found.paper, cells, found.late_gains(*names), images, partial(_hours, rows))


def _hours(rows: Mapping[Row, Sequence[Record]], *row: Any) -> float:
    """Mean hours of a row's run over its seeds."""
    spent = [float(metrics.seconds(record.curve).sum()) / 3600 for record in rows.get(row, ())]
    return sum(spent) / len(spent) if spent else 0.0


def _images(paper: Paper, rows: Mapping[Row, Sequence[Record]]) -> Images:
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
    gains: Mapping[Row, float] | None = None,
    images: Images = lambda *_: 0.0,
    hours: Hours = lambda *_: 0.0,
) -> list[Answer]:
    """The answers to every claim of a paper, from the numbers of recorded runs.

    cells: columns table (the experiment), dataset, scale, method (the row), column, seed, value.
    gains: `Results.late_gains`. images: variance over test images of the difference of a test's
    better row to another, from the test, data set, scale, other row and column. hours: of one run
    of a row, from experiment, data set, scale and row.
    """
    seen = cells, gains or {}, images, hours
    return [
        Answer(paper.name, claim, tuple(_judged(_parts(paper, claim, *seen))))
        for claim in paper.claims
    ]


def _judged(parts: list[Part]) -> Iterator[Part]:
    """The parts with their verdicts. Holm's correction is over all differences of the claim."""
    every = sorted((d for part in parts for d in part.differences), key=lambda d: d.reverse)
    shares = np.array([d.reverse for d in every]) * np.arange(len(every), 0, -1)
    below = {id(d) for d, p in zip(every, np.maximum.accumulate(shares), strict=True) if p < LEVEL}
    for part in parts:
        word: Word = "open"
        if part.differences and not part.rising and not part.past:
            if any(id(d) in below for d in part.differences):
                word = "contradicted"
            elif all(d.p < LEVEL for d in part.differences):
                word = "holds"
        yield replace(part, verdict=word)


Compared = tuple[Comparison, str, str, list[Pair]]  # a test, data set, scale and its pairs


def _compared(paper: Paper, test: Comparison, cells: pd.DataFrame) -> list[Compared]:
    """A test's pairs on each data set that holds its rows, at the largest scale that does."""
    rows = cells[cells.table.isin([test.experiment, test.against])] if len(cells) else cells
    found = []
    for dataset in dict.fromkeys(rows.dataset) if len(rows) else ():
        if test.dataset and paper.dataset(dataset).protocol != test.dataset:
            continue
        for scale in SCALES[: 1 if test.paper_only else None]:
            pairs = paired(paper, test, rows[(rows.dataset == dataset) & (rows.scale == scale)])
            if pairs:
                found.append((test, dataset, scale, pairs))
                break
    return found or [(test, "", "", [])]


def _parts(
    paper: Paper,
    claim: Claim,
    cells: pd.DataFrame,
    gains: Mapping[Row, float],
    images: Images,
    hours: Hours,
) -> list[Part]:
    """The tests of a claim, each on its data sets. The spread is that of all the claim's pairs of a
    unit on a data set at a scale."""
    every = [part for test in claim.tests for part in _compared(paper, test, cells)]
    pools: dict[tuple[str, str, str], list[Pair]] = {}
    for _, dataset, scale, pairs in every:
        for pair in pairs:
            pools.setdefault((dataset, scale, pair.unit), []).append(pair)
    spreads = {key: pooled(pairs) for key, pairs in pools.items()}
    earlier = set[tuple[Any, ...]]()
    if "past" in cells:
        old = cells.loc[cells.past.eq(True), ["table", "dataset", "scale", "method"]]
        earlier = set(old.itertuples(index=False, name=None))
    parts = []
    for test, dataset, scale, pairs in every:
        rows = {test.better: test.experiment} if pairs else {}
        rows |= {pair.other: test.against or test.experiment for pair in pairs}
        rising = tuple(
            name
            for name, used in rows.items()
            if gains.get((used, dataset, scale, name), 0.0) >= FLAT and scale != "paper"
        )
        past = tuple(n for n, used in rows.items() if (used, dataset, scale, n) in earlier)
        drawn = partial(images, test, dataset, scale)
        differences = tuple(
            _difference(paper, test, pair, spreads[dataset, scale, pair.unit], drawn)
            for pair in pairs
        )
        seeds = min((len(pair.gaps) for pair in pairs), default=0)
        spent = sum(hours(used, dataset, scale, name) for name, used in rows.items())
        parts.append(Part(test, dataset, scale, seeds, differences, rising, past, spent))
    return parts


def _difference(
    paper: Paper, test: Comparison, pair: Pair, own: Spread, images: Callable[[str, str], float]
) -> Difference:
    """One pair with its error. What is counted has none."""
    counted = get(paper.experiment(test.experiment).kind).counted
    error, known, sizes = 0.0, math.inf if counted else 0.0, (0.0, 1, 0.0)
    if own.freedom and not counted:
        drawn = images(pair.other, pair.column)
        error, known = combined((own.variance / len(pair.gaps), own.freedom), (drawn, math.inf))
        sizes = own.variance, own.pairs, drawn
    lead = pair.other, pair.column, test.margin, pair.printed
    return Difference(float(pair.gaps.mean()), error, known, *lead, *sizes)
