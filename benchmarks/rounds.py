"""Seconds per round and peak memory: the library's rounds against a plain loop (field_loop.py).

    python benchmarks/rounds.py [--model digit-cnn] [--device cpu|cuda] [--repeat 5] ...

Both sides start from the same network and see the same made images. First their losses are compared
in the same batch order; then library, field, library, field, ... are timed, each in a process of
its own, whose memory is measured too. See README.md for how to read the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import entry
import torch
from field_loop import FIELDS, METHODS, FieldLoop

from fedrepro import methods
from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Protocol, parse_protocol
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.federated.rounds import Training
from fedrepro.records.record import pick_device

HERE = Path(__file__).resolve().parent
SIDES = ("library", "field")
CLASSES = 10
CHECK_ROUNDS = 2
# The two sides' mean losses, relatively: room for another order of summation, or three digits.
TOLERANCE = {"float32": 0.01, "bf16": 0.05}
MIB = 1024 * 1024
Found = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What is trained. rounds: in each repeat. size: pixels of the square images."""

    model: str = "digit-cnn"
    device: str = "cpu"
    clients: int = 5
    images: int = 743
    size: int = 28
    batch: int = 64
    epochs: int = 1
    rounds: int = 1
    repeat: int = 5
    threads: int = 1
    seed: int = 0
    precision: str = "float32"  # the library's; the field's loop is float32

    def protocol(self, rounds: int) -> Protocol:
        facts = {"model": self.model, "rounds": rounds, "local_epochs": self.epochs}
        facts |= {"batch_size": self.batch, "precision": self.precision}
        return made_protocol(self.size, **facts)


def made_protocol(size: int, **facts: Any) -> Protocol:
    """A protocol for made images, with the papers' optimiser."""
    data = {"dataset": "made", "size": size, "normalise": "half"}
    pace = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5}
    return parse_protocol({"data": data, "optimizer": pace, **facts})


