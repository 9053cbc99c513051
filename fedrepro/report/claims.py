"""Answers to the papers' claims: holds, contradicted or open. A claim is data in its paper's file
(`papers.schema.Claim`). Each of its tests compares rows on each data set they were run on;
differences are paired over seeds. The page of claims explains the rules."""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pandas as pd
from joblib import Memory

from fedrepro.base.files import ANSWERS
from fedrepro.papers import Claim, Comparison, Paper
from fedrepro.quantities.accuracy import Noise, combined
from fedrepro.quantities.costs import core_hours
from fedrepro.records import Record
from fedrepro.report import comparison
from fedrepro.report.comparison import FEWEST, LEVEL, Difference, hours
from fedrepro.report.results import FLAT, recorded

Word = Literal["holds", "contradicted", "open"]
SCALES = ("paper", "reduced")  # smoke answers nothing
Row = tuple[str, str, str, str]  # experiment, data set, scale, name
CELL = ["table", "dataset", "scale", "method", "column", "seed", "value", "standin", "past"]


@dataclass
class Part:
    """One test of a claim on one data set. differences: none where nothing was run, or a stand-in
    alone (standin). lacking: rows not run. rising, past, lost: rows not flat yet, with earlier
    settings, or without a number for some seed. hours: of one core, for one seed of its rows; NaN
    where a row ran on GPUs alone. needed: the missing runs, and their cost. beside: the same test
    at the other scale, which does not answer: a larger one with one seed or lacking rows, or a
    smaller one that could. spread: the scale whose spread over seeds it has; a larger one beside an
    answer has the answer's. reverse: the least p of a difference below its margin, by Holm."""

    test: Comparison
    dataset: str = ""
    scale: str = ""
    differences: tuple[Difference, ...] = ()
    rising: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    hours: float = 0.0
    needed: str = "runs"
    beside: "Part | None" = None
    spread: str = ""
    lacking: tuple[str, ...] = ()
    standin: bool = False
    verdict: Word = "open"
    reverse: float = 1.0

    def rows(self, *others: str) -> list[Row]:
        """Where the runs of the compared rows are: of the better one, and of these others."""
        ours, theirs = self.test.experiment, self.test.against or self.test.experiment
        places = [(ours, name) for name in self.test.better.split(" vs ")]  # of a ratio both
        places += [(theirs, name) for name in others]
        return [(used, self.dataset, self.scale, name) for used, name in places]

    @property
    def scales(self) -> tuple[str, ...]:
        """Those at which it was or may be run."""
        return (self.scale,) if self.scale else SCALES[: 1 if self.test.paper_only else None]

    def decides(self, one: Difference) -> bool:
        """Whether a difference can answer: it is counted, or both its rows were run with today's
        settings until their curves were flat, with two seeds or more. Rounds are counted to a level
        that all rows set."""
        late = {*self.rising, *self.past, *self.lost}
        rows = {self.test.better, *self.test.better.split(" vs "), one.other}
        settled = not late if one.column == "rounds" else rows.isdisjoint(late)
        return settled and (one.exact or len(one.gaps) > 1)

    @property
    def ready(self) -> bool:
        """Whether it was run with all its rows and all its differences can answer."""
        return not self.lacking and 0 < len(self.differences) == len(self.deciding)

    @property
    def single(self) -> list[str]:
        """The rows with one seed beside the better row's."""
        pairs = (one for one in self.differences if len(one.gaps) == 1 and not one.exact)
        return list(dict.fromkeys(one.other for one in pairs))

    @property
    def deciding(self) -> list[Difference]:
        return [one for one in self.differences if self.decides(one)]

    @property
    def weakest(self) -> Difference:
        """The one that supports the claim least; if contradicted, of those that answer."""
        own = self.deciding if self.verdict == "contradicted" else self.differences
        return max(own, key=lambda d: d.weakness)

    @property
    def place(self) -> str:
        return " on ".join(filter(None, (self.test.experiment, self.dataset or self.test.dataset)))

    @property
    def why(self) -> str:
        return "; ".join(filter(None, (self.result, self.missing)))

    @property
    def result(self) -> str:
        """The comparison, and what stands against an answer."""
        if not self.differences:
            if self.standin:
                return f"{self.place}: {self.test.by} is a stand-in there, which answers nothing"
            return f"{self.place}: not run" + " at scale paper" * self.test.paper_only
        said, one = f"{self.place}, {self.scale}, ", self.weakest
        said += f"{'counted' if one.exact else one.runs}: {self._lead(one)}"
        said += f", has to be above {one.margin:+.3g}" * bool(one.margin)
        if one.exact:
            return said
        if self.verdict == "contradicted":
            said += f", p {self.reverse:.2g} of the opposite, after Holm's correction"
        elif one.interval is not None:
            said += f", p {one.p:.2g}"
        if self.verdict != "open" and (alone := one.by_itself):
            said += ", with its own spread alone [{:.3g}, {:.3g}]".format(*alone.between())
            holm = self.reverse / (one.reverse or 1.0)  # the factor of the correction
            p = holm * alone.reverse if self.verdict == "contradicted" else alone.p
            said += ", which would leave it open" * (p >= LEVEL)
        if one.printed is not None:
            said += f", printed {one.printed:+.3g}{', outside' * bool(self.outside)}"
        if one.rest is not None:
            said += f", without the stand-in {one.rest:+.3g}"
        lists = {"still rising": self.rising, "trained with earlier settings": self.past}
        lists["without a number for some seeds"] = self.lost
        lists["not run"] = tuple(row for row in self.lacking if row not in self.lost)
        lists["one seed"] = tuple(self.single) if len(one.gaps) > 1 else ()
        said += "".join(f"; {why}: {', '.join(rows)}" for why, rows in lists.items() if rows)
        if len(one.gaps) == 1:
            said += "; one seed is no answer" if one.interval else "; one seed has no interval"
        if other := self.beside:
            without = " without " * bool(other.lacking) + ", ".join(other.lacking)
            said += f"; at scale {other.scale}, {other.weakest.runs}{without}: "
            said += self._lead(other.weakest)
            said += " with the spread of these runs" * (other.spread == self.scale)
        return said

    @property
    def missing(self) -> str:
        """What would answer an open test: the lead that such runs detect, and what it takes to show
        one of the printed size, else of two points."""
        said = "what is missing: "
        if not self.differences:
            return said + self.needed
        if (one := self.weakest).exact or self.lost or self.verdict != "open":
            return ""
        seen = ""
        if one.interval is not None:
            seen = f"these runs can detect a lead of {one.least_seen:.3g} or more (80 % power)"
            said = f"{seen}; {said}"
        if self.past or self.lacking:
            what = "runs of today's settings" if self.past else f"runs of {', '.join(self.lacking)}"
            return f"{said}{what}: {self.needed}"
        if one.interval is None:
            said += f"{'longer runs and ' * bool(self.rising)}more seeds"
            return said + f", {hours(self.hours)} of one core each" * (self.hours > 0)
        if self.rising:
            twice = f"; twice the rounds take {hours(2 * len(one.gaps) * self.hours)} of one core"
            return f"{said}longer runs" + twice * (self.hours > 0)
        if self.single and len(one.gaps) > 1:
            return f"{said}more seeds of {', '.join(self.single)}"
        lead, words = one.aim
        if not lead > one.margin:
            return seen
        if (seeds := one.seeds_for(lead)) is None:
            return f"{seen}; more seeds cannot detect {words}: the test images are too few"
        if seeds <= len(one.gaps):
            return f"{seen}; these runs would likely have shown {words}"
        more = f": another {hours((seeds - len(one.gaps)) * self.hours)} of one core"
        return f"{seen}; {words} needs {seeds} seeds" + more * (self.hours > 0)

    def _lead(self, one: Difference) -> str:
        more, less = (self.test.better, one.other)[:: -1 if self.test.lower else 1]
        said = f"{more} minus {less} ({one.column}) {one.mean:+.3g}"
        return said if one.interval is None else said + " [{:.3g}, {:.3g}]".format(*one.interval)

    @property
    def outside(self) -> bool | None:
        """Whether the printed lead lies outside our interval of the weakest one. None where no lead
        is printed, or that one cannot answer."""
        one = self.weakest if self.differences else None
        if not (one and self.decides(one) and one.interval and one.printed is not None):
            return None
        return not one.interval[0] <= one.printed <= one.interval[1]


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
    def deciding(self) -> list[Part]:
        """The parts with runs that have the claim's answer, or else all with runs."""
        ran = [part for part in self.parts if part.differences]
        return [part for part in ran if part.verdict == self.verdict] or ran

    @property
    def scale(self) -> str:
        return ", ".join(dict.fromkeys(part.scale for part in self.deciding))

    @property
    def answer(self) -> str:
        """The verdict; if it is not open, with its scale, or that it was counted."""
        if self.verdict == "open":
            return self.verdict
        counted = all(d.exact for part in self.deciding for d in part.differences)
        return f"{self.verdict}, counted" if counted else f"{self.verdict} at scale {self.scale}"

    def row(self) -> dict[str, Any]:
        """As `fedrepro claims --json` prints it; effect and what follows of the weakest part."""
        every = (part.weakest for part in self.deciding)
        least = max(every, key=lambda d: d.weakness, default=None)
        return {
            "paper": self.paper,
            "id": self.claim.id,
            "claim": self.claim.claim,
            "where": self.claim.where,
            "scale": self.scale,
            "verdict": self.verdict,
            "effect": least and least.mean,
            "interval": least and least.interval,
            "p": least.p if least and least.freedom else None,
            "printed": least and least.printed,
            "least_seen": least and least.least_seen,
            "evidence": [part.why for part in self.parts] or [self.claim.untested],
        }


