"""All clients of a round as one step, wherever the shapes of what they train on agree.

The clients' networks are stacked along a leading axis; `vmap` turns a method's loss of one client
into the losses of all, each layer into one grouped or batched product. Every client reads the
batches it would read alone, in the same order, and keeps its own BatchNorm statistics, optimiser
and messages, so that the numbers are the plain loop's but for the order of summation in a kernel.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.engine.base import BoundModel, Engine, Job, Results, Trained, norms
from fedrepro.engine.optimizers import build, remembered
from fedrepro.engine.stacked_inputs import Reader, Received, Step, form, stacking_order
from fedrepro.methods.base import Batch, Method, Phase
from fedrepro.models import FLModel, Output

Named = Mapping[str, Tensor]
Groups = list[tuple[OptimizerSpec, tuple[str, ...]]]  # parameters by their optimiser


class StackedEngine(Engine):
    """Clients stacked and stepped together. max_stack: most of them at once; all where None."""

    name = "fused"  # the word that run ids hold

    def __init__(self, module: FLModel, protocol: Protocol, device: torch.device) -> None:
        super().__init__(module, protocol, device)
        self.max_stack: int | None = None
        self.skeleton = copy.deepcopy(self.module).train()  # its own values are never used
        for layer in norms(self.skeleton):
            layer.num_batches_tracked = None  # nothing reads it, and vmap could not write it

    def train(self, method: Method, jobs: Sequence[Job]) -> Results:
        """Train each job's network, stack after stack."""
        for group in self._groups(jobs):
            size = self.max_stack or len(group)
            for part in (group[i : i + size] for i in range(0, len(group), size)):
                with self._multiplying():
                    trained = _Stack(self, method, [jobs[i] for i in part]).train()
                yield from zip(part, trained, strict=True)

    def _groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Positions of jobs that can be stacked, each group in stacking order."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for i, job in enumerate(jobs):
            course = tuple(
                (replace(phase, trains=None), self.moving(phase)) for phase in job.phases
            )
            image = tuple(job.samples.images.shape[1:])
            groups[image, course, job.batch_size, job.round, form(job.received)].append(i)

        def order(i: int) -> tuple[int, int]:
            size = jobs[i].batch_size or self.protocol.batch_size
            return stacking_order(len(jobs[i].samples), size)

        return [sorted(group, key=order) for group in groups.values()]

    def moving(self, phase: Phase) -> tuple[str, ...]:
        """The parameters that a phase trains."""
        names = (name for name, _ in self.skeleton.named_parameters())
        return tuple(name for name in names if phase.trains(self.layout[name]))


