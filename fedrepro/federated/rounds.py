"""The one round loop all methods share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import pandas as pd
import torch
from torch import Tensor

from fedrepro.base.progress import Progress
from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import Purpose, seeded_modules, torch_stream
from fedrepro.data.federation import Federation
from fedrepro.engine import ENGINES, Engine, Job, Trained, in_order, must_be_finite
from fedrepro.federated import evaluation
from fedrepro.federated.aggregation import RunningAverage
from fedrepro.federated.clients import Checkpoint, Client, Groups, TrainedView, flatten, restore
from fedrepro.federated.curve import LAST, Curve, Round
from fedrepro.federated.frozen_head import give_head
from fedrepro.federated.participation import participants
from fedrepro.methods.base import Method, Phase, Upload
from fedrepro.methods.messages import Message, count_bytes, tensors_of
from fedrepro.methods.server import Server, under
from fedrepro.models import TensorInfo, build_model, layout


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
        with seeded_modules(seed):
            built = build_model(protocol.model, classes, federation.size, **protocol.model_args)
            module = method.network(built).to(dtype)
        heads = give_head(module, federation, protocol.head == "own")
        self.layout: dict[str, TensorInfo] = layout(module)
        initial = {
            name: value.detach().clone(memory_format=torch.contiguous_format).to(self.device)
            for name, value in module.state_dict().items()
            if not self.layout[name].is_counter
        }
        self.engine: Engine = ENGINES[engine](module, protocol, self.device)
        clients = len(federation.clients)
        self.server = Server(
            initial, self.layout, protocol, seed, clients, module.feature_size, classes, self.device
        )
        with seeded_modules(seed, round=0):
            method.init_server(self.server)
        self.loaded = [n for n in initial if method.overwrites(self.layout[n])]
        self.travelling = [n for n in initial if method.travels(self.layout[n])]
        self.descending = [n for n in initial if method.broadcast(self.layout[n])]
        self.judged = method.evaluated_models(self.layout)
        self.watched = method.watched() or self.judged[0]
        self.clients = self._first_clients(initial, heads)
        self.log = Curve(self.judged[0], protocol.early_stop, self.watched)
        self.predicted: dict[str, Tensor] = {}  # `evaluation.predictions`, of `Curve.scored` rounds
        self.round = 0

    def _first_clients(
        self, initial: dict[str, Tensor], heads: Sequence[dict[str, Tensor]]
    ) -> list[Client]:
        """Every client with what it holds before its first round; heads: its own, if any."""
        first: Groups = {
            "kept": {n: v for n, v in initial.items() if n not in self.loaded},
            "memory": self.method.first_memory(self.server),
            "twin": dict(initial) if self.method.personal_phases(self.protocol) else {},
            "trained": dict(initial) if "trained" in (*self.judged, self.watched) else {},
        }
        clients = []
        for i, (data, head) in enumerate(zip(self.federation.clients, heads, strict=True)):
            own = {name: value.to(self.device) for name, value in head.items()}
            clients.append(Client(i, data, {**first, "kept": {**first["kept"], **own}}))
        return clients

    def run(self, progress: Progress, checkpoint: Checkpoint | None = None) -> pd.DataFrame:
        """Train to the last round, or to the early stop; resume where a checkpoint says.

        Raises:
            Diverged: a client's loss is not finite; the rounds before it are kept.
        """
        if checkpoint is not None:
            self.resume(checkpoint)
        label = f"{self.method.name} seed {self.seed}"
        progress.start(label, self.protocol.rounds, self.round)
        try:
            while not self.finished:
                self.one_round()
                progress.round(self.round, self.accuracy)
                if checkpoint is not None and checkpoint.due():
                    self.save(checkpoint)
        except BaseException:
            if checkpoint is not None and self.round:
                self.save(checkpoint)
            raise
        progress.finish(f"{self.round} rounds, avg {self.accuracy:.2f} %")
        return self.curve()

    @property
    def finished(self) -> bool:
        """Whether the last round is over, or the early stop has come."""
        return self.round >= self.protocol.rounds or self.log.stopped(self.round)

    @property
    def accuracy(self) -> float:
        """Mean of the last round's tests in percent."""
        return self.log.accuracy

    # A round.

    def one_round(self) -> None:
        """Clients are drawn, receive, train and send; the server averages and learns; all are
        tested. State is replaced only once the round is whole: an interrupt in the middle of one
        leaves the last finished round to be saved."""
        number = self.server.round = self.round + 1
        average = RunningAverage(self.layout, self.method.bn_policy == "first")
        now = Round(number, self._participants(number), average)
        with self._timed(now.clock, "messages"):
            now.downs = [self._download(client) for client in now.chosen]
        before = self.server.state(), [dict(client.groups) for client in self.clients]
        stop = self.protocol.early_stop
        try:
            if number == 1 and stop is not None and stop.untrained:
                self._evaluate(0, now)
            self._train_twins(now)
            self._train_clients(now)
            self._aggregate(now)
            self._evaluate(number, now)
        except BaseException:
            self.server.load_state(before[0])
            for client, groups in zip(self.clients, before[1], strict=True):
                client.groups = groups
            raise
        self.log.add(now.rows(self.server.log))
        self.predicted = evaluation.of_rounds(self.predicted | now.predicted, self.log.scored())
        self.round = number

    def _train_twins(self, now: Round) -> None:
        """Train the second networks that clients keep for themselves, if they have one."""

        def take(position: int, trained: Trained) -> None:
            now.add_terms(now.chosen[position], trained, "twin/")
            now.twins[position] = trained.state

        if phases := self.method.personal_phases(self.protocol):
            told = zip(now.chosen, now.downs, strict=True)
            jobs = [
                self._job(c, down, now.number, phases, "twin", c.personal_model) for c, down in told
            ]
            self._train(jobs, take, now.clock)

    def _train_clients(self, now: Round) -> None:
        """Local training. Each client's message is taken as it comes back."""
        counts = [len(client.data.train) for client in now.chosen]
        now.weights = self.method.weights(self.protocol, counts)
        phases = self.method.phases(self.protocol)
        told = zip(now.chosen, now.downs, strict=True)
        now.jobs = [self._job(client, down, now.number, phases) for client, down in told]
        self._train(now.jobs, lambda i, trained: self._take(now, i, trained), now.clock)

    def _train(
        self,
        jobs: Sequence[Job],
        take: Callable[[int, Trained], None],
        clock: dict[str, float],
        name: str = "train",
    ) -> None:
        """Have the engine train some networks; whoever takes them is not part of its seconds."""
        begun, taking = time.perf_counter(), 0.0
        with closing(self.engine.train(self.method, jobs)) as results:  # ends what is under way
            for position, trained in results:
                must_be_finite(self.method, jobs[position], trained.terms)
                handed = time.perf_counter()
                take(position, trained)
                taking += time.perf_counter() - handed
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        clock[name] = clock.get(name, 0.0) + time.perf_counter() - begun - taking

    def _take(self, now: Round, position: int, trained: Trained) -> None:
        """A client comes back: it sends, and what it keeps is put away."""
        client = now.chosen[position]
        with self._timed(now.clock, "messages"):
            view = self._view(client, trained, now.jobs[position])
            upload = self._upload(client, trained, view)
            now.sent.update(count_bytes([upload.message]))
            if "model" in upload.message:
                model = tensors_of(upload.message, "model")
                now.average.add(position, model, now.weights[position])
                del upload.message["model"]
            now.uploads[position] = upload
            now.after[position] = self._groups(client, trained, view)
        now.add_terms(client, trained)

    def _aggregate(self, now: Round) -> None:
        """The server averages and learns; clients' state becomes what they kept."""
        with self._timed(now.clock, "server"):
            self.server.log = {}
            if self.protocol.weighting == "tensors":
                counts = [len(client.data.train) for client in now.chosen]
                now.average.weight_tensors(counts, self.protocol.batch_size)
            self.server.model |= now.average.tensors
            self.method.server_step(self.server, [now.uploads[i] for i in sorted(now.uploads)])
        for position, client in enumerate(now.chosen):
            client.groups = {
                **now.after[position],
                "twin": now.twins.get(position, client.personal_model),
            }
        if self.method.bn_policy == "recompute":
            with self._timed(now.clock, "evaluate"):
                self._recompute_statistics()

    def _participants(self, number: int) -> list[Client]:
        chosen = participants(self.protocol, self.seed, number, len(self.clients))
        return [self.clients[i] for i in chosen]

    # Messages.

    def _download(self, client: Client) -> Message:
        message = dict(self.method.download(self.server, client.index))
        if self.descending:
            message["model"] = {n: self.server.model[n] for n in self.descending}
        return message

    def _job(
        self,
        client: Client,
        message: Message,
        number: int,
        phases: Sequence[Phase] | None = None,
        stream: Purpose = "batches",
        state: Mapping[str, Tensor] | None = None,
    ) -> Job:
        memory: Message = {"memory": client.memory} if client.memory else {}
        return Job(
            client=client.index,
            round=number,
            seed=self.seed,
            state=state or client.personal(self.server.model),
            samples=client.data.train,
            received=message | memory,
            phases=self.method.phases(self.protocol) if phases is None else phases,
            optimizer=client.optimizer if stream == "batches" else {},
            stream=stream,
        )

    def _view(self, client: Client, trained: Trained, job: Job) -> TrainedView:
        return TrainedView(
            client.index,
            self.server.classes,
            client.data.train.labels,
            trained.state,
            job.received,
            self.protocol.data.augmentation,
            torch_stream(self.seed, "method", client.index, job.round),
            self.engine,
            client.data.train,
        )

    def _upload(self, client: Client, trained: Trained, view: TrainedView) -> Upload:
        message = dict(self.method.upload(view))
        if self.travelling:
            shared = {n: trained.state[n] for n in self.travelling}
            message["model"] = self.method.release(view, shared)
        return Upload(client.index, len(client.data.train), message)

    def _groups(self, client: Client, trained: Trained, view: TrainedView) -> Groups:
        """What a client keeps after training."""
        keeps = self.method.keeps_optimizer or self.protocol.optimizer.kept
        return {
            "kept": {n: trained.state[n] for n in client.kept},
            "optimizer": trained.optimizer if keeps else {},
            "memory": self.method.remember(view) if client.memory else {},
            "trained": {n: trained.state[n] for n in client.trained},
        }

    # Evaluation.

    def _recompute_statistics(self) -> None:
        for client in self.clients:
            state = client.personal(self.server.model)
            statistics = self.engine.bn_statistics(state, client.data.train)
            client.groups = {**client.groups, "kept": client.kept | statistics}

    def _evaluate(self, number: int, now: Round) -> None:
        """Test every judged network and the watched one, whose validation counts."""
        for subject in dict.fromkeys((*self.judged, self.watched)):
            self._test(number, subject, now)

    def _test(self, number: int, subject: str, now: Round) -> None:
        """Test all networks of one of the kinds of `Method.evaluated_models`."""
        last = number > self.protocol.rounds - LAST
        federation = self.federation if last else self.few_tests
        abroad = subject == self.judged[0] and self.protocol.tested_on == "everywhere"
        found: dict[int, list[evaluation.Test]] = {}

        def test(position: int, state: Mapping[str, Tensor]) -> None:
            with self._timed(now.clock, "evaluate"):
                client = self.clients[position]
                found[position] = evaluation.at_home(self.engine, federation, client, state)
                if abroad:
                    cross = evaluation.tests(self.engine, client.data.name, state, federation.tests)
                    now.tested += evaluation.cross_rows(number, cross)
                    now.predicted |= evaluation.predictions(number, subject, cross)

        if subject == "global":
            with self._timed(now.clock, "evaluate"):
                found[0] = evaluation.everywhere(self.engine, federation, self.server.model)
        elif phases := self._before_test(number):
            jobs = [self._adaptation(client, number, phases) for client in self.clients]
            take = lambda i, trained: test(i, trained.state)  # noqa: E731
            self._train(jobs, take, now.clock, "evaluate")
        else:
            for position, client in enumerate(self.clients):
                test(position, client.network(subject, self.server.model))
        ordered = [found[i] for i in sorted(found)]
        held_out = subject == self.watched or subject != self.judged[0]
        now.tested += evaluation.rows(number, subject, ordered, held_out)
        for one in ordered:
            now.predicted |= evaluation.predictions(number, subject, one)

    def _before_test(self, number: int) -> tuple[Phase, ...]:
        return self.method.before_test(self.protocol, number == self.protocol.rounds)

    def _adaptation(self, client: Client, number: int, phases: Sequence[Phase]) -> Job:
        """The training of a throw-away copy before a test; all clients' in one call."""
        job = self._job(client, self._download(client), number, phases, "adaptation")
        return job.of_few(self.method.adapts_on(self.protocol))

    def tested_networks(self, number: int) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """Each domain's first network as it is tested, by domain."""
        if self.judged[0] == "global":
            for domain in self.federation.tests:
                yield domain, self.server.model
            return
        first = {c.data.domain: c for c in reversed(self.clients)}
        if phases := self._before_test(number):
            jobs = [self._adaptation(client, number, phases) for client in first.values()]
            trained = in_order(self.engine.train(self.method, jobs))
            yield from zip(first, (t.state for t in trained), strict=True)
        else:
            for domain, client in first.items():
                yield domain, client.network(self.judged[0], self.server.model)

    def embed(self, per_domain: int = 60) -> tuple[Tensor, Tensor, list[str]]:
        """Features (m, d) of test images under the judged networks, labels (m,) and domains."""
        networks = dict(self.tested_networks(self.round))
        return evaluation.embed(self.engine, self.federation, networks, per_domain)

    def curve(self) -> pd.DataFrame:
        """Everything logged so far."""
        return self.log.frame()

    # Checkpoints.

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep the state after the last whole round."""
        tensors = {f"server/{k}": v for k, v in self.server.state().items()}
        tensors |= flatten(self.clients)
        tensors |= {f"predicted/{name}": value for name, value in self.predicted.items()}
        checkpoint.save(tensors, {"round": self.round, "rows": self.log.rows})

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint's round, if there is one."""
        found = checkpoint.load()
        if found is None:
            return
        tensors, facts = found
        server = {n: tensors[n].to(self.device) for n in tensors if n.startswith("server/")}
        predicted = {n: tensors[n] for n in tensors if n.startswith("predicted/")}
        self.predicted = under(predicted, "predicted/")
        self.server.load_state(under(server, "server/"))
        restore(self.clients, tensors, self.device)
        self.round = int(facts["round"])
        self.log.add(tuple(row) for row in facts["rows"])

    @contextmanager
    def _timed(self, clock: dict[str, float], name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        clock[name] = clock.get(name, 0.0) + time.perf_counter() - start