Images = Callable[[Part, Difference], float]


@cache
def of_recorded(name: str) -> list[Answer]:
    """Every claim's answer from the recorded runs. Pages of one build share them (`ANSWERS`)."""
    return list(Memory(os.environ.get(ANSWERS), verbose=0).cache(_of_recorded)(name))


def _of_recorded(name: str) -> list[Answer]:
    found = recorded(name)
    tests = [test for claim in found.paper.claims for test in claim.tests]
    asked = {(name, t.kind) for t in tests for name in (t.experiment, t.against) if name}
    names = {name for name, _ in asked}
    cells = pd.DataFrame(row for one in sorted(asked) for row in found.cells(*one))
    rows: dict[Row, list[tuple[int, str | None, Record]]] = defaultdict(list)
    gains = found.late_gains(*names)
    for study, experiment, result in found.runs(*names):
        place = experiment, study.dataset, study.scale
        for label in {result.label, result.arm.row or result.label}:
            rows[*place, label].append((study.seed, result.arm.column, result.record))
            # A row of several arms still rises if one of them does.
            gains[*place, label] = max(gains[*place, result.label], gains.get((*place, label), 0.0))
    known = [record for records in rows.values() for *_, record in records]
    noise = Noise(found.paper.rule)

    def images(part: Part, one: Difference) -> float:
        if not one.whole:
            return 0.0
        others = () if part.test.above is not None else (one.other,)
        own = {None, one.column}
        paired = [
            [run for seed, column, run in rows[row] if seed in one.gaps.index and column in own]
            for row in part.rows(*others)
        ]
        return one.whole**2 * noise.variance(paired, one.column)

    def spent(row: Row) -> float:
        took = [(n, hours) for n, _, r in rows.get(row, ()) if (hours := core_hours(r)) is not None]
        no_hours = math.nan if row in rows else 0.0
        return sum(hours for _, hours in took) / len({n for n, _ in took}) if took else no_hours

    def missing(part: Part) -> str:
        return comparison.needed(found.paper, part.test, part.dataset, part.scales, known)

    return answers(found.paper, cells, gains, images, spent, missing)


