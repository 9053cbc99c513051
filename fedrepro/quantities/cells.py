"""The numbers of one experiment: from the curves of its runs to a value a (method, column)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from typing import Protocol as Interface

import pandas as pd

from fedrepro.base.errors import Diverged
from fedrepro.federated import metrics
from fedrepro.papers import Arm, Experiment, Paper
from fedrepro.records import Record

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


def without_numbers(
    experiment: Experiment, rows: Sequence[Row], diverged: Sequence[tuple[Arm, Diverged]]
) -> list[Row]:
    """Rows of the same keys for arms whose training diverged: no value, and why, in each column
    the others have. Printed rows that are not one arm each (a ratio of two, say) get none."""
    grid, columns = experiment.kind == "grid", list(dict.fromkeys(row["column"] for row in rows))
    arms = experiment.kind not in _NOT_ARMS
    return [
        {
            "table": experiment.id,
            "method": arm.row or arm.label if grid else arm.label,
            "column": column,
            "value": None,
            "alternative": arm.alternative,
            "alone": False,
            "standin": any(row["standin"] for row in rows if row["column"] == column),
            "marks": [f"seed {end.seed} diverged in round {end.round}"],
        }
        for arm, end in diverged
        for column in ([arm.column] if arm.column else columns)
        if arms
    ]


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
    """Training time without testing, to the round that is reported where validation picks it, as a
    ratio to the reference row where there is one."""
    spent = {}
    for result in results:
        curve = result.record.curve
        if _rule(paper) == "validation":
            curve = curve[curve["round"] <= max(1, metrics.best_round(curve))]
        by_phase = metrics.seconds(curve).drop("evaluate", errors="ignore")
        spent[result.label] = float(by_phase.sum())
    printed = paper.table(experiment.table or experiment.id)
    dataset = results[0].record.data["dataset"] if results else ""
    column = paper.column(printed.id, dataset) or printed.columns[0]
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


def _grid(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    """Each arm's mean accuracy in the row and column it says."""
    first = paper.table(experiment.table or experiment.id).columns[0]
    for result in results:
        mean = metrics.scores(result.record.curve, _rule(paper))["avg"]
        yield result.arm.row or result.label, result.arm.column or first, mean


def _each_target(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    """Arms whose method has a target stand in one row: each in the column of the domain its target
    is from, and their mean once every domain has been a target. Others have a row of their own."""
    turns: dict[str, dict[str, float]] = {}
    domains: list[str] = []
    for result in results:
        scores = metrics.scores(result.record.curve, _rule(paper))
        target = result.arm.fields.get("target")
        if target is None:
            yield from ((result.label, column, value) for column, value in scores.items())
            continue
        data = result.record.data
        domains, home = data["domains"], data["clients"][target]["domain"]
        turns.setdefault(result.arm.row, {})[home] = scores[home]
    for row, found in turns.items():
        yield from ((row, domain, found[domain]) for domain in domains if domain in found)
        if len(found) == len(domains):
            yield row, "avg", sum(found.values()) / len(found)


def _differences(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    """Printed rows that are one accuracy, or one less another. Rows of other data sets, and of
    domains that a data set in their place does not have, are left out."""
    scores = {r.label: metrics.scores(r.record.curve, _rule(paper)) for r in results}
    dataset = str(results[0].record.data["dataset"]) if results else ""
    for one in experiment.differences:
        if dataset != "minidigits" and paper.datasets[dataset].protocol != one.dataset:
            continue
        if one.of not in scores or (one.minus is not None and one.minus not in scores):
            continue
        base = scores[one.minus] if one.minus is not None else {}
        gains = {column: value - base.get(column, 0.0) for column, value in scores[one.of].items()}
        gains["largest"] = max(value for column, value in gains.items() if column != "avg")
        if one.column in gains:
            table = paper.table(experiment.table or experiment.id)
            yield one.row, table.columns[0], gains[one.column]


def _leakage(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    for result in results:
        measured = result.record.measured("leakage")
        yield result.label, "MI", float(measured["mutual_information"])
        yield result.label, "accuracy", metrics.scores(result.record.curve, _rule(paper))["avg"]


def _relative(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    """How much the last arm's mean accuracy is above the first's, in percent of the first's."""
    if len(results) < 2:
        return
    low, high = (
        metrics.scores(r.record.curve, _rule(paper))["avg"] for r in (results[0], results[-1])
    )
    dataset = str(results[0].record.data["dataset"])
    column = paper.table(experiment.table or experiment.id).columns[0]
    yield experiment.rows.get(dataset, dataset), column, 100 * (high / low - 1)


def _in_out(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    """Accuracies as fractions, and the round they are from: 0 where nothing travels. On data the
    printed table is not about, under names of their own."""
    for result in results:
        curve, data = result.record.curve, result.record.data
        counts = pd.DataFrame(data["counts"])
        tested = counts[counts.split == "test"].groupby("domain").images.sum()
        best = metrics.best_round(curve)
        weights = data.get("weights") or tested.to_dict()
        found = metrics.in_and_out(curve, data["clients"], weights).loc[best]
        names = ("ood_acc", "ind_acc", "rounds")
        if not _printed_for(paper, experiment, data["dataset"]):
            names = ("out of domain", "in domain", "best round")
        alone = not metrics.traffic(curve).size
        values = (found["ood"] / 100, found["ind"] / 100, 0 if alone else best)
        yield from zip([result.label] * 3, names, map(float, values), strict=True)


def _printed_for(paper: Paper, experiment: Experiment, dataset: str) -> bool:
    """Whether the printed table is about this data set of ours, its experiment's first one."""
    own = paper.protocol(experiment.datasets[0]).data.dataset
    return experiment.table is not None and own == dataset


def _communication(paper: Paper, experiment: Experiment, results: Sequence[Run]) -> Values:
    """All clients' traffic, up and down, to the best round, in the paper's MB."""
    for result in results:
        data, sent = result.record.data, metrics.traffic(result.record.curve)
        best = metrics.best_round(result.record.curve)
        column = paper.column(experiment.table or experiment.id, data["dataset"])
        size = float(sent.loc[:best].to_numpy().sum()) if sent.size else 0.0
        megabyte = float(paper.reporting["megabyte_bytes"].value)
        yield result.label, column or data["dataset"], size / megabyte


_KINDS: dict[str, Callable[[Paper, Experiment, Sequence[Run]], Values]] = {
    "rounds": _rounds,
    "traffic": _traffic,
    "speedup": _speedup,
    "seconds": _seconds,
    "sampling": _sampling,
    "grid": _grid,
    "targets": _each_target,
    "differences": _differences,
    "leakage": _leakage,
    "relative": _relative,
    "in-out": _in_out,
    "communication": _communication,
}


_NOT_ARMS = ("speedup", "targets", "differences", "relative")


def wide(rows: Sequence[Row]) -> pd.DataFrame:
    """Our numbers as a table: a row a method, a column a column."""
    frame = pd.DataFrame(rows)
    methods, columns = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.column))
    table = frame.pivot_table(
        index="method", columns="column", values="value", aggfunc="mean", dropna=False
    )
    return table.reindex(index=methods, columns=columns).rename_axis(index=None, columns=None)
