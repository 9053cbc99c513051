"""The one round loop all methods share."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from fedrepro.averaging import RunningAverage
from fedrepro.clients import Client, Groups, Shelf, TrainedView, flatten, restore
from fedrepro.curve import LAST, Curve
from fedrepro.data.federation import Federation
from fedrepro.engine import ENGINES, Engine, Job, Trained, in_order
from fedrepro.evaluation import (
    Test,
    at_home,
    cross_rows,
    embed,
    everywhere,
    of_rounds,
    predictions,
)
from fedrepro.evaluation import rows as test_rows
from fedrepro.evaluation import tests as tests_of
from fedrepro.heads import give_head
from fedrepro.messages import Message, count_bytes, tensors_of
from fedrepro.methods.base import Method, Phase, Upload
from fedrepro.models import TensorInfo, build_model, layout
from fedrepro.participation import participants
from fedrepro.progress import Progress
from fedrepro.protocol import Protocol
from fedrepro.rng import Purpose, seeded_modules, torch_stream
from fedrepro.server import Server, under
from fedrepro.together import Checkpoint, Round, Stage, one_round, run_together


class Training:
    """A federated run: its clients, server and curve. `run` goes through the rounds.

    folder: where clients' tensors go if memory cannot hold them; a temporary one where None.
    """

    def __init__(
        self,
        method: Method,
        protocol: Protocol,
        federation: Federation,
        seed: int,
        device: torch.device | str = "cpu",
        engine: str = "reference",
        folder: Path | None = None,
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
        self.loaded = [n for n in initial if method.loads(self.layout[n])]
        self.travelling = [n for n in initial if method.travels(self.layout[n])]
        self.descending = [n for n in initial if method.goes_down(self.layout[n])]
        self.judged = method.judged_by(self.layout)
        self.clients = self._first_clients(initial, heads)
        self.shelf = Shelf(self.device, clients, folder)
        self.twins = Shelf(self.device, clients, folder / "twins" if folder else None)
        self.log = Curve(self.judged[0], protocol.early_stop)
        self.predicted: dict[str, Tensor] = {}  # `evaluation.predictions`, of `Curve.scored` rounds
        self.round = 0
        self.whole = True  # False once clients' files are ahead of the last whole round

    def _first_clients(
        self, initial: dict[str, Tensor], heads: Sequence[dict[str, Tensor]]
    ) -> list[Client]:
        """Every client with what it holds before its first round; heads: its own, if any."""
        first: Groups = {
            "kept": {n: v for n, v in initial.items() if n not in self.loaded},
            "memory": self.method.first_memory(self.server),
            "twin": dict(initial) if self.method.twin_phases(self.protocol) else {},
            "trained": dict(initial) if "trained" in self.judged else {},
        }
        clients = []
        for i, (data, head) in enumerate(zip(self.federation.clients, heads, strict=True)):
            own = {name: value.to(self.device) for name, value in head.items()}
            clients.append(Client(i, data, {**first, "kept": {**first["kept"], **own}}))
        return clients

    def run(self, progress: Progress, checkpoint: Checkpoint | None = None) -> pd.DataFrame:
        """Train to the last round, or to the early stop; resume where a checkpoint says."""
        return run_together([self], progress, [checkpoint])[0]

    def one_round(self) -> None:
        """Go through the next round."""
        one_round([self])

    @property
    def finished(self) -> bool:
        """Whether the last round is over, or the early stop has come."""
        return self.round >= self.protocol.rounds or self.log.stopped(self.round)

    @property
    def accuracy(self) -> float:
        """Mean of the last round's tests in percent."""
        return self.log.accuracy

    # A round.

    def stages(self, number: int) -> Generator[Stage, None, None]:
        """Go through a round; wherever clients train, hand out the jobs and wait for the results.

        State is replaced only once the round is whole, so that an interrupt in the middle of one
        leaves the last finished round to be saved.
        """
        self.server.round = number
        average = RunningAverage(self.layout, self.method.bn_policy == "first")
        now = Round(number, self._participants(number), average)
        with self._timed(now.clock, "messages"):
            now.downs = [self._download(client) for client in now.chosen]
        counts = [len(client.data.train) for client in now.chosen]
        now.weights = self.method.weights(self.protocol, counts)
        told = list(zip(now.chosen, now.downs, strict=True))
        before = self.server.state(), [dict(client.groups) for client in self.clients]
        stop = self.protocol.early_stop
        try:
            if number == 1 and stop is not None and stop.untrained:
                yield from self._evaluate(0, now)
            if phases := self.method.twin_phases(self.protocol):
                jobs = [self._job(c, down, number, phases, "twin", c.twin) for c, down in told]
                yield Stage("train", jobs, now.clock, partial(self._take_twin, now))
            phases = self.method.phases(self.protocol)
            now.jobs = [self._job(client, down, number, phases) for client, down in told]
            yield Stage("train", now.jobs, now.clock, partial(self._take, now))
            self._close(now)
            yield from self._evaluate(number, now)
        except BaseException:
            self.server.load_state(before[0])
            for client, groups in zip(self.clients, before[1], strict=True):
                client.groups = groups
            raise
        self.log.add(now.rows(self.server.log))
        self.predicted = of_rounds(self.predicted | now.predicted, self.log.scored())
        self.round = number
        self.whole = True

    def _take_twin(self, now: Round, position: int, trained: Trained) -> None:
        """A client's second network comes back from its training."""
        client = now.chosen[position]
        now.add_terms(client, trained, "twin/")
        now.twins[position] = self.twins.put(client.index, {"twin": trained.state})["twin"]
        self.whole = self.whole and not self.twins.in_files

    def _take(self, now: Round, position: int, trained: Trained) -> None:
        """A client comes back from its training: it sends, and what it keeps is put away."""
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
            now.after[position] = self.shelf.put(client.index, self._groups(client, trained, view))
            self.whole = self.whole and not self.shelf.in_files
        now.add_terms(client, trained)

    def _close(self, now: Round) -> None:
        """All are back: the server learns, and clients' state becomes what they kept."""
        with self._timed(now.clock, "server"):
            self.server.log = {}
            self.server.model |= now.average.tensors
            self.method.server_step(self.server, [now.uploads[i] for i in sorted(now.uploads)])
        for position, client in enumerate(now.chosen):
            client.groups = {**now.after[position], "twin": now.twins.get(position, client.twin)}
        if self.method.bn_policy == "recompute":
            with self._timed(now.clock, "evaluate"):
                self._recompute_statistics()

    def _participants(self, number: int) -> list[Client]:
        """All clients, or a share drawn for this round, in client order."""
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
            state=state or self._personal(client),
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

    def _personal(self, client: Client) -> dict[str, Tensor]:
        """What a client uses: the server's tensors where it loads them, else its own."""
        return {n: client.kept.get(n, value) for n, value in self.server.model.items()}

    def _subject(self, client: Client, subject: str) -> dict[str, Tensor]:
        """A client's network of one of the kinds of `Method.judged_by`."""
        if subject == "twin":
            return client.twin
        return self._personal(client) | (client.trained if subject == "trained" else {})

    # Evaluation.

    def _recompute_statistics(self) -> None:
        for client in self.clients:
            state = self._personal(client)
            statistics = self.engine.bn_statistics(state, client.data.train)
            client.groups = {**client.groups, "kept": client.kept | statistics}

    def _evaluate(self, number: int, now: Round) -> Iterator[Stage]:
        """Test every judged network."""
        for subject in self.judged:
            yield from self._test(number, subject, now)

    def _test(self, number: int, subject: str, now: Round) -> Iterator[Stage]:
        """Test all networks of one of the kinds of `Method.judged_by`."""
        last = number > self.protocol.rounds - LAST
        federation = self.federation if last else self.few_tests
        abroad = subject == self.judged[0] and self.protocol.tested_on == "everywhere"
        found: dict[int, list[Test]] = {}

        def test(position: int, state: Mapping[str, Tensor]) -> None:
            with self._timed(now.clock, "evaluate"):
                client = self.clients[position]
                found[position] = at_home(self.engine, federation, client, state)
                if abroad:
                    cross = tests_of(self.engine, client.data.name, state, federation.tests)
                    now.tested += cross_rows(number, cross)
                    now.predicted |= predictions(number, subject, cross)

        if subject == "global":
            with self._timed(now.clock, "evaluate"):
                found[0] = everywhere(self.engine, federation, self.server.model)
        elif phases := self._before_test(number):
            jobs = [self._adaptation(client, number, phases) for client in self.clients]
            yield Stage("evaluate", jobs, now.clock, lambda i, trained: test(i, trained.state))
        else:
            for position, client in enumerate(self.clients):
                test(position, self._subject(client, subject))
        ordered = [found[i] for i in sorted(found)]
        now.tested += test_rows(number, subject, ordered)
        for one in ordered:
            now.predicted |= predictions(number, subject, one)

    def _before_test(self, number: int) -> tuple[Phase, ...]:
        return self.method.before_test(self.protocol, number == self.protocol.rounds)

    def _adaptation(self, client: Client, number: int, phases: Sequence[Phase]) -> Job:
        """The method's training of a throw-away copy before a test. All clients' are asked for
        in one call, so that an engine can train them together."""
        job = self._job(client, self._download(client), number, phases, "adaptation")
        return job.of_few(self.method.adapts_on(self.protocol))

    def tested_networks(self, number: int) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """Each domain's first network as the first kind judged is tested, by domain."""
        if self.judged[0] == "global":
            for domain in self.federation.tests:
                yield domain, self.server.model
            return
        first = {c.data.domain: c for c in reversed(self.clients)}
        phases = self._before_test(number)
        if phases:
            jobs = [self._adaptation(client, number, phases) for client in first.values()]
            trained = in_order(self.engine.train(self.method, jobs))
            yield from zip(first, (t.state for t in trained), strict=True)
        else:
            for domain, client in first.items():
                yield domain, self._subject(client, self.judged[0])

    def embed(self, per_domain: int = 60) -> tuple[Tensor, Tensor, list[str]]:
        """Features (m, d) of up to `per_domain` test images a domain under the judged networks,
        their labels (m,) and domains, for figures."""
        networks = dict(self.tested_networks(self.round))
        return embed(self.engine, self.federation, networks, per_domain)

    def curve(self) -> pd.DataFrame:
        """Everything logged so far, tidy."""
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
        restore(self.clients, tensors, self.device, self.shelf, self.twins)
        self.round = int(facts["round"])
        self.log.add(tuple(row) for row in facts["rows"])

    @contextmanager
    def _timed(self, clock: dict[str, float], name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        clock[name] = clock.get(name, 0.0) + time.perf_counter() - start
