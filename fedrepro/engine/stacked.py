"""Trains all clients of a round together, if their shapes agree: `vmap` turns a method's loss of
one client into the losses of all, whose networks are stacked along a leading axis. Batches,
BatchNorm statistics, optimiser and messages are each client's own. So the numbers are the plain
loop's, except for the order of summation in a kernel."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedrepro.base.errors import need
from fedrepro.base.protocol import Protocol
from fedrepro.data.transforms import slices
from fedrepro.engine.base import Engine, Job, Results, Streams, Trained, Updates, gradients
from fedrepro.methods.base import Batch, LocalModel, Method, Phase
from fedrepro.methods.server import Message
from fedrepro.models import FLModel, Output, architecture

Named = Mapping[str, Tensor]
Columns = tuple[Tensor, ...]  # a batch of each of some clients, in the order of `Batch`


class StackedEngine(Engine):
    def __init__(self, module: FLModel, protocol: Protocol, device: torch.device) -> None:
        super().__init__(module, protocol, device)
        need(not self.drops, "the stacked engine trains no network with dropout; use --engine loop")
        self.skeleton = architecture(self.module, training=False).train()

    def train(self, method: Method, jobs: Sequence[Job]) -> Results:
        for group in self._groups(jobs):
            with self._multiplying():
                trained = _Stack(self, method, [jobs[i] for i in group]).train()
            yield from zip(group, trained, strict=True)

    def _groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Positions of jobs that can be stacked, each group in stacking order."""
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for i, job in enumerate(jobs):
            course = tuple((replace(one, trains=None), self.moving(one)) for one in job.phases)
            image = tuple(job.samples.images.shape[1:])
            groups[image, course, job.batch_size, job.round, form(job.received)].append(i)

        def order(i: int) -> list[int]:
            # Minus the batches' sizes: those who read batches of equal sizes become neighbours.
            size = jobs[i].batch_size or self.protocol.batch_size
            return [part.start - part.stop for part in slices(len(jobs[i].samples), size)]

        return [sorted(group, key=order) for group in groups.values()]

    def moving(self, phase: Phase) -> tuple[str, ...]:
        return tuple(n for n, t in self.layout.items() if not t.is_buffer and phase.trains(t))


