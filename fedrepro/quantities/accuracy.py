"""Accuracies: by domain, as a mean, in and out of the clients' domains, and gains."""

from fedrepro.federated import metrics
from fedrepro.quantities.base import Asked, Values, quantity
from fedrepro.quantities.noise import target, tested_images


@quantity("accuracy", "sweep", "curves", "features", "terms", "privacy", whole=100.0)
def by_domain(asked: Asked) -> Values:
    """Test accuracy per domain and `avg`; also of experiments that are only drawn."""
    for result in asked.results:
        for column, value in asked.scores(result).items():
            yield result.label, column, value


@quantity("grid", whole=100.0)
def grid(asked: Asked) -> Values:
    """Each arm's mean accuracy, in the arm's row and column."""
    first = asked.table.columns[0]
    for result in asked.results:
        arm = result.arm
        yield arm.row or result.label, arm.column or first, asked.scores(result)["avg"]


@quantity("targets", whole=100.0)
def each_target(asked: Asked) -> Values:
    """Arms whose method has a target share one row: each in the column of its target's domain, and
    their mean if every domain has been a target. Other arms have their own row."""
    turns: dict[str, dict[str, float]] = {}
    domains: list[str] = []
    for result in asked.results:
        scores, home = asked.scores(result), target(result.record)
        if home is None:
            yield from ((result.label, column, value) for column, value in scores.items())
            continue
        domains = result.record.data["domains"]
        turns.setdefault(result.arm.row, {})[home] = scores[home]
    for row, found in turns.items():
        yield from ((row, domain, found[domain]) for domain in domains if domain in found)
        if len(found) == len(domains):
            yield row, "avg", sum(found.values()) / len(found)


@quantity("differences", per_arm=False)
def differences(asked: Asked) -> Values:
    """Printed rows that are one accuracy, or the difference of two. Rows of other data sets, and of
    domains that a replacing data set does not have, are left out."""
    runs = {result.label: result.record for result in asked.results}
    scores = {result.label: asked.scores(result) for result in asked.results}
    for one in asked.experiment.differences:
        embedded = asked.dataset == "minidigits"
        if not embedded and asked.paper.dataset(asked.dataset).protocol != one.dataset:
            continue
        if one.of not in scores or (one.minus is not None and one.minus not in scores):
            continue
        base = scores[one.minus] if one.minus is not None else {}
        gains = {column: value - base.get(column, 0.0) for column, value in scores[one.of].items()}
        largest = max((column for column in gains if column != "avg"), key=gains.__getitem__)
        place = largest if one.column == "largest" else one.column
        parts = [(100.0, runs[one.of])]
        if one.minus is not None:
            parts.append((-100.0, runs[one.minus]))
        if place in gains:
            more = {"parts": parts, "of": place}
            yield one.row, asked.table.columns[0], gains[place], more


@quantity("relative", per_arm=False)
def relative(asked: Asked) -> Values:
    """How much the last arm's mean accuracy is above the first's, in percent of the first's."""
    if len(asked.results) < 2:
        return
    ends = asked.results[-1], asked.results[0]
    high, low = (asked.scores(end)["avg"] for end in ends)
    slopes = 100 / low, -100 * high / low**2  # of the gain, by each accuracy in percent
    parts = [(100 * slope, end.record) for slope, end in zip(slopes, ends, strict=True)]
    row = asked.experiment.rows.get(asked.dataset, asked.dataset)
    more = {"parts": parts, "of": "avg"}
    yield row, asked.table.columns[0], 100 * (high / low - 1), more


@quantity("in-out", whole=1.0)
def in_out(asked: Asked) -> Values:
    """Accuracies as fractions, and their round: 0 if nothing is sent. On other data than the
    printed table's, they have other names."""
    first = asked.paper.protocol(asked.experiment.datasets[0]).data.dataset
    printed = asked.experiment.table is not None and first == asked.dataset
    ours = "out of domain", "in domain", "best round"
    names = ("ood_acc", "ind_acc", "rounds") if printed else ours
    for result in asked.results:
        curve, data = result.record.curve, result.record.data
        best = metrics.best_round(curve)
        weights = data.get("weights") or tested_images(result.record)
        there = curve[curve["round"] == best]
        found = metrics.in_and_out(there, data["clients"], weights).loc[best]
        last = best if metrics.traffic(curve).size else 0
        values = (found["ood"] / 100, found["ind"] / 100, last)
        yield from zip([result.label] * 3, names, map(float, values), strict=True)
