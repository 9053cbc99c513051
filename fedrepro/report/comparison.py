"""What is compared: for a verdict our seeds with a printed number, for a claim two of our rows; and
what a claim's test without runs needs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, product
from statistics import fmean, variance
from typing import Literal

import pandas as pd
from scipy.special import stdtrit  # scipy.stats takes a second to import

from fedrepro.federated.metrics import CONFIDENCE, ROUNDING, Estimate
from fedrepro.papers import Arm, Comparison, Paper
from fedrepro.quantities.accuracy import combined
from fedrepro.quantities.base import get
from fedrepro.quantities.costs import core_hours, pflop_done, pflop_unread
from fedrepro.records import Record
from fedrepro.report.results import recorded

Tested = Literal["agrees", "higher", "lower", "close", "open"]
Word = Tested | Literal["counted equal", "counted unequal", "no verdict", "not run"]

LEVEL = 0.05
POWER = 0.8
SEEDS = 3  # of a test's runs that are not there yet
FEWEST = 3  # seeds whose own spread is used


@dataclass(frozen=True)
class Compared(Estimate):
    """Our number minus the printed one. tolerance: Δ."""

    tolerance: float
    one_run: bool = False

    @property
    def p(self) -> float:
        """The two-sided p of no difference."""
        if not self.error:
            return 0.0 if abs(self.mean) > ROUNDING else 1.0
        return 2 * self.below(-abs(self.mean) / self.error)

    def word(self, adjusted: float) -> tuple[Tested, str]:
        """The verdict and why. adjusted: p after the table's correction."""
        low, high = self.between(0.9)
        close = abs(self.mean) <= self.tolerance + ROUNDING
        run, delta = "one run: " * self.one_run, f"±{self.tolerance:.3g}"
        if self.tolerance and max(-low, high) <= self.tolerance + ROUNDING:
            return "agrees", f"{run}the 90 % interval lies within {delta}"
        if self.tolerance and close:
            return "close", f"{run}within {delta}, its 90 % interval is not"
        why = run + f"beyond {delta}, " * bool(self.tolerance) + f"p {adjusted:.2g} over the table"
        if close or adjusted >= 1 - CONFIDENCE:
            return "open", why
        return ("higher" if self.mean > 0 else "lower"), why


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
    """Our seeds compared with a printed number; None if no spread is known.

    published_std: over so many trials; None where it is not printed or not usable. pooled: variance
    of one run and its degrees of freedom, for fewer than three seeds. images: variance over draws
    of test images, of our number and of the printed one together.
    """
    known = pooled if len(ours) < FEWEST else None
    if known is None and len(ours) < 2:
        return None
    spread, freedom = known or (variance(ours), len(ours) - 1)
    if not spread and len(ours) < FEWEST:  # equal seeds do not show that all are
        return None
    if published_std is None or trials < 2:
        parts = [(spread * (1 / len(ours) + 1 / trials), freedom)]
    else:
        parts = [(spread / len(ours), freedom), (published_std**2 / trials, trials - 1)]
    error, freedom = combined(*parts, (images, math.inf))
    return Compared(fmean(ours) - published, error, freedom, tolerance, len(ours) == 1)


# The claims.


