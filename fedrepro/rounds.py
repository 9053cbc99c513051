"""The one round loop all methods share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from typing import Protocol as Interface

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.engine import ENGINES, Engine, Job, Trained
from fedrepro.messages import Message, count_bytes
from fedrepro.methods.base import Method, Upload
from fedrepro.models import TensorInfo, build_model, layout
from fedrepro.progress import Progress
from fedrepro.protocol import Protocol
from fedrepro.rng import numpy_stream, seeded_modules, torch_stream
from fedrepro.server import Server, under

CURVE_COLUMNS = ("round", "measure", "subject", "domain", "split", "value")
Row = tuple[int, str, str, str, str, float]


@dataclass
class Client:
    """One client between rounds. kept: its network's tensors that the server's do not replace."""

    index: int
    data: ClientData
    kept: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)


class Checkpoint(Interface):
    """Where a run's unfinished state goes."""

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None: ...

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None: ...

    def due(self) -> bool: ...


@dataclass(frozen=True)
class _Uploader:
    """A trained client as `Method.upload` sees it."""

    index: int
    labels: Tensor
    generator: torch.Generator
    _engine: Engine
    _state: Mapping[str, Tensor]
    _samples: Samples

    def features(self, training: bool = False) -> Tensor:
        return self._engine.features(self._state, self._samples, training)