class _Stack:
    """The networks of some clients, each tensor with a leading axis, and their training."""

    def __init__(self, engine: StackedEngine, method: Method, jobs: Sequence[Job]) -> None:
        self._engine, self._method, self._jobs = engine, method, jobs
        self._received = stacked([job.received for job in jobs], engine.device)
        self._readers = [(job, Streams(job)) for job in jobs]
        self._tensors = {n: torch.stack([job.state[n] for job in jobs]) for n in jobs[0].state}
        self._memory: list[dict[str, Tensor]] = [dict(job.optimizer) for job in jobs]
        self._sums: dict[str, Tensor] = {}  # of each loss term (clients,), and its samples
        self._seen: dict[str, Tensor] = {}

    def train(self) -> list[Trained]:
        keeps = self._method.keeps_optimizer or self._engine.protocol.optimizer.kept
        for phase in self._jobs[0].phases:
            if not keeps:
                self._memory = [{} for _ in self._jobs]
            self._run_phase(phase)
        means = {n: total.double().cpu() / self._seen[n] for n, total in self._sums.items()}
        return [
            Trained(
                {name: value[i].clone() for name, value in self._tensors.items()},
                memory if keeps else {},
                {n: float(mean[i]) for n, mean in means.items() if self._seen[n][i]},
            )
            for i, memory in enumerate(self._memory)
        ]

    def _run_phase(self, phase: Phase) -> None:
        """Train one phase of all clients. Each client's weights are separate parameters of torch's
        optimisers, which do not change parameters without a gradient."""
        moving = self._engine.moving(phase)
        clients = range(len(self._jobs))
        own = [{name: nn.Parameter(self._tensors[name][i]) for name in moving} for i in clients]
        default, number = self._engine.protocol.optimizer, self._jobs[0].round
        updates = Updates(phase, default, own, self._memory, number)
        for _ in range(phase.epochs):
            for rows, batches in self._epoch(phase):
                late = self._set_gradients(phase, own[rows], rows, batches)
                updates.step(late, rows)
        updates.keep()

    def _epoch(self, phase: Phase) -> Iterator[tuple[slice, list[Columns]]]:
        """The steps of all clients' epochs: whose, and one batch of each, or two with lookahead.
        Neighbours whose next batches are of equal sizes take a step together."""
        epochs = [self._engine._epoch(self._method, phase, *own) for own in self._readers]
        for turn in zip_longest(*epochs, fillvalue=()):
            start = 0
            for sizes, group in groupby(turn, lambda step: [len(index) for index in step]):
                reads = list(group)
                rows = slice(start, start + len(reads))
                start = rows.stop
                if sizes:
                    yield rows, [self._batch(rows, part) for part in zip(*reads, strict=True)]

    def _batch(self, rows: slice, indices: Sequence[Tensor]) -> Columns:
        """x (clients, b, 3, H, W), y (clients, b) and the loss's draws, if any (clients, b, k)."""
        pairs = zip(self._readers[rows], indices, strict=True)
        read = [self._engine._batch(self._method, *own, index) for own, index in pairs]
        columns = zip(*read, strict=True)
        return tuple(torch.stack(column) for column in columns if column[0] is not None)

    def _set_gradients(
        self, phase: Phase, own: list[dict[str, nn.Parameter]], rows: slice, batches: list[Columns]
    ) -> list[dict[str, Tensor]]:
        """Put the gradients of a step's clients into their parameters; add up its loss terms.
        Returns the late terms' gradients, by client."""
        weights = {name: self._tensors[name][rows] for name in self._engine.moving(phase)}
        late: Sequence[str] = phase.unclipped
        if phase.lookahead is not None:
            found, _, _ = self._gradients(phase.loss, (), weights, rows, batches[0])
            ahead = {n: weights[n] - phase.lookahead * g for n, g in found.items()}
            weights, late = {**weights, **ahead}, ()
        now, after, terms = self._gradients(phase.loss, late, weights, rows, batches[-1])
        for i, places in enumerate(own):
            for name, gradient in now.items():
                places[name].grad = gradient[i]
        samples = batches[-1][1].shape[1]
        for name, value in terms.items():
            sums = self._sums.setdefault(name, value.new_zeros(len(self._jobs)))
            seen = self._seen.setdefault(name, torch.zeros(len(self._jobs), dtype=torch.int64))
            sums[rows] += value.detach() * samples
            seen[rows] += samples
        return [{name: g[i] for name, g in after.items()} for i in range(len(own))]

    def _gradients(
        self, loss: str, late: Sequence[str], weights: Named, rows: slice, batch: Columns
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Gradients by parameter, if the loss depends on it; those of the late terms, which are not
        in the first; and all terms (clients,). batch: x, y and the method's draws, if any."""
        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
        # Statistics are written in place, client by client, as in the plain loop.
        fixed = {n: v[rows] for n, v in self._tensors.items() if n not in leaves}
        work, engine = getattr(self._method, loss), self._engine

        def one(
            leaves: Named, fixed: Named, batch: Columns, received: Message
        ) -> tuple[Tensor, dict[str, Tensor]]:
            def network(images: Tensor) -> Output:
                tensors = {**leaves, **fixed}
                return cast(Output, functional_call(engine.skeleton, tensors, (images,)))

            model = LocalModel(network, leaves, engine._run_other)
            return engine._loss(work, model, Batch(*batch), received, late)

        received = tree_map(lambda value: value[rows], self._received)
        losses, terms = vmap(one, randomness="different")(leaves, fixed, batch, received)

        # The clients are independent, so the sum's gradient is each client's own.
        now = gradients(losses.sum(), leaves, bool(late))
        rest = gradients(torch.stack([terms[n].sum() for n in late]).sum(), leaves) if late else {}
        now, rest = ({n: g.contiguous() for n, g in found.items()} for found in (now, rest))
        return now, rest, terms


def stacked(messages: Sequence[Message], device: torch.device) -> Message:
    """The messages of a stack's clients as one; each tensor has a leading axis (clients, ...)."""
    leaves, specs = zip(*map(tree_flatten, messages), strict=True)
    stacks = [torch.stack(own).to(device) for own in zip(*leaves, strict=True)]
    return cast(Message, tree_unflatten(stacks, specs[0]))


def form(message: Message) -> Hashable:
    """Equal for messages that can be stacked: kinds, names, shapes, types, architectures."""
    leaves, spec = tree_flatten(message)
    return str(spec), tuple((leaf.shape, leaf.dtype) for leaf in leaves)
