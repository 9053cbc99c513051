"""A method of its authors' own code beside ours, round by round, on Office-Caltech-10.

    git clone https://github.com/med-air/FedBN FedBN
    git clone https://github.com/WenkeHuang/RethinkFL RethinkFL
    python benchmarks/end_to_end.py FedBN [--rounds 5] [--epochs 1] [--json FILE]
    python benchmarks/end_to_end.py RethinkFL [--method FedProto] [--precision float64]

Settings and images are a paper's own, scale `paper`, seed 0: ADCOL's Table 4 for FedBN; FedAPC's
Table I for RethinkFL, with FedAvg or FedProto. Both begin with the same weights and read the same
batches. A third run is ours with the first layer's weights moved by 1e-7: it shows how fast
rounding errors grow. Prints one row per round.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import entry
import numpy as np
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

CPU = torch.device("cpu")
MOVED = 1e-7
Batches = list[tuple[Tensor, Tensor]]


class FedBN:
    """Trains, averages and tests with the functions `train`, `communication` and `test` of
    `federated/fed_office.py`. There a layer stays at its client if its name has "bn" in it; so
    BatchNorm layers without it (shortcuts, heads) get such a name first."""

    paper, table, methods = "adcol", "table-4", ("FedBN",)
    code = "federated/fed_office.py"

    def __init__(self, run: Training) -> None:
        self.run, self.code_of = run, importlib.import_module("federated.fed_office")
        self.server = Logits(run.engine.module)
        self.models = [copy.deepcopy(self.server) for _ in run.clients]
        self.code_of.client_num = len(self.models)
        counts = [len(client.data.train) for client in run.clients]
        self.weights = [count / sum(counts) for count in counts]
        self.loss = nn.CrossEntropyLoss()

    def one_round(self, number: int) -> None:
        step, mode = self.run.protocol.optimizer, argparse.Namespace(mode="fedbn")
        for client, model in enumerate(self.models):
            optimizer = torch.optim.SGD(
                model.parameters(), step.lr, step.momentum, weight_decay=step.weight_decay
            )
            for epoch in batches(self.run, client, number):
                self.code_of.train(model, epoch, optimizer, self.loss, CPU)
        self.server, self.models = self.code_of.communication(
            mode, self.server, self.models, self.weights
        )

    def accuracies(self) -> list[float]:
        """In percent, by client."""
        tests = [[test(self.run, client.data.domain)] for client in self.run.clients]
        pairs = zip(self.models, tests, strict=True)
        return [100 * self.code_of.test(model, one, self.loss, CPU)[1] for model, one in pairs]

    def networks(self) -> list[list[Tensor]]:
        return [values(model) for model in self.models]


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


class RethinkFL:
    """The network, local training, average and test are theirs; loaders give our batches."""

    paper, table, methods = "fedapc", "table-1-office10", ("FedAvg", "FedProto")
    code = "models/utils/federated_model.py"
    unused = ("_features.", "cls.", "encoder.")  # second names, and layers that no loss reaches

    def __init__(self, run: Training) -> None:
        self.run, protocol, clients = run, run.protocol, range(len(run.clients))
        with contextlib.chdir(sys.path[0]):  # their packages list the folder they are called in
            every = importlib.import_module("models")
            nets = [importlib.import_module("backbone.ResNet").resnet10(10) for _ in clients]
            self.test = importlib.import_module("utils.training").global_evaluate
        for net in nets:
            net.to(run.engine.dtype)
            for mine, own in zip(values(net, self.unused), run.server.model.values(), strict=True):
                mine.copy_(own)
        asked = {"parti_num": len(nets), "online_ratio": 1, "device_id": 0, "averaing": "weight"}
        asked |= {"local_epoch": protocol.local_epochs, "local_lr": protocol.optimizer.lr}
        asked |= {"dataset": "", "structure": "", "model": run.method.name.lower()}
        args = argparse.Namespace(**asked, mu=getattr(run.method, "lam", None))
        sys.modules["models.utils.federated_model"].create_if_not_exists = lambda path: None  # type: ignore[attr-defined]
        self.server = every.get_model(nets, args, None)
        self.server.device, self.server.random_state = CPU, np.random.RandomState(0)
        self.server.net_to_device()
        self.server.trainloaders = [Loader(len(client.data.train)) for client in run.clients]
        self.server.ini()

    def one_round(self, number: int) -> None:
        for client, loader in enumerate(self.server.trainloaders):
            loader.epochs = batches(self.run, client, number)
        with contextlib.redirect_stderr(io.StringIO()):  # a bar per client
            self.server.loc_update(self.server.trainloaders)

    def accuracies(self) -> list[float]:
        """In percent, by domain."""
        tests = [[test(self.run, domain)] for domain in self.run.federation.tests]
        return list(self.test(self.server, tests, "", ""))

    def networks(self) -> list[list[Tensor]]:
        return [values(net, self.unused) for net in self.server.nets_list]


class Loader:
    """A client's batches as their loops read them: one epoch each time."""

    def __init__(self, images: int) -> None:
        self.sampler = argparse.Namespace(indices=np.arange(images))
        self.epochs: Iterator[Batches] = iter(())

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(next(self.epochs))