def answers(
    paper: Paper,
    cells: pd.DataFrame,
    gains: Mapping[Row, float] | None = None,
    images: Images = lambda *_: 0.0,
    spent: Callable[[Row], float] = lambda _: 0.0,
    missing: Callable[[Part], str] = lambda _: "runs",
) -> list[Answer]:
    """The answers to every claim of a paper, from our numbers. cells: the columns `CELL`; table is
    the experiment, method the row. gains: `Results.late_gains`. images: variance of a difference
    over test images. spent: hours of one seed of a row. missing: what a part needs that has no
    runs, or some of earlier settings."""
    rising = {row for row, gain in (gains or {}).items() if gain >= FLAT and row[2] != "paper"}
    cells = cells.reindex(columns=CELL)
    old = set(cells.loc[cells.past.eq(True), CELL[:4]].itertuples(index=False, name=None))
    lost = set(cells.loc[cells.value.isna(), CELL[:5]].itertuples(index=False, name=None))
    found = []
    for claim in paper.claims:
        parts = [part for test in claim.tests for part in _compared(paper, test, cells)]
        both = [one for own in parts for one in (own, own.beside) if one]
        _estimate(both, images)
        for part in both:
            others = dict.fromkeys([*(one.other for one in part.differences), *part.lacking])
            rows = part.rows(*others) if others else []
            better = part.test.experiment, part.dataset, part.scale, part.test.better
            every = dict.fromkeys([*rows, better] if rows else [])  # a ratio's own row, too
            part.rising = tuple(row[-1] for row in rows if row in rising)
            part.past = tuple(row[-1] for row in every if row in old)
            columns = {one.column for one in part.differences}
            part.lost = tuple(row[-1] for row in every if {(*row, c) for c in columns} & lost)
            part.hours = sum(map(spent, rows))
            part.needed = missing(part) if part.past or part.lacking or not rows else ""
        for part in parts:
            if part.beside and part.beside.scale != "paper" and not part.beside.ready:
                part.beside = None
        _judge(parts)
        found.append(Answer(paper.name, claim, tuple(parts)))
    return found


