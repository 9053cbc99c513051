"""Small made federations of embeddings."""

from dataclasses import replace
from typing import Any

import torch

from fedrepro.data.federation import Federation, Samples
from fedrepro.federated.rounds import Training
from tests import toys

VALUES = 12
ADAMW = {"kind": "adamw", "lr": 0.003, "clip": 1.0, "warmup": 2, "cosine": 20, "kept": True}


def samples(n: int, domain: int, seed: int) -> Samples:
    """Rows that point to their class, each domain turned its own way."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % toys.CLASSES
    rows = torch.rand(n, VALUES, generator=generator)
    rows[torch.arange(n), labels + toys.CLASSES * (domain % 2)] += 0.5
    rows[:, -1 - domain] += 0.8
    return Samples(rows, labels)


def federation(sizes: tuple[int, ...] = (21, 13, 9)) -> Federation:
    """One client a domain, with embeddings of `VALUES` values for images."""
    of_images = toys.federation(sizes)
    clients = tuple(
        replace(c, train=samples(n, i, i), validation=samples(6, i, 50 + i))
        for i, (c, n) in enumerate(zip(of_images.clients, sizes, strict=True))
    )
    tests = {name: samples(12, i, 100 + i) for i, name in enumerate(of_images.tests)}
    return replace(of_images, size=VALUES, clients=clients, tests=tests)


def start(name: str, engine: str = "reference", **settings: Any) -> Training:
    given = federation(settings.pop("sizes", (21, 13, 9)))
    base = {"model": "adapter", "optimizer": ADAMW, "data__encoder": "made", "given": given}
    return toys.start(name, engine=engine, **{**base, **settings})
