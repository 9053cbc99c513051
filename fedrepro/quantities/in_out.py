"""Accuracy in and out of the clients' own domains."""

from __future__ import annotations

import pandas as pd

from fedrepro.federated import metrics
from fedrepro.quantities.base import Asked, Values, quantity


@quantity("in-out")
def in_out(asked: Asked) -> Values:
    """Accuracies as fractions, and the round they are from: 0 where nothing travels. On data the
    printed table is not about, under names of their own."""
    first = asked.paper.protocol(asked.experiment.datasets[0]).data.dataset
    printed = asked.experiment.table is not None and first == asked.dataset
    names = ("ood_acc", "ind_acc", "rounds")
    if not printed:
        names = ("out of domain", "in domain", "best round")
    for result in asked.results:
        curve, data = result.record.curve, result.record.data
        counts = pd.DataFrame(data["counts"])
        tested = counts[counts.split == "test"].groupby("domain").images.sum()
        best = metrics.best_round(curve)
        weights = data.get("weights") or tested.to_dict()
        found = metrics.in_and_out(curve, data["clients"], weights).loc[best]
        last = best if metrics.traffic(curve).size else 0
        values = (found["ood"] / 100, found["ind"] / 100, last)
        yield from zip([result.label] * 3, names, map(float, values), strict=True)
