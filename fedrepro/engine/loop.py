"""The plain loop: one client after another, one batch after another. All others are held to it.

On a CPU with several cores it runs for some clients at once, each on one.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from fedrepro.base.protocol import Protocol
from fedrepro.base.threads import lanes, side_by_side
from fedrepro.data.batches import epoch_batches
from fedrepro.data.transforms import prepare_batch
from fedrepro.engine.base import Job, Results, Streams, Trained
from fedrepro.engine.forward import BoundModel, ForwardEngine
from fedrepro.engine.optimizers import build, remembered
from fedrepro.engine.received import placed
from fedrepro.methods.base import Batch, LocalModel, Method, Phase
from fedrepro.methods.messages import Message
from fedrepro.models import FLModel

Loss = Callable[[LocalModel, Batch, Message], dict[str, Tensor]]


class LoopEngine(ForwardEngine):
    """One network object, loaded with each client's tensors in turn; more of them where clients
    are trained at once."""

    name = "reference"  # the word that run ids hold

    def __init__(self, module: FLModel, protocol: Protocol, device: torch.device) -> None:
        super().__init__(module, protocol, device)
        self.lanes: int | None = None  # clients trained at once; None: one a core
        self._seats: list[LoopEngine] = []  # one for each client trained at once
        self._stopped = threading.Event()  # theirs: nobody waits for what they train

    def train(self, method: Method, jobs: Sequence[Job]) -> Results:
        """Train each job's network; results in the jobs' order."""
        self._stopped.clear()
        count = self._lanes_for(jobs)
        if count > 1:
            self._seats += [self._seat() for _ in range(count - len(self._seats))]
            train_one = partial(LoopEngine._train_one, method=method)
            yield from side_by_side(train_one, jobs, self._seats[:count], self._stopped.set)
            return
        for position, job in enumerate(jobs):
            with self._multiplying():
                trained = self._train_one(job, method)
            yield position, trained

    def _lanes_for(self, jobs: Sequence[Job]) -> int:
        """How many clients to train at once."""
        if self.lanes is not None:
            return min(self.lanes, len(jobs))
        return lanes(len(jobs), self._bytes()) if self.device.type == "cpu" else 1

    def _seat(self) -> LoopEngine:
        """This engine with networks of its own."""
        seat = copy.copy(self)
        seat.module, seat._others = copy.deepcopy((self.module, self._others))
        return seat

    def _train_one(self, job: Job, method: Method) -> Trained:
        self._load(job.state)
        self.module.train()
        job = replace(job, received=placed(job.received, self.device))
        streams = Streams.of(job)
        keeps = method.keeps_optimizer or self.protocol.optimizer.kept
        memory: dict[str, Tensor] = dict(job.optimizer)
        sums: dict[str, Tensor] = {}
        seen: Counter[str] = Counter()  # samples of the steps that had a term
        for phase in job.phases:
            if not keeps:
                memory = {}
            self._run_phase(method, phase, job, streams, memory, sums, seen)
        terms = {name: float(total) / seen[name] for name, total in sums.items()}
        return Trained(self._snapshot(), memory if keeps else {}, terms)

    def _run_phase(
        self,
        method: Method,
        phase: Phase,
        job: Job,
        streams: Streams,
        memory: dict[str, Tensor],
        sums: dict[str, Tensor],
        seen: Counter[str],
    ) -> None:
        """One phase of one client; fills the optimiser's `memory`, adds to `sums` and `seen`."""
        params = dict(self.module.named_parameters())
        for name, value in params.items():
            value.requires_grad_(phase.trains(self.layout[name]))
        moving = {name: value for name, value in params.items() if value.requires_grad}
        groups = [
            (spec, {name: moving[name] for name in names})
            for spec, names in phase.groups(self.protocol.optimizer, moving)
            if names
        ]
        optimizers = [build(spec, [own], [memory], job.round) for spec, own in groups]
        model = BoundModel(self.module, moving, self._run_other)
        loss = getattr(method, phase.loss)
        size = job.batch_size or self.protocol.batch_size
        for _ in range(phase.epochs):
            batches = iter(epoch_batches(len(job.samples), size, streams.order, phase.steps))
            for index in batches:
                second = next(batches, None) if phase.lookahead is not None else index
                if second is None:
                    break
                if self._stopped.is_set():
                    raise CancelledError
                batch = self._batch(method, job, index, streams)
                if phase.lookahead is not None:
                    with self._one_step_ahead(loss, model, batch, job, phase.lookahead):
                        batch = self._batch(method, job, second, streams)
                        terms, late = self._gradients(loss, model, batch, job)
                    index = second
                else:
                    terms, late = self._gradients(loss, model, batch, job, phase.unclipped)
                for spec, own in groups:
                    if spec.clip is not None:
                        nn.utils.clip_grad_norm_(own.values(), spec.clip)
                for name, gradient in late.items():
                    place = moving[name]
                    place.grad = gradient if place.grad is None else place.grad.add_(gradient)
                for optimizer in optimizers:
                    optimizer.step()
                for term, value in terms.items():
                    seen[term] += len(index)
                    part = value.detach() * len(index)
                    sums[term] = sums[term] + part if term in sums else part
        for (spec, own), optimizer in zip(groups, optimizers, strict=True):
            memory |= remembered(spec, optimizer, own)

    def _gradients(
        self, loss: Loss, model: BoundModel, batch: Batch, job: Job, late: Sequence[str] = ()
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Leave the loss's gradients in the parameters; return its terms, and by parameter the
        gradients of those terms that come late, which are left out."""
        for value in model.params.values():
            value.grad = None
        with self._autocast():
            terms = loss(model, batch, job.received)
            total = torch.stack([v for name, v in terms.items() if name not in late]).sum()
        if model.params:
            total.backward(retain_graph=bool(late))
        if not (model.params and late):
            return terms, {}
        rest = torch.stack([terms[name] for name in late]).sum()
        found = torch.autograd.grad(rest, list(model.params.values()), allow_unused=True)
        pairs = zip(model.params, found, strict=True)
        return terms, {name: gradient for name, gradient in pairs if gradient is not None}

    @contextlib.contextmanager
    def _one_step_ahead(
        self, loss: Loss, model: BoundModel, batch: Batch, job: Job, size: float
    ) -> Iterator[None]:
        """Inside, the parameters stand one plain gradient step further; after, where they were."""
        self._gradients(loss, model, batch, job)
        before = {name: value.detach().clone() for name, value in model.params.items()}
        with torch.no_grad():
            for value in model.params.values():
                if value.grad is not None:
                    value -= size * value.grad
        yield
        with torch.no_grad():
            for name, value in model.params.items():
                value.copy_(before[name])

    def _batch(self, method: Method, job: Job, index: Tensor, streams: Streams) -> Batch:
        draws = method.draw(len(index), streams.draws)
        index = index.to(self.device)
        x = prepare_batch(
            job.samples.images[index], self.protocol.data, streams.augmentation, self.dtype
        )
        x = x.contiguous(memory_format=self.format)
        if draws is not None:
            draws = draws.to(self.device, self.dtype)
        return Batch(x, job.samples.labels[index], draws)
