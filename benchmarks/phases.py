"""Where the time of one round goes: reading, forward, backward, optimiser, messages, server, tests.

    python benchmarks/phases.py [--model digit-cnn small-cnn] [--device cpu|cuda] [--repeat 5]

The library times the large phases of each round itself. The parts of training are timed here, from
outside, in every other round; the rounds between show what that costs. The values go into
results/phases-DEVICE.json; report.py draws them. See README.md.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import entry
import pandas as pd
import report
import torch
from rounds import Settings, add_work, made_federation, synchronize

from fedrepro import methods
from fedrepro.base import files
from fedrepro.base.progress import Silent
from fedrepro.engine import LoopEngine
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.methods.server import Server
from fedrepro.records.record import pick_device

METHODS = ("FedAvg", "ADCOL")
MODELS = ("digit-cnn", "small-cnn")
LARGE = ("messages", "server", "evaluate")  # the library's own phases, beside `train`


class Watch:
    """Seconds by part of training, while it is on. Work of the server is never counted."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self.on = False

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, its seconds added to a part, those of the device included."""

        @functools.wraps(work)
        def inside(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return work(*args, **kwargs)
            synchronize(self.device)
            start = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                synchronize(self.device)
                spent = time.perf_counter() - start
                self.seconds[part] = self.seconds.get(part, 0.0) + spent

        return inside

    def away(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, with the watch off."""

        @functools.wraps(work)
        def inside(*args: Any, **kwargs: Any) -> Any:
            was, self.on = self.on, False
            try:
                return work(*args, **kwargs)
            finally:
                self.on = was

        return inside

    @contextmanager
    def around(self, method: type[Method]) -> Iterator[None]:
        """Inside, every training step of the plain loop passes this watch."""
        places = [
            (LoopEngine, "_batch", "reading"),
            (method, "client_loss", "forward"),
            (torch.Tensor, "backward", "backward"),
            (torch.optim.SGD, "step", "step"),
        ]
        with ExitStack() as stack:
            for owner, name, part in places:
                watched = self.timed(part, getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, watched))
            fit = self.away(Server.fit)
            stack.enter_context(mock.patch.object(Server, "fit", fit))
            yield


class Turns(Silent):
    """Turns the watch on and off from round to round, and keeps what it saw."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.parts: dict[int, dict[str, float]] = {}

    def round(self, number: int, text: str) -> None:
        if self.watch.on:
            self.parts[number] = self.watch.seconds
        self.watch.seconds = {}
        self.watch.on = not self.watch.on


def measure(method: str, settings: Settings) -> dict[str, Any]:
    """Seconds of each part in each watched round, and of each whole round between them.

    The first round warms up; then watched and unwatched rounds take turns.
    """
    device = torch.device(settings.device)
    watch = Watch(device)
    turns = Turns(watch)
    kind = methods.create(method)
    federation = with_tests(settings)
    protocol = settings.protocol(1 + 2 * settings.repeat)
    run = Training(kind, protocol, federation, settings.seed, device)
    run.engine.lanes = 1  # type: ignore[attr-defined]  # one watch cannot time steps at once
    with watch.around(type(kind)):
        curve = run.run(turns)
    rows = curve[curve.measure == "seconds"]
    large = rows.pivot_table(index="round", columns="subject", values="value").fillna(0.0)
    watched = []
    for number, parts in turns.parts.items():
        row = large.loc[number]
        rest = float(row["train"]) - sum(parts.values())
        watched.append({**parts, "rest": rest, **{k: float(row[k]) for k in LARGE}})
    between = [n for n in large.index if n > 1 and n not in turns.parts]
    return {"watched": watched, "plain": [float(large.loc[n].sum()) for n in between]}


def with_tests(settings: Settings) -> Any:
    """The federation of rounds.py, each domain tested with a fifth of a client's images."""
    federation = made_federation(settings)
    tests = made_federation(replace(settings, images=max(2, settings.images // 5)))
    return replace(federation, tests={c.name: c.train for c in tests.clients})


def measure_all(models: Sequence[Settings]) -> dict[str, dict[str, Any]]:
    """`measure` of every network and method."""
    results: dict[str, dict[str, Any]] = {}
    for settings in models:
        for method in METHODS:
            results.setdefault(settings.model, {})[method] = measure(method, settings)
            print(f"{settings.model}, {method}: done", file=sys.stderr, flush=True)
    return results


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    plan.add_argument("--model", nargs="+", default=list(MODELS), help="networks by name")
    add_work(plan, images=192)  # --repeat: watched rounds, and as many in between
    plan.add_argument("--json", type=Path, help="default: results/phases-DEVICE.json")
    return plan


def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    names = [n for n in Settings.__dataclass_fields__ if n in given and n != "model"]
    settings = Settings(**{name: getattr(given, name) for name in names})
    pick_device(given.device)
    torch.set_num_threads(given.threads)
    asked = {name: value for name, value in asdict(settings).items() if name in names}
    call, models = entry.command("phases", words), [replace(settings, model=m) for m in given.model]
    content = entry.stored(call, given.device, lambda: measure_all(models), settings=asked)
    files.write_json(given.json or entry.RESULTS / f"phases-{given.device}.json", content)
    shown = pd.DataFrame(report.phase_rows(content)).set_index("network, method")
    print(shown.T.to_string())


if __name__ == "__main__":
    entry.run(main)
