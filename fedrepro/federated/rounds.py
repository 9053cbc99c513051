"""The one round loop all methods share."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from types import NoneType
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedrepro.base.errors import need
from fedrepro.base.progress import Progress
from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import global_state, must_be_untouched, seeded_modules, torch_stream
from fedrepro.data.federation import Federation
from fedrepro.engine import ENGINES
from fedrepro.engine.base import Engine, Job, Results, Trained, diverged, must_be_finite, unchanged
from fedrepro.federated import metrics
from fedrepro.federated.clients import Checkpoint, Client, RunningAverage, give_head, participants
from fedrepro.federated.metrics import LAST, Curve, Row, Test, framed, logged
from fedrepro.methods.base import (
    Method,
    Phase,
    TrainedClient,
    Upload,
    checked,
    evaluated,
    phases_of,
    returned,
    weights_of,
)
from fedrepro.methods.server import OWN, Message, Server, count_bytes, flat, must_be_tensors, under
from fedrepro.models import FLModel, build_model


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
        self.few_tests = self.federation.tested_on(protocol.tested_at, protocol.data.split_seed)
        dtype = torch.float64 if protocol.precision == "float64" else torch.float32
        classes = len(federation.classes)
        before = global_state()
        with seeded_modules(seed):
            built = build_model(protocol.model, classes, federation.size, **protocol.model_args)
            module = checked(method.network, FLModel, built).to(dtype)
        heads = give_head(module, federation, protocol.head == "own", self.device)
        self.engine: Engine = ENGINES[engine](module, protocol, self.device)
        self.layout, initial = self.engine.layout, self.engine.snapshot()
        self.server = Server(
            *(_copied(initial), self.layout, protocol, seed, len(federation.clients)),
            *(module.feature_size, classes, self.device, federation.size),
        )
        with seeded_modules(seed, round=0):
            checked(method.init_server, NoneType, self.server)
            memory = returned(method.first_memory, self.server)
        must_be_untouched(before, method.name)
        self.travelling = [n for n in initial if method.travels(self.layout[n])]
        self.broadcast = [n for n in initial if method.broadcast(self.layout[n])]
        self.evaluated = evaluated(method, self.layout, protocol, federation.lone)
        self.watched = method.watched() or self.evaluated[0]
        everywhere = protocol.tested_on == "everywhere" and self.evaluated[0] != "global"
        self.crossed = self.evaluated[0] if everywhere else None  # tested on every domain
        kept = {n: v for n, v in initial.items() if not method.overwrites(self.layout[n])}
        second = initial if method.personal_phases(protocol) else {}
        trained = initial if "trained" in (*self.evaluated, self.watched) else {}
        others = second, trained
        self.clients = [
            Client(i, data, kept | head, {}, _copied(memory), *(v and v | head for v in others))
            for i, (data, head) in enumerate(zip(self.federation.clients, heads, strict=True))
        ]
        self.log = Curve(protocol.early_stop)
        # Of test images, by ``round/subject/network/domain``, in the rounds of `Curve.scored`.
        self.predicted: dict[str, Tensor] = {}
        self.seconds: dict[str, float] = {}  # of this round, by step
        self.round = 0

    def run(
        self,
        progress: Progress,
        checkpoint: Checkpoint | None = None,
        tell: Callable[[list[Row]], None] | None = None,
    ) -> pd.DataFrame:
        """Train to the last round or the early stop; continue from a checkpoint if there is one.
        tell: receives each round's rows, and first those of the checkpoint.
        Diverged: a client's loss is not finite."""
        if checkpoint is not None and (found := checkpoint.load()) is not None:
            self.resume(*found)
        label = f"{progress.name or self.method.name} seed {self.seed}"
        progress.start(label, self.protocol.rounds, self.round)
        if tell is not None and self.round:
            tell(self.log.rows)
        whole = self.saved()
        try:
            while self.round < self.protocol.rounds and not self.log.stopped(self.round):
                rows = self.one_round()
                whole = self.saved()
                progress.round(self.round, self.log.accuracy())
                if tell is not None:
                    tell(rows)
                if checkpoint is not None and checkpoint.due():
                    checkpoint.save(*whole)
        except BaseException:  # perhaps in a round, which leaves mixed tensors here
            if checkpoint is not None and whole[1]["round"]:
                checkpoint.save(*whole)
            raise
        rounds = "1 round" if self.round == 1 else f"{self.round} rounds"
        progress.finish(f"{rounds}, avg {self.log.accuracy():.2f} %")
        return self.curve()

    # A round.

    def one_round(self) -> list[Row]:
        """Run one round: clients are drawn, receive, train and send; the server averages and
        learns; all networks are tested. Returns its rows of the curve.
        FedReproError: the method draws from a global generator."""
        method, server, number = self.method, self.server, self.round + 1
        server.round, self.seconds, before = number, {}, global_state()
        untrained = number == 1 and getattr(self.protocol.early_stop, "untrained", False)
        rows, predicted = self._evaluate(0) if untrained else ([], {})
        chosen = self._participants(number)
        with self._timed("messages"):
            downs = [self._download(client) for client in chosen]
        sent = Counter(flat({"down": count_bytes(downs)}))
        jobs = [self._job(c, down, number) for c, down in zip(chosen, downs, strict=True)]
        terms: dict[str, dict[str, float]] = {client.data.name: {} for client in chosen}

        if phases := phases_of(method, self.layout, method.personal_phases, self.protocol):
            twins = [j.apart("twin", phases, c.twin) for j, c in zip(jobs, chosen, strict=True)]
            for i, trained in self._train(twins):
                chosen[i].twin = trained.state
                terms[chosen[i].data.name] |= flat({"twin": trained.terms})

        counts = [len(client.data.train) for client in chosen]
        weights = weights_of(method, self.protocol, counts)
        average = RunningAverage(self.layout, method.bn_policy == "first")
        uploads: dict[int, Upload] = {}
        for i, trained in self._train(jobs):
            with self._timed("messages"):
                view = self.view(chosen[i], trained.state, jobs[i].received, number)
                uploads[i] = self._upload(chosen[i], trained, view)
                sent.update(flat({"up": count_bytes([uploads[i].message])}))
                average.take(i, uploads[i].message, weights[i])
                self._keep(chosen[i], trained, view)
            terms[chosen[i].data.name] |= trained.terms

        with self._timed("server"):
            server.log = {}
            if self.protocol.weighting == "tensors":
                average.weight_tensors(counts, self.protocol.batch_size)
            server.model |= average.tensors
            checked(method.server_step, NoneType, server, [uploads[i] for i in sorted(uploads)])
            self._must_be_finite()

        tests, found = self._evaluate(number)
        must_be_untouched(before, method.name)
        rows += tests + self._logged(number, terms, sent)
        self.log.rows += rows
        named, scored = self.predicted | predicted | found, self.log.scored()
        self.predicted = {n: v for n, v in named.items() if int(n.partition("/")[0]) in scored}
        self.round = number
        return rows

    def _logged(
        self, number: int, terms: Mapping[str, Mapping[str, float]], sent: Mapping[str, int]
    ) -> list[Row]:
        rows: list[Row] = []
        for client, own in terms.items():
            rows += logged(number, "term", own, client, "train")
        rows += logged(number, "server", self.server.log) + logged(number, "bytes", sent)
        return rows + logged(number, "seconds", self.seconds)

    def _must_be_finite(self) -> None:
        """Raise Diverged if the server's network is not, as `must_be_finite` does for a loss."""
        must_be_tensors(self.server.model, f"{self.method.name}.server_step, server.model")
        known = {name for name, tensor in self.layout.items() if not tensor.is_counter}
        other = ", ".join(self.server.model.keys() ^ known)
        need(not other, f"{self.method.name} must not add or remove server.model[{other}]")
        broken = [n for n, value in self.server.model.items() if not value.isfinite().all()]
        if broken:
            number, mend = self.server.round, "correct what server_step or weights compute"
            why = f"{broken[0]} of the server in round {number} is not finite; {mend}"
            raise diverged(self.method, self.seed, number, why)

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        """Measure the seconds of a step, the device's work included."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start

    def _train(self, jobs: Sequence[Job], step: str = "train") -> Results:
        """Yields the engine's results; the consumer's time is not counted as training."""
        results = self.engine.train(self.method, jobs)
        with unchanged(self.method, jobs), closing(results):  # ends running jobs
            while True:
                with self._timed(step):
                    position, trained = next(results, (-1, None))
                if trained is None:
                    return
                must_be_finite(self.method, jobs[position], trained.terms)
                yield position, trained

    def _participants(self, number: int) -> list[Client]:
        chosen = participants(self.protocol, self.seed, number, len(self.clients))
        return [self.clients[i] for i in chosen]

    # Messages.

    def _download(self, client: Client) -> Message:
        taken = (*OWN[:1], "model") if self.broadcast else OWN[:1]
        message = returned(self.method.download, self.server, client.index, sent=taken)
        if self.broadcast:
            message["model"] = {n: self.server.model[n] for n in self.broadcast}
        return message

    def _job(self, client: Client, message: Message, number: int) -> Job:
        # A method may change what it gets in place; the stored one is for a round that is repeated.
        memory: Message = {"memory": _copied(client.memory)} if client.memory else {}
        return Job(
            client=client.index,
            round=number,
            seed=self.seed,
            state=client.personal(self.server.model),
            samples=client.data.train,
            received=message | memory,
            phases=phases_of(self.method, self.layout, self.method.phases, self.protocol),
            optimizer=client.optimizer,
        )

    def view(
        self, client: Client, state: Mapping[str, Tensor], received: Message, number: int
    ) -> TrainedClient:
        """A client for its method's `upload` and `remember` in a round."""
        samples = client.data.train
        generator = torch_stream(self.seed, "method", client.index, number)

        def outputs(of: str, *how: Any, **named: Any) -> Tensor:
            named |= {"generator": generator, "of": of}
            with seeded_modules(self.seed, number, "dropout", client.index):
                return self.engine.outputs(state, samples, *how, **named)

        own = samples.labels, samples.images, state, received, self.protocol.data, generator
        read = partial(outputs, "features"), partial(outputs, "logits")
        return TrainedClient(client.index, number, self.server.classes, *own, *read)

    def _upload(self, client: Client, trained: Trained, view: TrainedClient) -> Upload:
        message = returned(self.method.upload, view, sent=OWN)
        if self.travelling:
            message.setdefault("model", {n: trained.state[n] for n in self.travelling})
        other = message.get("model", {}).keys() ^ self.travelling  # its average would be too small
        own = f"{self.method.name}.upload: model must have all shared tensors and no others"
        need(not other, f"{own}; see {min(other, default='')}")
        return Upload(client.index, len(client.data.train), message)

    def _keep(self, client: Client, trained: Trained, view: TrainedClient) -> None:
        """Store what a client keeps after training."""
        memory = returned(self.method.remember, view) if client.memory else {}
        sizes = {name: value.shape for name, value in memory.items()}
        lost = ", ".join(n for n, old in client.memory.items() if sizes.get(n) != old.shape)
        own = f"{self.method.name}.remember must also return {lost}"
        need(not lost, f"{own}, in the shape that first_memory gave")
        client.memory = _copied(memory)
        client.kept = _copied({n: trained.state[n] for n in client.kept})
        client.optimizer = trained.optimizer
        client.trained = _copied({n: trained.state[n] for n in client.trained})

    # Evaluation.

    def _evaluate(self, number: int) -> tuple[list[Row], dict[str, Tensor]]:
        """Rows of the curve, and predicted classes, of the evaluated and the watched networks."""
        rows: list[Row] = []
        predicted: dict[str, Tensor] = {}
        homes = {client.data.name: client.data.domain for client in self.clients}
        if number and self.method.bn_policy == "recompute":
            with self._timed("evaluate"):
                for one in self.clients:
                    own = one.personal(self.server.model)
                    with seeded_modules(self.seed, number, "dropout", one.index):
                        one.kept = one.kept | self.engine.bn_statistics(own, one.data.train)
        for subject in dict.fromkeys((*self.evaluated, self.watched)):
            tests = self._tests(subject, number)
            for test in tests:
                if math.isnan(test.loss):  # an argmax of NaN would be an accuracy
                    why = f"the {test.split} loss of {test.network}'s network on {test.domain} in "
                    why += f"round {number} is NaN; lower the learning rate"
                    raise diverged(self.method, self.seed, number, why)
                if test.split == "test":
                    predicted[f"{number}/{subject}/{test.network}/{test.domain}"] = test.predicted
                    if subject == self.crossed:
                        rows.append((number, "cross-accuracy", *test[:4]))
            own_domain = [test for test in tests if homes.get(test.network) in (None, test.domain)]
            rows += metrics.test_rows(number, subject, own_domain)
        return rows, predicted

    def _tests(self, subject: str, number: int) -> list[Test]:
        """Test the networks of a kind: the server's on every domain, a client's on its own or on
        all; the watched ones on validation images too."""
        last = number > self.protocol.rounds - LAST
        federation = self.federation if last else self.few_tests
        watched = {"validation": federation.validations()} if subject == self.watched else {}
        images = {"test": federation.tests, **watched}
        found: dict[int, list[Test]] = {}
        for i, state in self._networks(subject, number, self.clients):
            client = self.clients[i].data
            name, home = ("server", None) if subject == "global" else (client.name, client.domain)
            with self._timed("evaluate"):
                found[i] = [
                    Test(name, domain, split, *self.engine.evaluate(state, samples))
                    for split, sets in images.items()
                    for domain, samples in sets.items()
                    if home in (None, domain) or (subject == self.crossed and split == "test")
                ]
        return [test for i in sorted(found) for test in found[i]]

    def _networks(
        self, subject: str, number: int, clients: Sequence[Client]
    ) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
        """The networks of one of the kinds in `Method.evaluated_models`, by a client's position, as
        they are tested. If the method trains before a test, these are temporary copies."""
        given = self.protocol, number == self.protocol.rounds
        phases = phases_of(self.method, self.layout, self.method.before_test, *given)
        if subject == "global":
            yield 0, self.server.model
        elif phases:
            jobs = [self._adaptation(client, number, phases, subject) for client in clients]
            yield from ((i, trained.state) for i, trained in self._train(jobs, "evaluate"))
        else:
            yield from ((i, c.network(subject, self.server.model)) for i, c in enumerate(clients))

    def _adaptation(self, client: Client, number: int, phases: Sequence[Phase], what: str) -> Job:
        down, own = self._download(client), client.network(what, self.server.model)
        job = self._job(client, down, number).apart("adaptation", phases, own)
        return job.of_few(self.method.adapts_on(self.protocol))

    def tested_networks(self, number: int) -> dict[str, Mapping[str, Tensor]]:
        """Each domain's first tested network after a round, by domain."""
        if self.evaluated[0] == "global":
            return dict.fromkeys(self.federation.tests, self.server.model)
        first = {client.data.domain: client for client in reversed(self.clients)}
        domains = list(first)
        found = self._networks(self.evaluated[0], number, list(first.values()))
        return {domains[i]: state for i, state in found}

    def embed(self) -> tuple[Tensor, Tensor, list[str]]:
        """Features (m, d) of 60 evenly spaced test images of each domain (all classes, where they
        are in order of class) under its first tested network, their labels (m,) and domains."""
        networks = self.tested_networks(self.round)
        parts = {d: test.few(60) for d, test in self.federation.tests.items() if d in networks}
        features = [self.engine.outputs(networks[d], part).cpu() for d, part in parts.items()]
        labels = [part.labels.cpu() for part in parts.values()]
        domains = [d for d, part in parts.items() for _ in range(len(part))]
        return torch.cat(features), torch.cat(labels), domains

    def curve(self) -> pd.DataFrame:
        return framed(self.log.rows)

    # Checkpoints.

    def state(self) -> dict[str, Tensor]:
        parts = {"server": self.server.state(), "predicted": self.predicted}
        parts |= {f"client/{client.index}": client.state() for client in self.clients}
        return flat(parts)

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint keeps after a complete round: later rounds do not change it."""
        return self.state(), {"round": self.round, "rows": self.log.rows.copy()}

    def resume(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go back to the round of a checkpoint, from what `saved` gave it."""
        self.predicted = under(tensors, "predicted/")  # stay on the host
        here = {name: value.to(self.device) for name, value in tensors.items()}
        self.server.load_state(under(here, "server/"))
        for client in self.clients:
            client.load_state(under(here, f"client/{client.index}/"))
        self.round = self.server.round = int(facts["round"])
        self.log.rows += [tuple(row) for row in facts["rows"]]


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors.items()}
