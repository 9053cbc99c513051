"""How near to a core's peak the papers' networks train: operations a second, one thread, float32.

    python benchmarks/peak.py [--repeat 5]

The peak is the best rate that a convolution or a matrix product reached in the same call. Each
number is the best of so many repeats. The table goes into results/peak.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import entry
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from fedrepro.base.errors import FedReproError
from fedrepro.base.threads import one_thread
from fedrepro.models import build_model
from fedrepro.records.record import device_name

RESULT = Path(__file__).parent / "results" / "peak.md"
NETWORKS = (("resnet10", 32, 32), ("adcol-resnet50", 64, 32), ("adcol-resnet50", 28, 64))
Case = tuple[str, Callable[[], object]]


def layers() -> Iterator[Case]:
    """Single operations, forward and backward: what a network's step is made of."""
    shapes = (
        ("convolution 3x3, 256 channels, 16x16, batch 32", nn.Conv2d(256, 256, 3, padding=1), 16),
        ("convolution 1x1, 512 to 2,048 channels, 2x2, batch 32", nn.Conv2d(512, 2048, 1), 2),
    )
    for name, layer, side in shapes:
        layer = layer.to(memory_format=torch.channels_last)
        x = torch.rand(32, layer.in_channels, side, side)
        x = x.to(memory_format=torch.channels_last).requires_grad_()
        yield name, lambda layer=layer, x=x: layer(x).sum().backward()
    linear, features = nn.Linear(2048, 2048), torch.rand(32, 2048, requires_grad=True)
    yield "linear 2,048 to 2,048, batch 32", lambda: linear(features).sum().backward()
    square = torch.rand(2048, 2048)
    yield "matrix product 2,048 x 2,048", lambda: square @ square


def network(name: str, size: int, batch: int) -> Iterator[Case]:
    """A step of SGD with momentum, the optimiser's pass alone, and a test of 256 images."""
    module = build_model(name, 10, size)
    layout = module.memory_format
    module = module.to(memory_format=layout)
    pace = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9, weight_decay=1e-5)
    x, y = torch.rand(batch, 3, size, size).to(memory_format=layout), torch.arange(batch) % 10

    def step() -> None:
        pace.zero_grad(set_to_none=True)
        cross_entropy(module(x)[-1], y).backward()
        pace.step()

    @torch.no_grad()
    def test() -> None:
        module(torch.rand(256, 3, size, size).to(memory_format=layout))

    values = sum(p.numel() for p in module.parameters()) / 1e6
    yield f"{name}, {size} pixels, batch {batch}: a step", step
    yield f"{name}: the optimiser's pass over {values:.1f} million values", pace.step
    module.eval()
    yield f"{name}, {size} pixels: a test of 256 images", test


def measured(work: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Operations of one call, and its seconds: the best of so many, after one to warm up."""
    with FlopCounterMode(display=False) as counter:
        work()
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return float(counter.get_total_flops()), best


def table(repeat: int) -> str:
    """Markdown: one row per case, with its share of the best rate seen."""
    with one_thread():
        cases = chain(layers(), *(network(*one) for one in NETWORKS))
        rows = [(name, *measured(work, repeat)) for name, work in cases]
    peak = max(operations / seconds for _, operations, seconds in rows)
    lines = ["| what | seconds | GFLOP/s | share of the best |", "|---|---|---|---|"]
    for name, operations, seconds in rows:
        rate = operations / seconds
        shown = (f"{rate / 1e9:.0f}", f"{rate / peak:.0%}") if operations else ("-", "-")
        lines.append(f"| {name} | {seconds:.4f} | {' | '.join(shown)} |")
    machine = f"{device_name(torch.device('cpu'))}, torch {torch.__version__}, one thread, float32"
    return "\n".join(
        [*lines, "", f"Measured on {machine}: `python benchmarks/peak.py --repeat {repeat}`.", ""]
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--repeat", type=entry.count, default=5)
    parser.add_argument("--results", type=Path, default=RESULT)
    given = parser.parse_args(words)
    if not given.results.parent.is_dir():
        raise FedReproError(f"no folder {given.results.parent}; name another with --results")
    text = table(given.repeat)
    given.results.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    entry.run(main)