def made_samples(n: int, size: int, shift: float, seed: int) -> Samples:
    """n noisy images: a coarse colour pattern tells the class, an offset the client."""
    patterns = torch.rand(CLASSES, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    coarse = torch.nn.functional.interpolate(patterns[labels], (size, size))
    images = coarse * 100 + torch.rand(n, 3, size, size, generator=generator) * 80 + shift
    return Samples(images.clamp(0, 255).to(torch.uint8), labels)


def made_federation(settings: Settings) -> Federation:
    """As many equal clients as asked for. The test sets of one image are there because the round
    loop tests after each round; that time is taken off."""
    n, size = settings.images, settings.size
    if n % settings.batch == 1:
        raise FedReproError(
            f"{n} images in batches of {settings.batch} leave one alone, which BatchNorm cannot "
            "train on; change --images or --batch"
        )
    names = [f"client{i}" for i in range(settings.clients)]
    clients = [
        ClientData(name, name, made_samples(n, size, 12.0 * i, i), None)
        for i, name in enumerate(names)
    ]
    return made(size, clients, 1)


def made(size: int, clients: Sequence[ClientData], tests: int | dict[str, Samples]) -> Federation:
    """A federation of made images. tests: each domain's, or so many of each client's own."""
    if isinstance(tests, int):
        owned = ((c.name, c.train) for c in clients)
        tests = {name: Samples(own.images[:tests], own.labels[:tests]) for name, own in owned}
    classes = tuple(map(str, range(CLASSES)))
    return Federation("made", size, classes, tuple(tests), tuple(clients), tests)


# Both sides, behind one form: losses by round, seconds per round.


class Ticks(Silent):
    """Notes when the rounds begin and when each ends."""

    def start(self, label: str, total: int, done: int) -> None:
        self.at = [time.perf_counter()]

    def round(self, number: int, accuracy: float) -> None:
        self.at.append(time.perf_counter())


def library_rounds(
    method: str, settings: Settings, federation: Federation, rounds: int
) -> tuple[list[dict[str, float]], list[float]]:
    """Mean loss terms over clients, and seconds without tests, of each round."""
    protocol = settings.protocol(rounds)
    device = torch.device(settings.device)
    ticks = Ticks()
    same = methods.create(method, **FIELDS.get(method, {}))
    curve = Training(same, protocol, federation, settings.seed, device).run(ticks)
    tested = curve[(curve.measure == "seconds") & (curve.subject == "evaluate")]
    tests = tested.set_index("round").value
    seconds = [b - a - tests[i] for i, (a, b) in enumerate(pairwise(ticks.at), 1)]
    terms = curve[curve.measure == "term"]
    losses = terms.groupby(["round", "subject"]).value.mean().unstack().to_dict("records")
    return [{str(k): float(v) for k, v in row.items()} for row in losses], seconds


def field_rounds(
    method: str,
    settings: Settings,
    federation: Federation,
    rounds: int,
    same_order: bool = False,
) -> tuple[list[dict[str, float]], list[float]]:
    """As `library_rounds`, for the field's loop."""
    protocol = settings.protocol(rounds)
    device = torch.device(settings.device)
    loop = FieldLoop(method, protocol, federation, settings.seed, device, same_order)
    logged, seconds = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        logged.append(loop.round())
        seconds.append(time.perf_counter() - start)
    losses = [
        {k: statistics.fmean(c[k] for c in clients) for k in clients[0]} for clients in logged
    ]
    return losses, seconds


def check(method: str, settings: Settings, federation: Federation) -> dict[str, Any]:
    """Both sides' losses over two rounds in the same batch order.

    Raises:
        FedReproError: a cross-entropy that does not fall, or sides that differ by more than the
            tolerance of the precision.
    """
    library, _ = library_rounds(method, settings, federation, CHECK_ROUNDS)
    field, _ = field_rounds(method, settings, federation, CHECK_ROUNDS, same_order=True)
    for name, losses in (("library", library), ("field", field)):
        if not losses[-1]["ce"] < losses[0]["ce"]:
            raise FedReproError(f"{method}: cross-entropy of {name} does not fall: {losses}")
    # relative to a round's whole loss: the KL term alone may be as good as zero
    gap = max(
        abs(a[k] - b[k]) / sum(b.values()) for a, b in zip(library, field, strict=True) for k in b
    )
    tolerance = TOLERANCE[settings.precision]
    if not gap <= tolerance:
        raise FedReproError(f"{method}: losses differ by {gap:.2%}: {library} and {field}")
    return {"library": library, "field": field, "largest_gap": gap, "tolerance": tolerance}


# Measuring.


def ratios(library: Sequence[float], field: Sequence[float]) -> dict[str, float]:
    """Library over field, pair by pair: median, least and greatest."""
    parts = [a / b for a, b in zip(library, field, strict=True)]
    return {"median": statistics.median(parts), "min": min(parts), "max": max(parts)}


def peak_resident() -> float:
    """MiB this process has held at most.

    Linux's own figure of this program image is read where there is one: `getrusage` there starts
    from what the parent process had held when it started this one.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / MIB if sys.platform == "darwin" else peak / 1024


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured_here(side: str, method: str, settings: Settings) -> Found:
    """Seconds of each timed round, after one to warm up, and peak MiB of this process before and
    after training, and on the device."""
    federation = made_federation(settings)
    if settings.device == "cuda":
        torch.cuda.init()
    before = peak_resident()
    train = library_rounds if side == "library" else field_rounds
    _, seconds = train(method, settings, federation, 1 + settings.rounds)
    cuda = settings.device == "cuda"
    device = torch.cuda.max_memory_allocated() / MIB if cuda else None
    memory = {"before": before, "peak": peak_resident(), "device_peak": device}
    return {"seconds": seconds[1:], "memory_mib": memory}


def measured_apart(side: str, method: str, settings: Settings) -> Found:
    """`measured_here` in a fresh process: what a side does to its process is no other's."""
    words = [sys.executable, str(HERE / "rounds.py"), "--side", side, method]
    for name, value in asdict(settings).items():
        words += [f"--{name}", str(value)]
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    if done.returncode:
        raise FedReproError(f"measuring {side} {method} failed: {done.stderr[-500:]}")
    found: Found = json.loads(done.stdout)
    return found


def measure_all(settings: Settings) -> dict[str, dict[str, list[Found]]]:
    """What was measured by method and side, the sides taken in turn."""
    found: dict[str, dict[str, list[Found]]] = {m: {s: [] for s in SIDES} for m in METHODS}
    for number in range(settings.repeat):
        for method, side in product(METHODS, SIDES):
            one = measured_apart(side, method, settings)
            found[method][side].append(one)
            print(f"{method} {number + 1}: {side} {mean_seconds(one):.2f} s", file=sys.stderr)
    return found


def mean_seconds(found: Found) -> float:
    return statistics.fmean(found["seconds"])


def measure(settings: Settings) -> dict[str, Any]:
    """By method: the checked losses, and seconds and memory of both sides with their ratios."""
    federation = made_federation(settings)
    checks = {m: check(m, settings, federation) for m in METHODS}
    key = "device_peak" if settings.device == "cuda" else "peak"
    results = {}
    for method, sides in measure_all(settings).items():
        seconds = {side: [mean_seconds(one) for one in found] for side, found in sides.items()}
        memory = {
            side: max((one["memory_mib"] for one in found), key=itemgetter(key))
            for side, found in sides.items()
        }
        results[method] = {
            "seconds": seconds,
            "seconds_ratio": ratios(seconds["library"], seconds["field"]),
            "memory_mib": memory,
            "memory_ratio": memory["library"][key] / memory["field"][key],
            "check": checks[method],
        }
    return results


def add_work(plan: argparse.ArgumentParser, images: int = Settings.images) -> None:
    """The options of what is trained, by the names in `Settings`."""
    plan.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    plan.add_argument("--clients", type=entry.count, default=5)
    plan.add_argument("--images", type=entry.count, default=images, help="of a client, to train on")
    plan.add_argument("--size", type=entry.count, default=28, help="pixels")
    plan.add_argument("--batch", type=entry.count, default=64)
    plan.add_argument("--epochs", type=entry.count, default=1, help="local epochs per round")
    plan.add_argument("--repeat", type=entry.count, default=5)
    plan.add_argument("--threads", type=entry.count, default=os.cpu_count() or 1)
    plan.add_argument("--seed", type=int, default=0)


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description="library against field's loop, as ratios")
    plan.add_argument("--model", default="digit-cnn", help="digit-cnn, small-cnn, adcol-resnet50")
    add_work(plan)
    plan.add_argument("--rounds", type=entry.count, default=1, help="timed rounds in each repeat")
    plan.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    plan.add_argument(
        "--json", type=Path, help="default: results/rounds-MODEL[-PRECISION]-DEVICE.json"
    )
    plan.add_argument("--side", nargs=2, metavar=("SIDE", "METHOD"), help=argparse.SUPPRESS)
    return plan


def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    chosen = {name: getattr(given, name) for name in Settings.__dataclass_fields__}
    settings = replace(Settings(), **chosen)
    torch.set_num_threads(settings.threads)
    pick_device(settings.device)  # a missing device ends here; both sides get the same settings
    if given.side:
        print(json.dumps(measured_here(*given.side, settings)))
        return
    call = entry.command("rounds", words)
    work = partial(measure, settings)
    stored = entry.stored(call, settings.device, work, settings=asdict(settings))
    kind = "" if settings.precision == "float32" else f"-{settings.precision}"
    name = f"rounds-{settings.model}{kind}-{settings.device}.json"
    files.write_json(given.json or entry.RESULTS / name, stored)
    import report  # only here: the processes that are measured do without it

    entry.show(report.round_rows(stored))


if __name__ == "__main__":
    entry.run(main)
