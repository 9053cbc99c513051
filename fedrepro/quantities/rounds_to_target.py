"""Training time; rounds and bytes until a target accuracy: the printed one, or the lowest final one
among some arms."""

from fedrepro.federated import metrics
from fedrepro.quantities.base import Asked, Result, Values, quantity


def targets(asked: Asked) -> dict[str, float]:
    """Target accuracy by column. The lowest of some arms comes from our own runs; empty if one
    of these is missing."""
    target = asked.experiment.target
    if target is None:
        return {}
    if target.accuracy is not None:
        return {"avg": target.accuracy}
    scores = {result.label: asked.scores(result) for result in asked.results}
    if not set(target.lowest_of) <= set(scores):
        return {}
    columns = next(iter(scores.values()))
    return {c: min(scores[label][c] for label in target.lowest_of) for c in columns}


def reached(result: Result, column: str, target: float) -> int | None:
    return metrics.rounds_to_target(result.record.curve, column, target)


def gigabytes(asked: Asked, result: Result, column: str, target: float) -> float | None:
    """One client's traffic to the target, in the paper's own GB."""
    last = reached(result, column, target)
    if last is None:
        return None
    sent = metrics.bytes_to_round(result.record.curve, last, result.clients)
    return sent / asked.unit("gigabyte")


@quantity("rounds")
def rounds(asked: Asked) -> Values:
    wanted = targets(asked)
    for result in asked.results:
        for column, target in wanted.items():
            yield result.label, column, reached(result, column, target)


@quantity("traffic")
def traffic(asked: Asked) -> Values:
    wanted = targets(asked)
    for result in asked.results:
        for column, target in wanted.items():
            yield result.label, column, gigabytes(asked, result, column, target)


@quantity("speedup", per_arm=False)
def speedup(asked: Asked) -> Values:
    """Ratios of traffic: the printed row "A vs B" is B's traffic divided by A's."""
    by_label = {result.label: result for result in asked.results}
    for row in asked.table.methods:
        ours, _, theirs = row.partition(" vs ")
        if ours not in by_label or theirs not in by_label:
            continue
        for column, target in targets(asked).items():
            pair = [gigabytes(asked, by_label[name], column, target) for name in (theirs, ours)]
            yield row, column, pair[0] / pair[1] if pair[0] and pair[1] else None


@quantity("sampling", whole=100.0)
def sampling(asked: Asked) -> Values:
    """Accuracy, and rounds and bytes to a target (100 percent if none is printed)."""
    target = asked.experiment.target
    goal = target.accuracy if target is not None and target.accuracy is not None else 100.0
    for result in asked.results:
        yield result.label, "accuracy", asked.scores(result)["avg"]
        yield result.label, "rounds", reached(result, "avg", goal)
        yield result.label, "size_GB", gigabytes(asked, result, "avg", goal)


@quantity("seconds")
def seconds(asked: Asked) -> Values:
    """Training time without testing, up to the reported round if validation selects it, as a ratio
    to the reference row if there is one."""
    spent = {}
    for result in asked.results:
        curve = result.record.curve
        if asked.paper.rule == "validation":
            curve = curve[curve["round"] <= max(1, metrics.best_round(curve))]
        by_phase = metrics.seconds(curve).drop("evaluate", errors="ignore")
        spent[result.label] = float(by_phase.sum())
    reference = asked.experiment.relative_to
    base = spent.get(reference) if reference else 1.0
    for label, value in spent.items():
        yield label, asked.column or asked.table.columns[0], value / base if base else None
