"""The plain loop: one client after another, one batch after another. All others are held to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fedrepro.batches import epoch_batches
from fedrepro.data.transforms import prepare_batch
from fedrepro.engine.base import Job, Trained
from fedrepro.engine.forward import ForwardEngine
from fedrepro.methods.base import Batch, Method, Phase
from fedrepro.models import FLModel, Output
from fedrepro.rng import torch_stream


class BoundModel:
    """The network of one client as its loss sees it."""

    def __init__(self, module: FLModel, params: dict[str, nn.Parameter]) -> None:
        self._module = module
        self.params: Mapping[str, Tensor] = params

    def __call__(self, x: Tensor) -> Output:
        return cast(Output, self._module(x))


class ReferenceEngine(ForwardEngine):
    """One network object, loaded with each client's tensors in turn."""

    name = "reference"

    def train(self, method: Method, jobs: Sequence[Job]) -> list[Trained]:
        """Train each job's network; results in the jobs' order."""
        with self._multiplying():
            return [self._train_one(method, job) for job in jobs]

    def _train_one(self, method: Method, job: Job) -> Trained:
        self._load(job.state)
        self.module.train()
        order = torch_stream(job.seed, job.stream, job.client, job.round)
        augment = torch_stream(job.seed, "augmentation", job.client, job.round)
        momentum: dict[str, Tensor] = dict(job.optimizer)
        sums: dict[str, Tensor] = {}
        seen = 0
        for phase in job.phases:
            if not method.keeps_optimizer:
                momentum = {}
            seen += self._run_phase(method, phase, job, order, augment, momentum, sums)
        terms = {name: float(total) / seen for name, total in sums.items()}
        return Trained(self._snapshot(), momentum if method.keeps_optimizer else {}, terms)

    def _run_phase(
        self,
        method: Method,
        phase: Phase,
        job: Job,
        order: torch.Generator,
        augment: torch.Generator,
        momentum: dict[str, Tensor],
        sums: dict[str, Tensor],
    ) -> int:
        """One phase of one client; fills `momentum` and adds to `sums`; samples seen."""
        params = dict(self.module.named_parameters())
        for name, value in params.items():
            value.requires_grad_(phase.trains(self.layout[name]))
        moving = {name: value for name, value in params.items() if value.requires_grad}
        spec = phase.optimizer or self.protocol.optimizer
        sgd = torch.optim.SGD(list(moving.values()), **spec.model_dump(), fused=True)
        for name, value in moving.items():
            if name in momentum:
                # In the parameter's own memory format: a fused step reads both as they lie.
                sgd.state[value]["momentum_buffer"] = torch.empty_like(value).copy_(momentum[name])
        model = BoundModel(self.module, moving)
        seen = 0
        for _ in range(phase.epochs):
            batches = iter(epoch_batches(len(job.samples), self.protocol.batch_size, order))
            for index in batches:
                if phase.lookahead is not None:
                    second = next(batches, None)
                    if second is None:
                        break
                    with self._one_step_ahead(
                        method, model, self._batch(job, index, augment), job, phase.lookahead
                    ):
                        terms = self._gradients(
                            method, model, self._batch(job, second, augment), job
                        )
                    index = second
                else:
                    terms = self._gradients(method, model, self._batch(job, index, augment), job)
                sgd.step()
                seen += len(index)
                for term, loss in terms.items():
                    part = loss.detach() * len(index)
                    sums[term] = sums[term] + part if term in sums else part
        for name, parameter in moving.items():
            buffer = sgd.state[parameter].get("momentum_buffer")
            if buffer is not None:
                momentum[name] = buffer.contiguous()
        return seen

    def _gradients(
        self, method: Method, model: BoundModel, batch: Batch, job: Job
    ) -> dict[str, Tensor]:
        """Leave the loss's gradients in the parameters; return its terms."""
        for value in model.params.values():
            value.grad = None
        with self._autocast():
            terms = method.client_loss(model, batch, job.received)
            loss = torch.stack(list(terms.values())).sum()
        loss.backward()
        return terms

    @contextlib.contextmanager
    def _one_step_ahead(
        self, method: Method, model: BoundModel, batch: Batch, job: Job, size: float
    ) -> Iterator[None]:
        """Inside, the parameters stand one plain gradient step further; after, where they were."""
        self._gradients(method, model, batch, job)
        before = {name: value.detach().clone() for name, value in model.params.items()}
        with torch.no_grad():
            for value in model.params.values():
                if value.grad is not None:
                    value -= size * value.grad
        yield
        with torch.no_grad():
            for name, value in model.params.items():
                value.copy_(before[name])

    def _batch(self, job: Job, index: Tensor, augment: torch.Generator) -> Batch:
        index = index.to(self.device)
        x = prepare_batch(job.samples.images[index], self.protocol.data, augment, self.dtype)
        x = x.contiguous(memory_format=self.format)
        return Batch(x, job.samples.labels[index])
