"""Gains: one accuracy less another, or in percent of another."""

from __future__ import annotations

from fedrepro.quantities.base import Asked, Values, quantity


@quantity("differences", per_arm=False)
def differences(asked: Asked) -> Values:
    """Printed rows that are one accuracy, or one less another. Rows of other data sets, and of
    domains that a data set in their place does not have, are left out."""
    scores = {result.label: asked.scores(result) for result in asked.results}
    for one in asked.experiment.differences:
        embedded = asked.dataset == "minidigits"
        if not embedded and asked.paper.datasets[asked.dataset].protocol != one.dataset:
            continue
        if one.of not in scores or (one.minus is not None and one.minus not in scores):
            continue
        base = scores[one.minus] if one.minus is not None else {}
        gains = {column: value - base.get(column, 0.0) for column, value in scores[one.of].items()}
        gains["largest"] = max(value for column, value in gains.items() if column != "avg")
        if one.column in gains:
            yield one.row, asked.table.columns[0], gains[one.column]


@quantity("relative", per_arm=False)
def relative(asked: Asked) -> Values:
    """How much the last arm's mean accuracy is above the first's, in percent of the first's."""
    if len(asked.results) < 2:
        return
    low, high = (asked.scores(asked.results[place])["avg"] for place in (0, -1))
    row = asked.experiment.rows.get(asked.dataset, asked.dataset)
    yield row, asked.table.columns[0], 100 * (high / low - 1)
