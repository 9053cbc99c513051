"""Training time."""

from __future__ import annotations

from fedrepro.federated import metrics
from fedrepro.quantities.base import Asked, Values, quantity


@quantity("seconds")
def seconds(asked: Asked) -> Values:
    """Training time without testing, to the round that is reported where validation picks it, as a
    ratio to the reference row where there is one."""
    spent = {}
    for result in asked.results:
        curve = result.record.curve
        if asked.rule == "validation":
            curve = curve[curve["round"] <= max(1, metrics.best_round(curve))]
        by_phase = metrics.seconds(curve).drop("evaluate", errors="ignore")
        spent[result.label] = float(by_phase.sum())
    reference = asked.experiment.relative_to
    base = spent.get(reference) if reference else 1.0
    for label, value in spent.items():
        yield label, asked.column or asked.table.columns[0], value / base if base else None
