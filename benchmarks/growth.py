"""Growth: seconds per round and peak memory against clients, parameters and pixels of an image.

    python benchmarks/growth.py [--axis clients parameters pixels] [--engine reference|fused] ...

Every point is trained in processes of its own: in each a first round warms up and the later ones
are timed; the operations of a round are counted apart. Every value is kept in
results/growth-AXIS-ENGINE-DEVICE.json; report_growth.py fits the slopes. See README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any

import entry
import torch
from report_growth import slopes
from rounds import CLASSES, Ticks, made, made_protocol, made_samples
from timing import clear, peak_mib
from torch.utils.flop_counter import FlopCounterMode

from fedrepro import methods
from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Protocol
from fedrepro.data.federation import ClientData, Federation
from fedrepro.federated.rounds import Training
from fedrepro.models import build_model, parameter_count
from fedrepro.records.record import pick_device

METHODS = ("FedAvg", "ADCOL")
DOMAINS = 5
AXES = {
    "clients": (5, 10, 30, 100, 300, 1000),
    "parameters": (8, 16, 32, 48, 64, 96),  # widths of small-cnn
    "pixels": (16, 24, 32, 48, 64, 96, 128),  # sides of the images
}


@dataclass(frozen=True)
class Point:
    """One federation. size: pixels along a side; images, tests: of each client, of each domain."""

    method: str
    engine: str = "reference"
    device: str = "cpu"
    model: str = "tiny-cnn"
    model_args: dict[str, int] = field(default_factory=dict)
    clients: int = 5
    size: int = 16
    images: int = 20
    tests: int = 20
    batch: int = 20
    rounds: int = 3
    threads: int = 1
    seed: int = 0

    def protocol(self) -> Protocol:
        facts: dict[str, Any] = {"model": self.model, "model_args": self.model_args}
        facts |= {"rounds": 1 + self.rounds, "local_epochs": 1, "batch_size": self.batch}
        return made_protocol(self.size, **facts)

    def federation(self) -> Federation:
        """Equal clients, given to five domains in turn."""
        domains = tuple(f"domain{i}" for i in range(min(DOMAINS, self.clients)))
        clients = tuple(
            ClientData(
                f"client{i}",
                domains[i % len(domains)],
                made_samples(self.images, self.size, 12.0 * (i % DOMAINS), i),
                None,
            )
            for i in range(self.clients)
        )
        tests = {
            name: made_samples(self.tests, self.size, 12.0 * i, 10**6 + i)
            for i, name in enumerate(domains)
        }
        return made(self.size, clients, tests)


def at(axis: str, value: int, base: Point) -> Point:
    """The point of an axis; what does not vary is `base`."""
    if axis == "clients":
        return replace(base, clients=value)
    if axis == "parameters":
        args = {"width": value, "representation": 8 * value}
        return replace(base, model="small-cnn", model_args=args, size=28)
    return replace(base, model="small-cnn", size=value)


def place(axis: str, point: Point) -> int:
    """Where a point lies on its axis."""
    if axis == "parameters":
        model = build_model(point.model, CLASSES, point.size, **point.model_args)
        return parameter_count(model)
    return point.clients if axis == "clients" else point.size**2


def training(point: Point, device: torch.device) -> Training:
    """A run that has not begun."""
    method, protocol = methods.create(point.method), point.protocol()
    return Training(method, protocol, point.federation(), point.seed, device, point.engine)


def train(point: Point, device: torch.device) -> dict[str, Any]:
    """Seconds of each round, the warming one first, as a whole and by phase."""
    ticks = Ticks()
    curve = training(point, device).run(ticks)
    rows = curve[curve.measure == "seconds"]
    return {
        "seconds": [b - a for a, b in pairwise(ticks.at)],
        "phases": {str(name): list(part.value) for name, part in rows.groupby("subject")},
    }


def operations(point: Point, device: torch.device) -> int:
    """Floating-point operations of a round's products and convolutions.

    Those of many clients are reckoned from three small federations: a client adds its own, and one
    output to a network that tells clients apart, so that they are a parabola in the clients.
    """
    if point.clients > 3 * DOMAINS:
        sizes = [replace(point, clients=n * DOMAINS) for n in (1, 2, 3)]
        a, b, c = (operations(size, device) for size in sizes)
        steps = point.clients / DOMAINS - 1
        return round(a + steps * (b - a) + steps * (steps - 1) / 2 * (c - 2 * b + a))
    run = training(replace(point, rounds=0), device)
    run.engine.lanes = 1  # type: ignore[attr-defined]  # torch counts in this thread alone
    with FlopCounterMode(display=False) as counter:
        run.run(Silent())
    return int(counter.get_total_flops())


def measured(point: Point, count: bool = False) -> dict[str, Any]:
    """One training in this process, and the most memory held (MiB). `before`: the same after a
    training of two tiny clients, which has loaded and started whatever every training needs.
    `operations` are counted afterwards, or None."""
    torch.set_num_threads(point.threads)
    device = pick_device(point.device)
    tiny = {"model": "tiny-cnn", "model_args": {}, "clients": 2, "size": 16, "rounds": 1}
    train(replace(point, **tiny), device)
    clear(device)
    before = peak_mib(device)
    found = {**train(point, device), "before": before, "peak": peak_mib(device)}
    return {**found, "operations": operations(point, device) if count else None}


def apart(point: Point, count: bool) -> dict[str, Any]:
    """`measured` in a fresh process: a copy of one that has imported the library and done nothing
    (torch._dynamo is what torch's optimisers import once they are used).

    Raises:
        FedReproError: it was killed, for want of memory most likely.
    """
    quick = "forkserver" in get_all_start_methods()
    context = get_context("forkserver" if quick else "spawn")
    if quick:
        context.set_forkserver_preload(
            ["fedrepro.federated.rounds", slopes.__module__, "torch._dynamo"]
        )
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(measured, point, count).result()
        except BrokenProcessPool:
            raise FedReproError(
                f"{point.method} with {point.clients} clients was killed, for want of memory most "
                "likely: leave out the largest points with --values"
            ) from None


def measure(axis: str, values: Sequence[int], base: Point, repeat: int) -> dict[str, Any]:
    """Every process of an axis, by method and point: all points in turn, `repeat` times."""
    points = {
        (method, value): at(axis, value, replace(base, method=method))
        for method in METHODS
        for value in values
    }
    found: dict[tuple[str, int], list[dict[str, Any]]] = {key: [] for key in points}
    for number in range(repeat):
        for (method, value), point in points.items():
            # steps of stacked clients are not counted client by client
            one = apart(point, count=number == 0 and point.engine == "reference")
            found[method, value].append(one)
            spent, more = statistics.median(one["seconds"][1:]), one["peak"] - one["before"]
            line = f"{axis} {value}, {method} {number + 1}: {spent:.3f} s, {more:.0f} MiB more"
            print(line, file=sys.stderr, flush=True)
    return {
        method: [
            {"x": place(axis, point), "point": asdict(point), "processes": found[name, value]}
            for (name, value), point in points.items()
            if name == method
        ]
        for method in METHODS
    }


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    plan.add_argument("--axis", nargs="+", choices=tuple(AXES), default=list(AXES))
    plan.add_argument("--values", nargs="+", type=int, help="clients, widths or sides of one axis")
    plan.add_argument("--engine", default="reference", choices=("reference", "fused"))
    plan.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    plan.add_argument("--images", type=int, default=20, help="training images of each client")
    plan.add_argument("--batch", type=int, default=20)
    plan.add_argument("--rounds", type=entry.count, default=3, help="timed in each process")
    plan.add_argument("--repeat", type=entry.count, default=2, help="processes a point")
    plan.add_argument("--threads", type=entry.count, default=os.cpu_count() or 1)
    plan.add_argument("--seed", type=int, default=0)
    plan.add_argument("--results", type=Path, default=entry.RESULTS, help="folder of the files")
    return plan


def checked(given: argparse.Namespace) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each axis asked for with its values. FedReproError: values that no slope can be fitted to."""
    if given.values is None:
        yield from ((axis, AXES[axis]) for axis in given.axis)
        return
    if len(given.axis) != 1:
        raise FedReproError("--values belong to one axis: name it with --axis")
    values = tuple(sorted(set(given.values)))
    if len(values) < 2 or values[0] < 1:
        raise FedReproError("--values: give two or more different numbers from 1 on")
    yield given.axis[0], values


def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    axes = list(checked(given))
    if min(given.images, given.batch) < 2:
        raise FedReproError("--images and --batch are 2 or more")
    pick_device(given.device)
    torch.set_num_threads(given.threads)
    names = ("engine", "device", "images", "batch", "rounds", "threads", "seed")
    base = Point("", **{name: getattr(given, name) for name in names})
    call = entry.command("growth", words)
    settings = {"repeat": given.repeat, "warm_up": 1, **asdict(base)}
    for axis, values in axes:
        work = partial(measure, axis, values, base, given.repeat)
        found = entry.stored(call, given.device, work, axis=axis, settings=settings)
        path = given.results / f"growth-{axis}-{given.engine}-{given.device}.json"
        files.write_json(path, found)
        print(slopes([found]).to_string(index=False))


if __name__ == "__main__":
    entry.run(main)
