"""The plain loop: one client after another, one batch after another. All others are held to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.batches import epoch_batches, slices
from fedrepro.data.federation import Samples
from fedrepro.data.transforms import prepare_batch
from fedrepro.engine.base import Job, Trained
from fedrepro.methods.base import Batch, Method, Phase
from fedrepro.models import FLModel, Output, TensorInfo, layout
from fedrepro.protocol import Protocol
from fedrepro.rng import torch_stream

EVALUATION_BATCH = {"cpu": 128, "cuda": 4096}  # measured fastest on 2 cores; fills a GPU


class BoundModel:
    """The network of one client as its loss sees it."""

    def __init__(self, module: FLModel, params: dict[str, nn.Parameter]) -> None:
        self._module = module
        self.params: Mapping[str, Tensor] = params

    def __call__(self, x: Tensor) -> Output:
        return cast(Output, self._module(x))


class ReferenceEngine:
    """One network object, loaded with each client's tensors in turn."""

    name = "reference"

    def __init__(self, module: FLModel, protocol: Protocol, device: torch.device) -> None:
        self.format = module.memory_format
        self.module = module.to(device).to(memory_format=self.format)  # type: ignore[call-overload]
        self.protocol = protocol
        self.device = device
        self.dtype = next(module.parameters()).dtype
        self.layout: dict[str, TensorInfo] = layout(module)
        self.evaluation_batch = EVALUATION_BATCH.get(device.type, 256)

    def train(self, method: Method, jobs: Sequence[Job]) -> list[Trained]:
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
                value -= size * cast(Tensor, value.grad)
        yield
        with torch.no_grad():
            for name, value in model.params.items():
                value.copy_(before[name])

    def _batch(self, job: Job, index: Tensor, augment: torch.Generator) -> Batch:
        index = index.to(self.device)
        x = prepare_batch(job.samples.images[index], self.protocol.data, augment, self.dtype)
        x = x.contiguous(memory_format=self.format)
        return Batch(x, job.samples.labels[index])

    # Forward passes without training.

    @torch.no_grad()
    def features(
        self, state: Mapping[str, Tensor], samples: Samples, training: bool = False
    ) -> Tensor:
        self._load(state)
        self.module.train(training)
        size = self.protocol.batch_size if training else self.evaluation_batch
        return torch.cat([out.features for out, _ in self._outputs(samples, size)])

    @torch.no_grad()
    def evaluate(self, state: Mapping[str, Tensor], samples: Samples) -> tuple[float, float]:
        self._load(state)
        self.module.eval()
        hits = loss = torch.zeros((), device=self.device)
        for out, labels in self._outputs(samples, self.evaluation_batch):
            hits = hits + (out.logits.argmax(1) == labels).sum()
            loss = loss + F.cross_entropy(out.logits.float(), labels, reduction="sum")
        return 100 * float(hits) / len(samples), float(loss) / len(samples)

    @torch.no_grad()
    def bn_statistics(self, state: Mapping[str, Tensor], samples: Samples) -> dict[str, Tensor]:
        self._load(state)
        norms = [m for m in self.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        usual = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # torch's word for a plain average over batches
        self.module.train()
        for _ in self._outputs(samples, self.protocol.batch_size):
            pass
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum
        after = self._snapshot()
        statistics = (n for n, i in self.layout.items() if i.is_bn and i.is_buffer)
        return {n: after[n] for n in statistics if n in after}

    def _outputs(self, samples: Samples, size: int) -> Iterator[tuple[Output, Tensor]]:
        for part in slices(len(samples), size):
            x = prepare_batch(samples.images[part], self.protocol.data, None, self.dtype)
            x = x.contiguous(memory_format=self.format)
            with self._autocast():
                yield self.module(x), samples.labels[part]

    # Tensors in and out of the one network object.

    def _load(self, state: Mapping[str, Tensor]) -> None:
        own = self.module.state_dict()
        for name, value in state.items():
            own[name].copy_(value)

    def _snapshot(self) -> dict[str, Tensor]:
        # Contiguous whatever the network's own format: a checkpoint brings tensors back so, and
        # the order in which a norm is summed must not depend on having been resumed.
        return {
            name: value.detach().clone(memory_format=torch.contiguous_format)
            for name, value in self.module.state_dict().items()
            if not self.layout[name].is_counter
        }

    def _autocast(self) -> AbstractContextManager[object]:
        if self.protocol.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()
