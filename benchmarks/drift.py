"""How far the domains of ``minidigits`` lie apart: train a small network on one, test it on all.

    python benchmarks/drift.py [--domains NAME ...] [--size 28] [--epochs 12] [--seed 0]

prints accuracies in percent, a row per training domain and a column per test domain.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import entry
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

from fedrepro.base.rng import seeded_modules, torch_stream
from fedrepro.data.domains import generator

MINIDIGITS = ("mini-scanned", "mini-font", "mini-photo", "mini-street")
BATCH = 64


def network() -> nn.Sequential:
    """Three convolutions with BatchNorm and one linear layer; takes (b, 3, s, s), s >= 8."""
    layers: list[nn.Module] = []
    widths = (3, 16, 32, 64)
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(64 * 9, 10))


def tensors(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures (n, 3, size, size) in [-1, 1], labels (n,), parts (n,)."""
    images, labels, part = generator().generate(name, size)
    colour = np.broadcast_to(images, (len(images), 3, size, size))
    pixels = torch.tensor(colour, dtype=torch.float32) / 127.5 - 1
    return pixels, torch.tensor(labels), torch.tensor(part)


def train(x: torch.Tensor, y: torch.Tensor, epochs: int, seed: int) -> nn.Sequential:
    """Adam with a one-cycle rate and cross-entropy, batches drawn from the seed's own stream."""
    with seeded_modules(seed):
        model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=5e-3, total_steps=steps)
    stream = torch_stream(seed, "batches")
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=stream)
        for start in range(0, len(x) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH]
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Percent of pictures named rightly."""
    predicted = torch.cat([model(chunk).argmax(1) for chunk in torch.split(x, 1_000)])
    return float((predicted == y).float().mean() * 100)


def measure_drift(domains: list[str], size: int, epochs: int, seed: int) -> pd.DataFrame:
    """Accuracy in percent on the test part of each domain (columns) of a network trained on the
    train part of one (rows)."""
    sets = {name: tensors(name, size) for name in domains}
    rows = {}
    for name in domains:
        x, y, part = sets[name]
        model = train(x[part == 0], y[part == 0], epochs, seed)
        rows[name] = {to: accuracy(model, x[p == 1], y[p == 1]) for to, (x, y, p) in sets.items()}
    matrix = pd.DataFrame.from_dict(rows, orient="index", columns=domains)
    return matrix.rename_axis(index="trained on", columns="tested on")


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy trained on x tested on, in percent")
    parser.add_argument("--domains", nargs="+", default=list(MINIDIGITS))
    parser.add_argument("--size", type=entry.count, default=28)
    parser.add_argument("--epochs", type=entry.count, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the matrix there, for the book")
    args = parser.parse_args()
    torch.set_num_threads(1)
    matrix = measure_drift(args.domains, args.size, args.epochs, args.seed)
    print(matrix.round(1).to_string())
    if args.json is not None:
        args.json.write_text(matrix.round(2).to_json(orient="index", indent=1) + "\n")


if __name__ == "__main__":
    entry.run(main)
