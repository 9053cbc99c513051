"""The numbers of one experiment: from the curves of its runs to a value a (method, column)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from typing import Protocol as Interface

import pandas as pd

from fedrepro import metrics
from fedrepro.papers import Experiment, Paper
from fedrepro.runs import Record

Row = dict[str, Any]


class Run(Interface):
    """What is read of a result."""

    @property
    def label(self) -> str: ...

    @property
    def record(self) -> Record: ...

    @property
    def clients(self) -> int: ...

    @property
    def arm(self) -> Any: ...


def cells(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> list[Row]:
    """Rows with keys table, method, column, value, standin, marks, alternative, alone.

    value None: the target was not reached, or there is none. Kinds that are only drawn (curves,
    features) have the mean accuracy of each arm.
    """
    compute = _KINDS.get(experiment.kind, _accuracy)
    by_label = {result.label: result for result in results}
    rows = []
    for label, column, value in compute(paper, experiment, results):
        result = by_label.get(label)
        rows.append(
            {
                "table": experiment.id,
                "method": label,
                "column": column,
                "value": value,
                "alternative": bool(result and result.arm.alternative),
                "alone": bool(result and not metrics.traffic(result.record.curve).size),
                **(_marks(result or results[0], column)),
            }
        )
    return rows


def _marks(result: Run, column: str) -> Row:
    """Whether the column is a stand-in's, and the deviations behind it."""
    data = result.record.data
    domains = [column] if column in data["domains"] else data["domains"]
    marks = [clause for domain in domains for clause in data["deviations"].get(domain, [])]
    standin = any(domain in data["standins"] for domain in domains)
    return {"standin": standin, "marks": list(dict.fromkeys(marks))}


Values = Iterator[tuple[str, str, float | None]]


def _rule(paper: Paper) -> str:
    return str(paper.reporting["score_rule"].value)


def _accuracy(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    for result in results:
        scores = metrics.scores(result.record.curve, _rule(paper))
        for column, value in scores.items():
            yield result.label, column, value


def _targets(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> dict[str, float]:
    """Target accuracy by column: the printed one, or the lowest final one among the named arms,
    taken from our own runs. Empty while a named arm is missing."""
    target = experiment.target
    if target is None:
        return {}
    scores = {r.label: metrics.scores(r.record.curve, _rule(paper)) for r in results}
    if target.accuracy is not None:
        return {"avg": target.accuracy}
    if not set(target.lowest_of) <= set(scores):
        return {}
    columns = next(iter(scores.values()))
    return {c: min(scores[label][c] for label in target.lowest_of) for c in columns}


def _rounds(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    targets = _targets(paper, experiment, results)
    for result in results:
        for column, target in targets.items():
            yield result.label, column, _reached(result, column, target)


def _reached(result: Run, column: str, target: float) -> int | None:
    return metrics.rounds_to_target(result.record.curve, column, target)


def _gigabytes(paper: Paper, result: Run, column: str, target: float) -> float | None:
    """One client's traffic to the target, in the paper's own GB."""
    reached = _reached(result, column, target)
    if reached is None:
        return None
    sent = metrics.bytes_to_round(result.record.curve, reached, result.clients)
    return sent / float(paper.reporting["gigabyte_bytes"].value)


def _traffic(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    targets = _targets(paper, experiment, results)
    for result in results:
        for column, target in targets.items():
            yield result.label, column, _gigabytes(paper, result, column, target)


def _speedup(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    """The printed row names both methods: "A vs B" is B's traffic over A's."""
    by_label = {result.label: result for result in results}
    targets = _targets(paper, experiment, results)
    for row in paper.table(experiment.table or experiment.id).methods:
        ours, _, theirs = row.partition(" vs ")
        if ours not in by_label or theirs not in by_label:
            continue
        for column, target in targets.items():
            pair = [_gigabytes(paper, by_label[name], column, target) for name in (theirs, ours)]
            yield row, column, pair[0] / pair[1] if pair[0] and pair[1] else None


def _seconds(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    """Training time without testing, as a ratio to the reference row where there is one."""
    spent = {
        r.label: float(metrics.seconds(r.record.curve).drop("evaluate", errors="ignore").sum())
        for r in results
    }
    column = paper.table(experiment.table or experiment.id).columns[0]
    base = spent.get(experiment.relative_to) if experiment.relative_to else 1.0
    for label, value in spent.items():
        yield label, column, value / base if base else None


def _sampling(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    target = experiment.target
    goal = target.accuracy if target is not None and target.accuracy is not None else 100.0
    for result in results:
        yield result.label, "accuracy", metrics.scores(result.record.curve, _rule(paper))["avg"]
        yield result.label, "rounds", _reached(result, "avg", goal)
        yield result.label, "size_GB", _gigabytes(paper, result, "avg", goal)


_KINDS: dict[str, Callable[[Paper, Experiment, Sequence[Run]], Values]] = {
    "rounds": _rounds,
    "traffic": _traffic,
    "speedup": _speedup,
    "seconds": _seconds,
    "sampling": _sampling,
}


def wide(rows: Sequence[Row]) -> pd.DataFrame:
    """Our numbers as a table: a row a method, a column a column."""
    frame = pd.DataFrame(rows)
    methods, columns = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.column))
    table = frame.pivot_table(
        index="method", columns="column", values="value", aggfunc="mean", dropna=False
    )
    return table.reindex(index=methods, columns=columns).rename_axis(index=None, columns=None)
