"""What a test of a claim without runs needs: the command, and its cost."""

from collections.abc import Sequence
from functools import cache

from fedrepro import papers
from fedrepro.federated import metrics
from fedrepro.papers import Comparison, Paper
from fedrepro.quantities.costs import pflop_done, pflop_unread
from fedrepro.records import Record
from fedrepro.report.results import recorded

SEEDS = 3


def needed(paper: Paper, test: Comparison, scales: Sequence[str], known: Sequence[Record]) -> str:
    """The commands that train the rows of a test, and their hours of one core: of the estimated
    operations, at the speed of recorded runs of the same scale. known: runs of the paper."""
    spec = paper.experiment(test.experiment)
    names = [name for name in (test.experiment, test.against) if name]
    dataset, costs = test.dataset or spec.datasets[0], []
    for scale in scales:
        size, speed = _size(paper, names, dataset, scale, known), _speed(scale, paper.name)
        cost = "hours not known before the images are read"
        if size is not None and (speed := speed or _speed(scale, *papers.list())):
            cost = f"about {hours(size / speed)} hours of one core at {speed:.2g} PFLOP per hour"
        costs.append(f"--scale {scale} ({cost})")
    said = " and ".join(f"fedrepro sweep {paper.name} --experiment {name}" for name in names)
    said += f" --dataset {dataset} --seeds 0-{SEEDS - 1} {' or '.join(costs)}"
    return said + f"; {spec.reason}" * (spec.state == "blocked")


def _size(
    paper: Paper, names: Sequence[str], dataset: str, scale: str, known: Sequence[Record]
) -> float | None:
    """PFLOP of all rows of some experiments and of their trials; None if it is not known."""
    total = 0.0
    for name in names:
        for arm in paper.arms(name, dataset, scale):
            todo = [(arm.protocol, SEEDS), *((run.protocol, 1) for *_, run in arm.trials())]
            for protocol, times in todo:
                if (size := pflop_unread(protocol, known)) is None:
                    return None
                total += size * times
    return total


def hours(count: float) -> str:
    return f"{count:.0f}" if count >= 1 else f"{count:.1g}"


@cache
def _speed(scale: str, *names: str) -> float | None:
    """PFLOP per hour of the recorded runs of some papers; None if none has images."""
    found = [recorded(name).where(scale=scale).runs() for name in names]
    runs = {one.record.run_id: one.record for runs in found for _, _, one in runs}
    sizes = {run: size for run, record in runs.items() if (size := pflop_done(record)) is not None}
    spent = sum(float(metrics.seconds(runs[run].curve).sum()) for run in sizes) / 3600
    return sum(sizes.values()) / spent if spent else None