def values(network: nn.Module, unused: tuple[str, ...] = ()) -> list[Tensor]:
    """Its tensors without counters and those whose names begin so."""
    state = network.state_dict().items()
    return [v for n, v in state if not n.startswith(unused) and "num_batches" not in n]


def batches(run: Training, client: int, number: int) -> Iterator[Batches]:
    """What a client of ours reads in a round: a list of batches per local epoch."""
    job = run._job(run.clients[client], {}, number)
    streams, phase = Streams(job), job.phases[0]
    for _ in range(phase.epochs):
        read = [
            run.engine._batch(run.method, job, streams, i)
            for (i,) in run.engine._epoch(job, phase, streams)
        ]
        yield [(batch.x, batch.y) for batch in read]


def test(run: Training, domain: str) -> tuple[Tensor, Tensor]:
    """A domain's test images as the network reads them, and their labels, in one batch."""
    images, labels = run.federation.tests[domain].images, run.federation.tests[domain].labels
    return normalise(images, run.protocol.data.normalise, run.engine.dtype), labels


def compare(clone: Path, name: str, **changes: Any) -> Iterator[dict[str, Any]]:
    """After each round: mean accuracies over domains, and the largest differences of the clients'
    networks. name: the method; by default the code's first. changes: of the protocol."""
    known = [kind for kind in (FedBN, RethinkFL) if (clone / kind.code).is_file()]
    if not known:
        raise FedReproError(
            f"{clone} has neither code; name a clone of github.com/med-air/FedBN or "
            "github.com/WenkeHuang/RethinkFL"
        )
    name = name or known[0].methods[0]
    if name not in known[0].methods:
        raise FedReproError(f"of this code, --method is {' or '.join(known[0].methods)}")
    sys.path.insert(0, str(clone.resolve()))
    load_torchvision()  # theirs imports it as it is
    question = study(known[0].paper, "office10", "paper")
    arm = next(arm for arm in question.arms(known[0].table) if arm.label == name)
    protocol = arm.protocol.changed(**changes)
    data = question.federation()
    run, moved = (
        Training(fedrepro.methods.create(arm.method, **arm.fields), protocol, data, seed=0)
        for _ in range(2)
    )
    run.engine._load(run.server.model)
    moved.server.model[next(iter(moved.server.model))] += MOVED
    theirs = known[0](run)
    for number in range(1, protocol.rounds + 1):
        theirs.one_round(number)
        run.one_round()
        moved.one_round()
        yield {
            "round": number,
            "theirs (%)": fmean(theirs.accuracies()),
            "ours (%)": run.log.accuracy(),
            "ours moved (%)": moved.log.accuracy(),
            "theirs - ours": f"{gap(theirs.networks(), networks(run)):.1e}",
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
    parser.add_argument("--method", default="", help="of RethinkFL: FedAvg (default) or FedProto")
    parser.add_argument("--rounds", type=entry.count, default=5)
    parser.add_argument("--epochs", type=entry.count, default=1, help="local epochs")
    parser.add_argument("--precision", default="float32", choices=("float32", "float64"))
    parser.add_argument("--json", type=Path, help="also write the rows there, for the book")
    args = parser.parse_args()
    rows, changes = [], {"rounds": args.rounds, "local_epochs": args.epochs}
    with recorded(CPU):
        for row in compare(args.clone, args.method, precision=args.precision, **changes):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    entry.run(main)
