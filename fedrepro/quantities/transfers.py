"""MPFT's traffic at the paper's sizes: messages counted on random embeddings, so that no encoder's
weights are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from fedrepro.data.federation import Federation, Samples
from fedrepro.federated import metrics
from fedrepro.federated.rounds import Training
from fedrepro.methods import create
from fedrepro.papers import Arm

VALUES = 512  # of an embedding of either of the paper's encoders
ONCE = {"server_epochs": 1, "server_warmup": 0}  # how long the server trains moves no byte


def embedded(federation: Federation, seed: int = 0) -> Federation:
    """The same clients with random rows in the images' place; two test images a domain."""
    stream = torch.Generator().manual_seed(seed)

    def rows(samples: Samples, most: int | None = None) -> Samples:
        labels = samples.labels[:most]
        return Samples(torch.rand(len(labels), VALUES, generator=stream), labels)

    clients = tuple(
        replace(c, train=rows(c.train), validation=c.validation and rows(c.validation, 2))
        for c in federation.clients
    )
    tests = {name: rows(samples, 2) for name, samples in federation.tests.items()}
    return replace(federation, size=VALUES, clients=clients, tests=tests, texts={})


def transfers(
    arms: Iterable[Arm], rounds: Mapping[str, float], federation: Federation
) -> Iterator[tuple[str, float]]:
    """Each arm's bytes, all clients, both ways, in so many rounds like its second; of MPFT's one
    round all. Centres are as many as drawn images, which are counted in their place."""
    for arm in arms:
        fields = dict(arm.fields)
        if arm.method == "MPFT":
            drawn = {"prototypes": "random"} if fields.get("prototypes") == "cluster" else {}
            fields |= {**ONCE, **drawn}
        run = Training(create(arm.method, **fields), arm.protocol, embedded(federation), 0)
        for _ in range(min(2, arm.protocol.rounds)):
            run.one_round()
        sent = metrics.traffic(run.curve()).sum(axis=1).to_list()
        yield arm.label, rounds[arm.label] * sent[-1] if sent else 0.0