@dataclass(frozen=True)
class Difference(Estimate):
    """A test's better row minus another, in one column: the mean over seeds. whole: as in
    `Quantity`; gaps: by seed; margin: the least that counts; printed: the same difference of
    printed numbers. rest: of an average with a stand-in, the mean without it."""

    other: str
    column: str
    whole: float
    gaps: pd.Series = field(compare=False)
    margin: float
    printed: float | None
    rest: float | None = None
    spread: float = 0.0  # variance of the paired differences over seeds,
    pairs: int = 1  # pooled over this many of them
    images: float = 0.0  # variance of the mean over test images
    exact: bool = False  # whether it is counted

    @property
    def runs(self) -> str:
        return f"{len(self.gaps)} seed{'s' * (len(self.gaps) > 1)}"

    @property
    def p(self) -> float:
        """One-sided p of a difference this large at the margin; 1 without a spread over seeds."""
        return self.below(-self._t) if self.freedom else 1.0

    @property
    def reverse(self) -> float:
        return self.below(self._t) if self.freedom else 1.0

    @property
    def _t(self) -> float:
        gap = self.mean - self.margin
        return gap / self.error if self.error else math.copysign(math.inf, gap) if gap else 0.0

    @property
    def weakness(self) -> tuple[bool, float, float]:
        """Its place among differences, from the one that supports a claim most. One without an
        interval is shown only if none has one."""
        return self.exact or self.interval is not None, self.p, self.margin - self.mean

    @property
    def interval(self) -> tuple[float, float] | None:
        """The two-sided 95 % interval; None without a spread, and for a counted value."""
        return None if not self.freedom or self.exact else self.between()

    @property
    def by_itself(self) -> "Difference | None":
        """With the spread of these gaps alone; None if the pool has no other's."""
        if self.pairs == 1 or len(self.gaps) < FEWEST:
            return None
        own = self.gaps.var() / len(self.gaps), len(self.gaps) - 1
        error, freedom = combined(own, (self.images, math.inf))
        return replace(self, error=error, freedom=freedom)

    @property
    def least_seen(self) -> float | None:
        """The smallest difference that such runs tell from the margin with 80 % power."""
        return self.interval and self.margin + _seen(self.error, self.freedom)

    @property
    def aim(self) -> tuple[float, str]:
        """A lead worth more seeds: the printed one, else two points of accuracy, else NaN."""
        if self.printed is not None:
            return self.printed, "the printed one"
        points = self.whole / 50 or math.nan
        return self.margin + points, f"a lead of {points:g}"

    def seeds_for(self, lead: float) -> int | None:
        """How many seeds detect a lead with 80 % power; None if the test images are too few."""
        room, images = lead - self.margin, (self.images, math.inf)
        if not self.spread or room <= _seen(*combined(images)):
            return None
        owns = ((n, (self.spread / n, pooled_freedom([n] * self.pairs))) for n in count(2))
        return next(seeds for seeds, own in owns if room >= _seen(*combined(own, images)))


def pooled_freedom(sizes: Sequence[int]) -> float:
    """Of a variance pooled over differences of so many seeds each, which correlate by one half."""
    return sum(size - 1 for size in sizes) / (1 + (len(sizes) - 1) / 4)


def _seen(error: float, freedom: float) -> float:
    """The smallest distance from the margin that is detected with 80 % power."""
    return float(stdtrit(freedom, 1 - LEVEL) + stdtrit(freedom, POWER)) * error


def printed_lead(paper: Paper, test: Comparison, other: str, column: str) -> float | None:
    """The printed difference of the same two rows, or from the number to be above, if there is."""
    if test.printed is not None:
        return test.printed
    values = []
    for name, row in ((test.experiment, test.better), (test.against or test.experiment, other)):
        table = paper.experiment(name).table
        known = paper.table(table).values(paper.column(table, column)) if table else {}
        values.append(known.get(row))
    ours, theirs = values[0], values[1] if test.above is None else test.above
    if ours is None or theirs is None:
        return None
    return (-1 if test.lower else 1) * (ours - theirs)


def differences_of(paper: Paper, test: Comparison, rows: pd.DataFrame) -> Iterator[Difference]:
    """A test's differences in the cells of one data set and scale, to the rows that are there; only
    what is counted has its error."""
    better, theirs = _by_seed(rows, test.experiment, test.better), test.against or test.experiment
    others = {name: _by_seed(rows, theirs, name) for name in others_of(paper, test)}
    if test.above is not None:
        others = {f"{test.above:g}": 0 * better + test.above}
    kind = get(test.kind or paper.experiment(test.experiment).kind)
    sign = -1 if test.lower else 1
    columns = [str(column) for column in better if column != "avg"]
    standins = set(rows.column[rows.standin.eq(True)])
    real = [column for column in columns if column not in standins]
    if test.by not in ("each", "only"):
        names = (test.by,) if isinstance(test.by, str) else test.by
        columns = [name for name in names if name in better][:1]
    for column, (name, other) in product(columns, others.items()):
        own = sign * (better[column] - other.get(column, math.nan)).dropna()
        if own.empty:
            continue
        printed, rest = printed_lead(paper, test, name, column), None
        if column == "avg" and standins and test.above is None:
            rest = sign * float((better - other)[real].mean(axis=1).mean())
        whole = kind.whole or 100.0 * (column == "accuracy")  # beside the leakage
        facts = name, column, whole, own, test.margin, printed, rest
        freedom = math.inf if kind.counted else 0.0
        yield Difference(float(own.mean()), 0.0, freedom, *facts, exact=kind.counted)


