"""Accuracy: by domain and in the mean, or each arm's mean in a printed place of its own."""

from __future__ import annotations

from fedrepro.quantities.base import Asked, Values, quantity


@quantity("accuracy", "sweep", "curves", "features", "terms", "privacy")
def by_domain(asked: Asked) -> Values:
    """Test accuracy per domain and `avg`; also of experiments that are only drawn."""
    for result in asked.results:
        for column, value in asked.scores(result).items():
            yield result.label, column, value


@quantity("grid")
def grid(asked: Asked) -> Values:
    """Each arm's mean accuracy in the row and column it names."""
    first = asked.table.columns[0]
    for result in asked.results:
        arm = result.arm
        yield arm.row or result.label, arm.column or first, asked.scores(result)["avg"]


@quantity("targets", per_arm=False)
def each_target(asked: Asked) -> Values:
    """Arms whose method has a target stand in one row: each in the column of the domain its target
    is from, and their mean once every domain has been a target. Others have a row of their own."""
    turns: dict[str, dict[str, float]] = {}
    domains: list[str] = []
    for result in asked.results:
        scores, target = asked.scores(result), result.arm.fields.get("target")
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