class Training:
    """A federated run: its clients, server and curve. `run` goes through the rounds."""

    def __init__(
        self,
        method: Method,
        protocol: Protocol,
        federation: Federation,
        seed: int,
        device: torch.device | str = "cpu",
        engine: str = "reference",
    ) -> None:
        self.method, self.protocol, self.seed = method, protocol, seed
        self.device = torch.device(device)
        self.federation = federation.to(self.device)
        dtype = torch.float64 if protocol.precision == "float64" else torch.float32
        classes = len(federation.classes)
        with seeded_modules(seed):
            module = build_model(
                protocol.model, classes, federation.size, **protocol.model_args
            ).to(dtype)
        self.layout: dict[str, TensorInfo] = layout(module)
        initial = {
            name: value.detach().clone(memory_format=torch.contiguous_format).to(self.device)
            for name, value in module.state_dict().items()
            if not self.layout[name].is_counter
        }
        self.engine: Engine = ENGINES[engine](module, protocol, self.device)
        self.server = Server(
            initial,
            self.layout,
            protocol,
            seed,
            len(federation.clients),
            module.feature_size,
            classes,
            self.device,
        )
        with seeded_modules(seed, round=0):
            method.init_server(self.server)
        self.loaded = [n for n in initial if method.loads(self.layout[n])]
        self.travelling = [n for n in initial if method.travels(self.layout[n])]
        self.judged = method.judged_by(self.layout)
        self.clients = [
            Client(i, data, {n: v for n, v in initial.items() if n not in self.loaded})
            for i, data in enumerate(self.federation.clients)
        ]
        self.rows: list[Row] = []
        self.round = 0

    # The loop.

    def run(self, progress: Progress, checkpoint: Checkpoint | None = None) -> pd.DataFrame:
        """Train to the last round, or to the early stop; resume where a checkpoint says."""
        if checkpoint is not None:
            self._resume(checkpoint)
        label = f"{self.method.name} seed {self.seed}"
        progress.start(label, self.protocol.rounds, self.round)
        try:
            while self.round < self.protocol.rounds and not self._stopped_early():
                # A round replaces state only once it is whole, so that an interrupt in the middle
                # of one leaves the last finished round to be saved.
                self._one_round(self.round + 1)
                progress.round(self.round, f"avg {self._mean_accuracy():.2f} %")
                if checkpoint is not None and checkpoint.due():
                    self._save(checkpoint)
        except BaseException:
            if checkpoint is not None and self.round:
                self._save(checkpoint)
            raise
        progress.finish(f"{self.round} rounds, avg {self._mean_accuracy():.2f} %")
        return self.curve()

    def _one_round(self, number: int) -> None:
        self.server.round = number
        clock: dict[str, float] = {}
        rows: list[Row] = []
        chosen = self._participants(number)
        with self._timed(clock, "messages"):
            downs = [self._download(client) for client in chosen]
        with self._timed(clock, "train"):
            jobs = [self._job(c, message, number) for c, message in zip(chosen, downs, strict=True)]
            trained = self.engine.train(self.method, jobs)
        with self._timed(clock, "messages"):
            uploads = [self._upload(c, t, number) for c, t in zip(chosen, trained, strict=True)]
        before = self.server.state(), [(dict(c.kept), dict(c.optimizer)) for c in self.clients]
        try:
            with self._timed(clock, "server"):
                self.server.log = {}
                self.method.aggregate(self.server, uploads)
                self.method.server_step(self.server, uploads)
            for client, result in zip(chosen, trained, strict=True):
                client.kept = {n: result.state[n] for n in client.kept}
                client.optimizer = result.optimizer if self.method.keeps_optimizer else {}
            with self._timed(clock, "evaluate"):
                if self.method.bn_policy == "recompute":
                    self._recompute_statistics()
                rows += self._evaluate(number)
        except BaseException:
            self.server.load_state(before[0])
            for client, (kept, optimizer) in zip(self.clients, before[1], strict=True):
                client.kept, client.optimizer = kept, optimizer
            raise
        for client, result in zip(chosen, trained, strict=True):
            name = client.data.name
            rows += [(number, "term", k, name, "train", v) for k, v in result.terms.items()]
        rows += [(number, "server", k, "", "", v) for k, v in self.server.log.items()]
        for way, messages in (("down", downs), ("up", [u.message for u in uploads])):
            counted = count_bytes(messages)
            rows += [(number, "bytes", f"{way}/{k}", "", "", float(v)) for k, v in counted.items()]
        rows += [(number, "seconds", k, "", "", v) for k, v in clock.items()]
        self.rows += rows
        self.round = number

    def _participants(self, number: int) -> list[Client]:
        """All clients, or a share drawn for this round, in client order."""
        n = len(self.clients)
        count = max(1, round(self.protocol.participation * n))
        if count == n:
            return self.clients
        drawn = numpy_stream(self.seed, "participation", round=number)
        return [self.clients[i] for i in sorted(drawn.choice(n, count, replace=False))]

    # Messages.

    def _download(self, client: Client) -> Message:
        message = dict(self.method.download(self.server, client.index))
        if self.travelling:
            message["model"] = {n: self.server.model[n] for n in self.travelling}
        return message

    def _job(self, client: Client, message: Message, number: int) -> Job:
        return Job(
            client=client.index,
            round=number,
            seed=self.seed,
            state=self._personal(client),
            samples=client.data.train,
            received=message,
            phases=self.method.phases(self.protocol),
            optimizer=client.optimizer,
        )

    def _upload(self, client: Client, trained: Trained, number: int) -> Upload:
        train = client.data.train
        view = _Uploader(
            client.index,
            train.labels,
            torch_stream(self.seed, "method", client.index, number),
            self.engine,
            trained.state,
            train,
        )
        message = dict(self.method.upload(view))
        if self.travelling:
            message["model"] = {n: trained.state[n] for n in self.travelling}
        return Upload(client.index, len(train), message)

    def _personal(self, client: Client) -> dict[str, Tensor]:
        """What a client uses: the server's tensors where it loads them, else its own."""
        return {n: client.kept.get(n, value) for n, value in self.server.model.items()}

    # Evaluation.

    def _recompute_statistics(self) -> None:
        for client in self.clients:
            state = self._personal(client)
            client.kept |= self.engine.bn_statistics(state, client.data.train)

    def _evaluate(self, number: int) -> list[Row]:
        rows: list[Row] = []
        for subject in self.judged:
            tests = self._tests(subject, number)
            results: dict[tuple[str, str], list[tuple[float, float]]] = {}
            for domain, split, state, samples in tests:
                pair = self.engine.evaluate(state, samples)
                results.setdefault((domain, split), []).append(pair)
            for (domain, split), pairs in results.items():
                accuracy, loss = np.mean(pairs, axis=0)
                rows.append((number, "accuracy", subject, domain, split, float(accuracy)))
                rows.append((number, "loss", subject, domain, split, float(loss)))
        return rows

    def _tests(
        self, subject: str, number: int
    ) -> Iterator[tuple[str, str, Mapping[str, Tensor], Samples]]:
        """Domain, split, network and images of everything tested this round. A domain with
        several clients' personal networks counts as their mean."""
        validation = {c.data.domain: c.data.validation for c in self.clients}
        if subject == "global":
            for domain, test in self.federation.tests.items():
                yield domain, "test", self.server.model, test
                held_out = validation.get(domain)
                if held_out is not None:
                    yield domain, "validation", self.server.model, held_out
            return
        for client, state in zip(self.clients, self._adapted(number), strict=True):
            domain = client.data.domain
            yield domain, "test", state, self.federation.tests[domain]
            if client.data.validation is not None:
                yield domain, "validation", state, client.data.validation

    def _adapted(self, number: int) -> list[dict[str, Tensor]]:
        """Each client's network as it is tested: after the method's training before a test, if
        any. All train in one call, so that an engine can train them together."""
        phases = self.method.before_test(self.protocol, number == self.protocol.rounds)
        if not phases:
            return [self._personal(client) for client in self.clients]
        jobs = [
            Job(
                client.index,
                number,
                self.seed,
                self._personal(client),
                client.data.train,
                self._download(client),
                phases,
                stream="adaptation",
            )
            for client in self.clients
        ]
        return [trained.state for trained in self.engine.train(self.method, jobs)]

    def embed(self, per_domain: int = 60) -> tuple[Tensor, Tensor, list[str]]:
        """Features (m, d) of up to `per_domain` test images a domain under the judged networks,
        their labels (m,) and domains, for figures."""
        features, labels, domains = [], [], []
        for domain, split, state, samples in self._tests(self.judged[0], self.round):
            if split == "test" and domain not in domains:
                part = Samples(samples.images[:per_domain], samples.labels[:per_domain])
                features.append(self.engine.features(state, part, training=False).cpu())
                labels.append(part.labels.cpu())
                domains += [domain] * len(part)
        return torch.cat(features), torch.cat(labels), domains

    def _stopped_early(self) -> bool:
        stop = self.protocol.early_stop
        if stop is None:
            return False
        losses: dict[int, list[float]] = {}
        for number, measure, subject, _, split, value in self.rows:
            if measure == "loss" and split == "validation" and subject == self.judged[0]:
                losses.setdefault(number, []).append(value)
        means = {number: float(np.mean(values)) for number, values in losses.items()}
        return bool(means) and self.round - min(means, key=means.__getitem__) >= stop.patience

    def _mean_accuracy(self) -> float:
        values = [
            value
            for number, measure, subject, _, split, value in self.rows
            if number == self.round
            and (measure, subject, split) == ("accuracy", self.judged[0], "test")
        ]
        return float(np.mean(values))

    def curve(self) -> pd.DataFrame:
        """Everything logged so far, tidy."""
        return pd.DataFrame(self.rows, columns=list(CURVE_COLUMNS))

    # Checkpoints.

    def _save(self, checkpoint: Checkpoint) -> None:
        tensors = {f"server/{k}": v for k, v in self.server.state().items()}
        for client in self.clients:
            tensors |= {f"client/{client.index}/kept/{k}": v for k, v in client.kept.items()}
            tensors |= {f"client/{client.index}/sgd/{k}": v for k, v in client.optimizer.items()}
        rows = [row for row in self.rows if row[0] <= self.round]
        checkpoint.save(tensors, {"round": self.round, "rows": rows})

    def _resume(self, checkpoint: Checkpoint) -> None:
        found = checkpoint.load()
        if found is None:
            return
        tensors, facts = found
        tensors = {k: v.to(self.device) for k, v in tensors.items()}
        self.server.load_state(under(tensors, "server/"))
        for client in self.clients:
            client.kept = under(tensors, f"client/{client.index}/kept/")
            client.optimizer = under(tensors, f"client/{client.index}/sgd/")
        self.round = int(facts["round"])
        self.rows = [tuple(row) for row in facts["rows"]]

    @contextmanager
    def _timed(self, clock: dict[str, float], name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        clock[name] = clock.get(name, 0.0) + time.perf_counter() - start
