"""Seconds of local training on a CPU: clients at once against one after another on all cores.

    python benchmarks/at_once.py [--model small-cnn pfl-cnn ...] [--threads 2] [--repeat 5]

The plain loop trains two made clients a thread in both ways, in turn, on the same machine. It
shows what one thread a client (`base/threads.py`) costs a network. See README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import entry
import report
import torch
from peers.shared import name_for_the_library
from rounds import Settings, made_federation

from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.federated.rounds import Training
from fedrepro.methods.fedavg import FedAvg

# Images of a client, their side in pixels, and a batch: about a second per round on two cores.
WORK = {
    "small-cnn": (400, 28, 32),
    "narrow-resnet": (200, 32, 32),
    "pfl-cnn": (200, 32, 10),
    "digit-cnn": (100, 28, 32),
    "resnet10": (64, 32, 32),
}
PRECISIONS = ("float32", "bf16")


def measure(settings: Settings) -> dict[str, Any]:
    """Seconds of each timed round in both ways, and the network's parameters.

    Raises:
        FedReproError: a single thread, on which there is nothing to compare.
    """
    if settings.threads < 2:
        raise FedReproError("clients at once need two threads or more; pass --threads")
    torch.set_num_threads(settings.threads)
    device, federation = torch.device(settings.device), made_federation(settings)
    runs = {}
    for way, lanes in {"in turn": 1, "at once": settings.threads}.items():
        protocol = settings.protocol(settings.repeat + 1)
        runs[way] = Training(FedAvg(), protocol, federation, settings.seed, device)
        runs[way].engine.lanes = lanes  # type: ignore[attr-defined]
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for number in range(settings.repeat + 1):
        for way, run in runs.items():
            begun = time.perf_counter()
            run.one_round()
            if number:  # the first one warms up
                seconds[way].append(time.perf_counter() - begun)
    weights = runs["in turn"].engine.module.parameters()  # type: ignore[attr-defined]
    return {"parameters": sum(w.numel() for w in weights), **seconds}


def measure_all(models: Sequence[str], base: Settings) -> list[dict[str, Any]]:
    """`measure` of every network and precision."""
    found = []
    for model, precision in product(models, PRECISIONS):
        images, size, batch = WORK[model]
        work = {"images": images, "size": size, "batch": batch}
        settings = replace(base, model=model, precision=precision, **work)
        found.append({"settings": asdict(settings), **measure(settings)})
        print(f"{model}, {precision}: done", file=sys.stderr, flush=True)
    return found


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    plan.add_argument("--model", nargs="+", default=list(WORK), choices=list(WORK))
    plan.add_argument("--threads", type=entry.count, default=os.cpu_count() or 1)
    plan.add_argument("--repeat", type=entry.count, default=5)
    plan.add_argument("--json", type=Path, help="default: results/at-once-cpu.json")
    return plan


def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    name_for_the_library()
    base = Settings(clients=2 * given.threads, threads=given.threads, repeat=given.repeat, rounds=1)
    call = entry.command("at_once", words)
    content = entry.stored(call, "cpu", lambda: measure_all(given.model, base))
    files.write_json(given.json or entry.RESULTS / "at-once-cpu.json", content)
    entry.show(report.at_once_rows(content))


if __name__ == "__main__":
    entry.run(main)