def others_of(paper: Paper, test: Comparison) -> Sequence[str]:
    """The rows that a test compares its better one with; none if it is with a number."""
    if test.above is not None:
        return ()
    if test.than != "all":
        return test.than
    specs = paper.arm_specs(test.against or test.experiment)
    return [s.label for s in specs if s.label != test.better and not s.alternative]


def _by_seed(rows: pd.DataFrame, table: str, name: str) -> pd.DataFrame:
    """A row's values: one line per seed, a column per column."""
    own = rows[(rows.table == table) & (rows.method == name) & rows.value.notna()]
    return own.astype({"value": float}).pivot(index="seed", columns="column", values="value")


# What is missing: the commands, and their cost.


def needed(
    paper: Paper, test: Comparison, dataset: str, scales: Sequence[str], known: Sequence[Record]
) -> str:
    """The commands that train the rows of a test, and their hours of one core, of the estimated
    operations at the speed of recorded runs of the same scale. dataset: empty for the first of the
    experiment. known: runs of the paper."""
    spec, named = paper.experiment(test.experiment), {test.better, *test.than}
    whole = test.than == "all" or test.above is not None  # else the test names its rows
    rows = {
        name: [one.label for one in paper.arm_specs(name) if whole or named & {one.label, one.row}]
        for name in filter(None, (test.experiment, test.against))
    }
    dataset, costs = dataset or test.dataset or spec.datasets[0], []
    for scale in scales:
        every = [(arm, rows[name]) for name in rows for arm in paper.arms(name, dataset, scale)]
        size = _size([arm for arm, labels in every if arm.label in labels], known)
        cost = "hours not known before the images are read"
        if size is not None and (speed := _speed(scale, paper.name) or _speed(scale)):
            cost = f"about {hours(size / speed)} of one core at {speed:.2g} PFLOP per hour"
        costs.append(f"--scale {scale} ({cost})")
    said = " and ".join(
        f"fedrepro sweep {paper.name} --experiment {name}"
        + f' --methods "{";".join(labels)}"' * (len(labels) < len(paper.arm_specs(name)))
        for name, labels in rows.items()
    )
    said += f" --dataset {dataset} --seeds 0-{SEEDS - 1} {' or '.join(costs)}"
    return said + f"; {spec.reason}" * bool(spec.reason)


def _size(arms: Sequence[Arm], known: Sequence[Record]) -> float | None:
    """PFLOP of the seeds of some rows and of their trials; None if it is not known."""
    todo = [(arm.protocol, SEEDS) for arm in arms]
    todo += [(run.protocol, 1) for arm in arms for *_, run in arm.trials()]
    sizes = [(pflop_unread(protocol, known), times) for protocol, times in todo]
    read = [size * times for size, times in sizes if size is not None]
    return sum(read) if len(read) == len(todo) else None


def hours(count: float) -> str:
    said = f"{count:.0f}" if count >= 1 else f"{count:.1g}"
    return f"{said} hour{'s' * (said != '1')}"


@cache
def _speed(scale: str, paper: str | None = None) -> float | None:
    """PFLOP per hour of one core, of a paper's recorded runs or all; None if none has images."""
    runs = {one.record.run_id: one.record for *_, one in recorded(paper).where(scale=scale).runs()}
    known = [(pflop_done(run), core_hours(run)) for run in runs.values()]
    done = [(size, took) for size, took in known if size is not None and took is not None]
    spent = sum(took for _, took in done)
    return sum(size for size, _ in done) / spent if spent else None
