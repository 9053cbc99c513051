"""What a test of a claim without runs needs: the command, and its cost."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from fedrepro import papers
from fedrepro.federated import metrics
from fedrepro.papers import Comparison, Paper
from fedrepro.quantities.costs import pflop_done, pflop_unread
from fedrepro.records import Record
from fedrepro.report.results import recorded

Known = Mapping[str, Sequence[Record]]  # runs of a paper by scale
SEEDS = 3


def needed(paper: Paper, test: Comparison, scales: Sequence[str], known: Known) -> str:
    """The commands that train the rows of a test, and their hours of one core: of the estimated
    operations, at the speed of recorded runs of the same scale."""
    spec = paper.experiment(test.experiment)
    names = [name for name in (test.experiment, test.against) if name]
    dataset, costs = test.dataset or spec.datasets[0], []
    for scale in scales:
        size, speed = _size(paper, names, dataset, scale, known), _speed(known.get(scale, ()))
        cost = "hours not known before the images are read"
        if size is not None and (speed := speed or _of_all_papers(scale)):
            cost = f"about {hours(size / speed)} hours of one core at {speed:.2g} PFLOP per hour"
        costs.append(f"--scale {scale} ({cost})")
    said = " and ".join(f"fedrepro sweep {paper.name} --experiment {name}" for name in names)
    said += f" --dataset {dataset} --seeds 0-{SEEDS - 1} {' or '.join(costs)}"
    return said + f"; {spec.reason}" * (spec.state == "blocked")


def _size(
    paper: Paper, names: Sequence[str], dataset: str, scale: str, known: Known
) -> float | None:
    """PFLOP of all rows of some experiments and of their trials; None if it is not known."""
    runs, total = [run for records in known.values() for run in records], 0.0
    for name in names:
        for arm in paper.arms(name, dataset, scale):
            tuning = paper.tuning_of(name, dataset, arm)
            tried = arm.trials(tuning) if tuning is not None else ()
            todo = [(arm.protocol, SEEDS), *((run.protocol, 1) for *_, run in tried)]
            for protocol, times in todo:
                if (size := pflop_unread(protocol, runs)) is None:
                    return None
                total += size * times
    return total


def hours(count: float) -> str:
    return f"{count:.0f}" if count >= 1 else f"{count:.1g}"


def _speed(runs: Iterable[Record]) -> float | None:
    """PFLOP per hour; None if no run has images."""
    sizes = {run.run_id: (run, size) for run in runs if (size := pflop_done(run)) is not None}
    spent = sum(float(metrics.seconds(run.curve).sum()) for run, _ in sizes.values()) / 3600
    return sum(size for _, size in sizes.values()) / spent if spent else None


@cache
def _of_all_papers(scale: str) -> float | None:
    found = [recorded(name).where(scale=scale) for name in papers.list()]
    return _speed(result.record for one in found for _, _, result in one.runs())
