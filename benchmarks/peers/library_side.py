"""The library: FedAvg through `fedrepro.federated.rounds.Training`.

python library_side.py WORK ENGINE
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

import torch
from rounds import made, made_protocol
from shared import Clock, Probe, Work, answer, name_for_the_library, stored
from torch import Tensor, nn

from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Protocol
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, LocalModel
from fedrepro.methods.fedavg import FedAvg
from fedrepro.records.record import pick_device


class Counted(FedAvg):
    """FedAvg that counts how often a client's loss is taken."""

    calls = count()  # what each call takes one number of: clients may be trained in threads

    def client_loss(
        self, model: LocalModel, batch: Batch, received: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        next(Counted.calls)
        return super().client_loss(model, batch, received)


class Ticks(Silent):
    """Notes when each round ends."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def round(self, number: int, text: str) -> None:
        self.clock.tick()


def protocol(work: Work) -> Protocol:
    facts = {"model": "pfl-cnn", "optimizer": {"lr": work.lr}, "precision": work.precision}
    facts |= {"rounds": work.rounds + 1, "local_epochs": 1, "batch_size": work.batch}
    return made_protocol(work.size, participation=work.cohort / work.users, **facts)


def federation(work: Work) -> Federation:
    """All users in one domain, whose test set is one image: the loop tests after each round, and
    that time is taken off."""
    images, labels = stored(work)
    clients = [
        ClientData(f"user{i}", "made", Samples(x, y), None)
        for i, (x, y) in enumerate(zip(images, labels, strict=True))
    ]
    return made(work.size, clients, {"made": Samples(images[0, :1], labels[0, :1])})


class Logits(nn.Module):
    """The library's network as one that gives logits alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x).logits
        return logits


def main() -> None:
    """Train and answer as the peers do. Where clients are stacked, a call of the loss is not one
    client's step; steps are reckoned there from the users the curve names."""
    work, engine = Work.of(sys.argv[1]), sys.argv[2]
    name_for_the_library()
    torch.set_num_threads(work.threads)
    device = pick_device(work.device)
    training = Training(Counted(), protocol(work), federation(work), work.seed, device, engine)
    network = training.engine.module  # type: ignore[attr-defined]
    network.load_state_dict(training.server.model)
    probe = Probe(work, Logits(network))
    clock = Clock(work.device)
    curve = training.run(Ticks(clock))
    network.load_state_dict(training.server.model)
    users = int((curve.measure == "term").sum())
    steps = next(Counted.calls) if engine == "reference" else users * -(-work.images // work.batch)
    tests = curve[(curve.measure == "seconds") & (curve.subject == "evaluate")]
    later = tests.sort_values("round").value.to_numpy()[1:]
    answer(clock, steps, probe.found(Logits(network)), [], untimed=later.tolist())


if __name__ == "__main__":
    main()