def _judge(parts: Sequence[Part]) -> None:
    """Give the parts their verdicts. Holm's correction is over the differences that can answer: one
    that cannot contradict the claim, whatever its p, is no chance to contradict it wrongly. One
    seed answers nothing, even where the spread of other rows gives it an interval. One difference
    is enough to contradict; a test holds if all its differences can answer and do."""
    every = sorted(d.reverse for part in parts for d in part.deciding if d.freedom)
    steps = np.maximum.accumulate(np.array(every) * np.arange(len(every), 0, -1))
    holm = dict(zip(every, steps.tolist(), strict=True)) | {1.0: 1.0}
    for part in parts:
        part.reverse = min((holm[d.reverse] for d in part.deciding), default=1.0)
        if part.reverse < LEVEL:
            part.verdict = "contradicted"
        elif part.ready and all(d.p < LEVEL for d in part.differences):
            part.verdict = "holds"


def _estimate(parts: Sequence[Part], images: Images) -> None:
    """Give differences their errors, with one spread over seeds by column, data set and scale."""
    pools: dict[tuple[object, ...], list[pd.Series]] = defaultdict(list)
    for part in parts:
        for one in part.differences if part.spread == part.scale else ():
            pools[part.dataset, part.scale, one.column].append(one.gaps)

    def known(part: Part, one: Difference) -> Difference:
        pool = [gaps for gaps in pools[part.dataset, part.spread, one.column] if len(gaps) > 1]
        freedom = comparison.pooled_freedom([len(gaps) for gaps in pool])
        if one.exact or not freedom:
            return one
        squares = sum(float(((gaps - gaps.mean()) ** 2).sum()) for gaps in pool)
        spread = squares / sum(len(gaps) - 1 for gaps in pool)
        drawn = images(part, one)
        if not spread and len(one.gaps) < FEWEST:  # two equal seeds do not show that all are
            return one
        error, both = combined((spread / len(one.gaps), freedom), (drawn, math.inf))
        return replace(one, error=error, freedom=both, spread=spread, pairs=len(pool), images=drawn)

    for part in parts:
        part.differences = tuple(known(part, one) for one in part.differences)


def _compared(paper: Paper, test: Comparison, cells: pd.DataFrame) -> list[Part]:
    """A test on each data set of the paper, at the largest scale that has all its rows with two
    seeds or more, else at the largest that has all, else the largest that has some. The other
    stands beside it."""
    rows = cells[cells.table.isin([test.experiment, test.against])]
    found, others = [], comparison.others_of(paper, test)
    for dataset in rows.dataset.unique():
        spec = paper.dataset(dataset)
        if not spec.in_paper or test.dataset not in ("", spec.protocol):
            continue
        ran = []
        for scale in Part(test).scales:
            own = rows[(rows.dataset == dataset) & (rows.scale == scale)]
            if differences := tuple(comparison.differences_of(paper, test, own)):
                seen = {one.other for one in differences}
                lacking = tuple(name for name in others if name not in seen)
                ran.append(Part(test, dataset, scale, differences, lacking=lacking, spread=scale))
        if ran:
            whole = [one for one in ran if not one.lacking] or ran
            part = next((one for one in whole if one.ready), whole[0])
            part.beside = next((one for one in ran if one is not part), None)
            ran[0].spread = part.scale
            found.append(part)
    return found or [Part(test, standin=f"{test.by}-standin" in {*rows.column})]
