"""FedBN of its authors' own code beside ours, round by round, as ADCOL's Table 4 trains it.

    git clone https://github.com/med-air/FedBN FedBN
    python benchmarks/end_to_end.py FedBN [--rounds 5] [--epochs 1] [--json FILE]

ADCOL's network, images and settings at scale `paper`, seed 0. Both begin with the same weights and
read the same batches. Theirs trains, averages and tests with the functions `train`,
`communication` and `test` of `federated/fed_office.py`. There a layer stays at its client if its
name has "bn" in it; so BatchNorm layers without it (shortcuts, heads) get such a name first.
A third run is ours with the first layer's weights moved by 1e-7: it shows how fast rounding errors
grow. Prints one row per round.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import entry
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import fedrepro.methods
from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.errors import FedReproError
from fedrepro.base.threads import recorded
from fedrepro.data.transforms import normalise
from fedrepro.engine.base import Streams
from fedrepro.federated.rounds import Training
from fedrepro.quantities.base import study

CPU, CODE = torch.device("cpu"), "federated/fed_office.py"
MOVED = 1e-7


class Logits(nn.Module):
    """A copy of our network that returns logits; every BatchNorm layer has "bn" in its name."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        for parent in list(self.network.modules()):
            children = list(parent.named_children())
            rename = any(isinstance(c, _BatchNorm) and "bn" not in name for name, c in children)
            if rename:
                parent._modules.clear()
                for name, child in children:
                    new = f"bn{name}" if isinstance(child, _BatchNorm) else name
                    parent.add_module(new, child)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).logits  # type: ignore[no-any-return]


def batches(run: Training, client: int, number: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """What a client of ours reads in a round: a list of batches per local epoch."""
    job = run._job(run.clients[client], {}, number)
    streams, (phase,) = Streams(job), job.phases
    for _ in range(phase.epochs):
        read = [
            run.engine._batch(run.method, job, streams, i)
            for (i,) in run.engine._epoch(job, phase, streams)
        ]
        yield [(batch.x, batch.y) for batch in read]


def compare(clone: Path, rounds: int, epochs: int) -> Iterator[dict[str, Any]]:
    """After each round: mean accuracies over domains, and the largest differences of the clients'
    networks."""
    if not (clone / CODE).is_file():
        raise FedReproError(f"{clone} has no {CODE}; name a clone of github.com/med-air/FedBN")
    sys.path.insert(0, str(clone))
    load_torchvision()  # theirs imports it as it is
    theirs: Any = importlib.import_module("federated.fed_office")
    question = study("adcol", "office10", "paper")
    protocol = question.protocol().changed(rounds=rounds, local_epochs=epochs)
    data, method = question.federation(), fedrepro.methods.create("FedBN")
    run, moved = (Training(method, protocol, data, seed=0) for _ in range(2))
    run.engine._load(run.server.model)
    moved.server.model["encoder.conv1.weight"] += MOVED
    server = Logits(run.engine.module)
    models = [copy.deepcopy(server) for _ in run.clients]
    theirs.client_num = len(models)
    counts = [len(client.data.train) for client in run.clients]
    weights = [count / sum(counts) for count in counts]
    loss, mode, step = nn.CrossEntropyLoss(), argparse.Namespace(mode="fedbn"), protocol.optimizer
    for number in range(1, rounds + 1):
        for client, model in enumerate(models):
            optimizer = torch.optim.SGD(
                model.parameters(), step.lr, step.momentum, weight_decay=step.weight_decay
            )
            for epoch in batches(run, client, number):
                theirs.train(model, epoch, optimizer, loss, CPU)
        server, models = theirs.communication(mode, server, models, weights)
        run.one_round()
        moved.one_round()
        found = []
        for client, model in zip(run.clients, models, strict=True):
            tests = data.tests[client.data.domain]
            x = normalise(tests.images, protocol.data.normalise, torch.float32)
            found.append(100 * theirs.test(model, [(x, tests.labels)], loss, CPU)[1])
        other = [[v for n, v in m.state_dict().items() if "num_batches" not in n] for m in models]
        yield {
            "round": number,
            "theirs (%)": fmean(found),
            "ours (%)": run.log.accuracy(),
            "ours moved (%)": moved.log.accuracy(),
            "theirs - ours": f"{gap(other, networks(run)):.1e}",
            "ours moved - ours": f"{gap(networks(moved), networks(run)):.1e}",
        }


def networks(run: Training) -> list[list[Tensor]]:
    """The clients' networks, tensor by tensor."""
    return [list(client.personal(run.server.model).values()) for client in run.clients]


def gap(some: list[list[Tensor]], others: list[list[Tensor]]) -> float:
    """The largest difference of any two values, as a share of the tensor's largest."""
    pairs = [p for pair in zip(some, others, strict=True) for p in zip(*pair, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path, help="folder of the authors' code")
    parser.add_argument("--rounds", type=entry.count, default=5)
    parser.add_argument("--epochs", type=entry.count, default=1, help="local epochs")
    parser.add_argument("--json", type=Path, help="also write the rows there, for the book")
    args = parser.parse_args()
    rows = []
    with recorded(CPU):
        for row in compare(args.clone, args.rounds, args.epochs):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    entry.run(main)
