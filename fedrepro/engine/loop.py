"""The plain loop: one client after another, one batch after another. The reference for all engines.
On a CPU with several cores it trains some clients at once, one core each."""

import copy
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedrepro.base.errors import need
from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import seeded_modules
from fedrepro.base.threads import lanes, side_by_side
from fedrepro.engine.base import Engine, Job, Loss, Results, Streams, Trained, Updates, gradients
from fedrepro.methods.base import Batch, LocalModel, Method, Phase
from fedrepro.methods.server import Message
from fedrepro.models import FLModel


class LoopEngine(Engine):
    """One network object, loaded with each client's tensors; several to train clients at once."""

    def __init__(self, module: FLModel, protocol: Protocol, device: torch.device) -> None:
        super().__init__(module, protocol, device)
        # At once; None: one per core. All share torch's generator, from which dropout draws.
        self.lanes: int | None = None if device.type == "cpu" and not self.drops else 1
        self._stopped = threading.Event()  # nobody waits for the running jobs

    def train(self, method: Method, jobs: Sequence[Job]) -> Results:
        """Train each job's network; results in the jobs' order."""
        self._stopped.clear()
        size = sum(value.nbytes for value in self.module.state_dict().values())
        count = min(self.lanes or lanes(size), len(jobs))
        if count <= 1:
            draws = self.drops or self.device.type != "cpu"  # else a loss that draws is an error
            for position, job in enumerate(jobs):
                seeded = seeded_modules(job.seed, job.round, "dropout", job.client)
                with seeded if draws else nullcontext():
                    trained = self._train_one(job, method)
                yield position, trained
            return
        free = [copy.copy(self) for _ in range(count)]
        for engine in free:
            engine.module, engine._others = copy.deepcopy((self.module, self._others))

        def train_one(job: Job) -> Trained:
            engine = free.pop()  # one is free: jobs never run on more networks than there are
            try:
                return engine._train_one(job, method)
            finally:
                free.append(engine)

        yield from enumerate(side_by_side(train_one, jobs, count, self._stopped.set))

    def _train_one(self, job: Job, method: Method) -> Trained:
        self._load(job.state)
        params = dict(self.module.train().named_parameters())
        received = tree_map(lambda value: value.to(self.device), job.received)
        streams = Streams(job)
        keeps = method.keeps_optimizer or self.protocol.optimizer.kept
        memory: dict[str, Tensor] = dict(job.optimizer)
        sums: dict[str, Tensor] = {}
        seen: Counter[str] = Counter()  # samples of the steps that had a term
        for phase in job.phases:
            for name, value in params.items():
                value.requires_grad_(phase.trains(self.layout[name]))
            moving = {name: value for name, value in params.items() if value.requires_grad}
            if not keeps:
                memory = {}
            updates = Updates(phase, self.protocol.optimizer, [moving], [memory], job.round)
            model = LocalModel(self.module, moving, self._run_other)
            loss = getattr(method, phase.loss)
            with self._multiplying():
                for first, batch in self._batches(method, phase, job, streams):
                    if phase.lookahead is None:
                        terms, late = self._gradients(loss, model, batch, received, phase.unclipped)
                    else:
                        self._gradients(loss, model, first, received)
                        with _one_step_ahead(model, phase.lookahead):
                            terms, late = self._gradients(loss, model, batch, received)
                    updates.step([late])
                    for name, value in terms.items():
                        part = value.detach() * len(batch.y)
                        sums[name] = sums[name] + part if name in sums else part
                        seen[name] += len(batch.y)
            updates.keep()
        means = {name: float(total) / seen[name] for name, total in sums.items()}
        return Trained(self.snapshot(), memory if keeps else {}, means)

    def _gradients(
        self,
        loss: Loss,
        model: LocalModel,
        batch: Batch,
        received: Message,
        late: Sequence[str] = (),
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Put the loss's gradients into the parameters. Returns its terms, and by parameter the
        gradients of the late terms, which are left out."""
        for value in model.params.values():
            value.grad = None
        total, terms = self._loss(loss, model, batch, received, late)
        if model.params:
            name = getattr(loss, "__qualname__", "the loss")
            need(total.requires_grad, f"{name} depends on no trained parameter; do not detach it")
            total.backward(retain_graph=bool(late))
        rest = gradients(torch.stack([terms[n] for n in late]).sum(), model.params) if late else {}
        return terms, rest

    def _batches(
        self, method: Method, phase: Phase, job: Job, streams: Streams
    ) -> Iterator[tuple[Batch, Batch]]:
        """The batches of each step of a phase: two with lookahead, else one, given twice."""
        for _ in range(phase.epochs):
            for indices in self._epoch(method, phase, job, streams):
                if self._stopped.is_set():
                    raise CancelledError
                read = [self._batch(method, job, streams, index) for index in indices]
                yield read[0], read[-1]


@contextmanager
def _one_step_ahead(model: LocalModel, size: float) -> Iterator[None]:
    """Inside, the parameters are one plain gradient step ahead."""
    before = {name: value.data for name, value in model.params.items()}
    for value in model.params.values():
        if value.grad is not None:
            value.data = value.data.clone().sub_(size * value.grad)
    yield
    for name, value in model.params.items():
        value.data = before[name]