class _Stack:
    """The networks of some clients, each tensor with a leading axis, and their training."""

    def __init__(self, engine: StackedEngine, method: Method, jobs: Sequence[Job]) -> None:
        self._engine, self._method, self._jobs = engine, method, jobs
        self._received = Received([job.received for job in jobs], engine.device)
        size = jobs[0].batch_size or engine.protocol.batch_size
        like = torch.empty((), dtype=engine.dtype, device=engine.device)
        self._reader = Reader(method, jobs, engine.protocol.data, size, like)
        self._tensors = {
            name: torch.stack([job.state[name] for job in jobs]) for name in jobs[0].state
        }
        self._memory: list[dict[str, Tensor]] = [dict(job.optimizer) for job in jobs]
        self._sums: dict[str, Tensor] = {}  # of each loss term (clients,), and its samples
        self._seen: dict[str, list[int]] = {}

    def train(self) -> list[Trained]:
        """All phases; every client's network, optimiser and terms."""
        keeps = self._method.keeps_optimizer or self._engine.protocol.optimizer.kept
        for phase in self._jobs[0].phases:
            if not keeps:
                self._memory = [{} for _ in self._jobs]
            self._run_phase(phase)
        sums = {name: total.double().tolist() for name, total in self._sums.items()}
        return [
            Trained(
                {name: value[i].clone() for name, value in self._tensors.items()},
                memory if keeps else {},
                {n: sums[n][i] / seen[i] for n, seen in self._seen.items() if seen[i]},
            )
            for i, memory in enumerate(self._memory)
        ]

    def _run_phase(self, phase: Phase) -> None:
        """One phase of all clients. Each one's weights, seen as parameters of their own, are
        stepped by torch's optimisers, which leave those without a gradient alone."""
        moving = self._engine.moving(phase)
        clients = range(len(self._jobs))
        own = [{name: nn.Parameter(self._tensors[name][i]) for name in moving} for i in clients]
        groups = [
            group for group in phase.groups(self._engine.protocol.optimizer, moving) if group[1]
        ]
        pieces = [
            (spec, [{name: weights[name] for name in names} for weights in own])
            for spec, names in groups
        ]
        rounds = self._jobs[0].round
        optimizers = [build(spec, part, self._memory, rounds) for spec, part in pieces]
        for _ in range(phase.epochs):
            for step in self._reader.epoch(phase.lookahead is not None, phase.steps):
                self._set_gradients(phase, groups, own, step)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        for (spec, part), optimizer in zip(pieces, optimizers, strict=True):
            for memory, weights in zip(self._memory, part, strict=True):
                memory |= remembered(spec, optimizer, weights)

    def _set_gradients(
        self, phase: Phase, groups: Groups, own: list[dict[str, nn.Parameter]], step: Step
    ) -> None:
        """Leave the gradients of a step's clients in their parameters; add up its loss terms."""
        rows = slice(step.start, step.stop)
        weights = {name: self._tensors[name][rows] for name in self._engine.moving(phase)}
        late: Sequence[str] = phase.unclipped
        if phase.lookahead is not None:
            found, _, _ = self._gradients(phase.loss, (), weights, rows, step.batches[0])
            ahead = {n: weights[n] - phase.lookahead * g for n, g in found.items()}
            weights, late = {**weights, **ahead}, ()
        now, after, terms = self._gradients(phase.loss, late, weights, rows, step.batches[-1])
        for i, places in enumerate(own[rows]):
            for name, gradient in now.items():
                places[name].grad = gradient[i]
            for spec, names in groups:
                if spec.clip is not None:
                    nn.utils.clip_grad_norm_([places[name] for name in names], spec.clip)
            for name, gradient in after.items():
                had = places[name].grad
                places[name].grad = gradient[i] if had is None else had.add_(gradient[i])
        samples = step.batches[-1][1].shape[1]
        for name, value in terms.items():
            if name not in self._sums:
                self._sums[name] = value.new_zeros(len(self._jobs))
                self._seen[name] = [0] * len(self._jobs)
            self._sums[name][rows] += value.detach() * samples
            for i in range(step.start, step.stop):
                self._seen[name][i] += samples

    def _gradients(
        self, loss: str, late: Sequence[str], weights: Named, rows: slice, batch: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Gradients by parameter, where the loss reaches it, those of the late terms, which are
        left out of it, and all terms (clients,). batch: x, y and the method's draws, if any."""
        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
        # Statistics are written in place, client by client, as each network alone would do.
        fixed = {n: v[rows] for n, v in self._tensors.items() if n not in leaves}
        work, engine = getattr(self._method, loss), self._engine

        def one(
            leaves: Named, fixed: Named, batch: tuple[Tensor, ...], received: Mapping[str, Tensor]
        ) -> tuple[Tensor, dict[str, Tensor]]:
            def network(images: Tensor) -> Output:
                tensors = {**leaves, **fixed}
                return cast(Output, functional_call(engine.skeleton, tensors, (images,)))

            with engine._autocast():
                model = BoundModel(network, leaves, engine._run_other)
                terms = work(model, Batch(*batch), self._received.message(received))
                return torch.stack([v for n, v in terms.items() if n not in late]).sum(), terms

        received = {name: value[rows] for name, value in self._received.tensors.items()}
        losses, terms = vmap(one)(leaves, fixed, tuple(batch), received)

        # The clients do not touch each other, so the sum's gradient is each one's own.
        def gradients(total: Tensor, again: bool = False) -> dict[str, Tensor]:
            values = list(leaves.values())
            if not values:
                return {}
            found = torch.autograd.grad(total, values, retain_graph=again, allow_unused=True)
            pairs = zip(leaves, found, strict=True)
            return {name: g.contiguous() for name, g in pairs if g is not None}

        now = gradients(losses.sum(), bool(late))
        rest = gradients(torch.stack([terms[n].sum() for n in late]).sum()) if late else {}
        return now, rest, terms
