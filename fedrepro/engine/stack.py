"""Several clients' networks side by side, trained as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedrepro.engine.base import Job, Trained
from fedrepro.engine.graphs import Recorder, StepGraph
from fedrepro.engine.optimizers import blank, slots, step_together
from fedrepro.engine.reading import Step
from fedrepro.engine.received import Received, Tensors
from fedrepro.messages import Message
from fedrepro.methods.base import Batch, LocalModel, Method, Phase
from fedrepro.models import FLModel, Output, TensorInfo
from fedrepro.protocol import OptimizerSpec

Named = Mapping[str, Tensor]
RunOther = Callable[[Mapping[str, Tensor], Tensor, bool], Output]


@dataclass(frozen=True)
class Setting:
    """What all stacks of an engine have in common.

    skeleton: the network's structure, in training mode and without batch counters; its own values
    are never used. autocast: the context a loss is computed in. run_other: `LocalModel.run`.
    """

    skeleton: FLModel
    layout: Mapping[str, TensorInfo]
    optimizer: OptimizerSpec
    autocast: Callable[[], AbstractContextManager[object]]
    record: Recorder | None
    device: torch.device
    run_other: RunOther


@dataclass
class LocalView:
    """The network of one client as its loss sees it, under vmap."""

    params: Mapping[str, Tensor]
    _own: Callable[[Tensor], Output]
    _other: RunOther

    def __call__(self, x: Tensor) -> Output:
        return self._own(x)

    def run(self, tensors: Mapping[str, Tensor], x: Tensor, training: bool = False) -> Output:
        return self._other(tensors, x, training)


@dataclass
class _Course:
    """One phase: which parameters move, what its steps were seen to do."""

    phase: Phase
    optimizer: OptimizerSpec
    moving: tuple[str, ...]
    terms: set[str] = field(default_factory=set)
    stepped: set[str] = field(default_factory=set)  # parameters that had a gradient
    graphs: dict[Hashable, StepGraph] = field(default_factory=dict)


class Stack:
    """The networks, momenta and messages of some clients, each tensor with a leading axis.

    A stack may be loaded again with other clients' values of the same form; its tensors then stay
    where they are, which is what recorded steps rely on.
    """

    def __init__(
        self,
        setting: Setting,
        method: Method,
        jobs: Sequence[Job],
        dims: dict[str, dict[str, int | None]],
    ) -> None:
        self._setting, self._method = setting, method
        self.received = Received([job.received for job in jobs], dims, setting.device)
        self.tensors = {
            name: value.new_empty((len(jobs), *value.shape), device=setting.device)
            for name, value in jobs[0].state.items()
        }
        self._keeps = method.keeps_optimizer or setting.optimizer.kept
        self.momentum: dict[str, Tensor] = {}  # what the optimisers remember
        self.sums: dict[str, Tensor] = {}
        names = [name for name, _ in setting.skeleton.named_parameters()]
        self._courses = [
            _Course(
                phase,
                phase.optimizer or setting.optimizer,
                tuple(n for n in names if phase.trains(setting.layout[n])),
            )
            for phase in jobs[0].phases
        ]
        # Every client's step size by phase, where it changes from round to round.
        self._rates = [
            torch.empty(len(jobs), dtype=torch.float64, device=setting.device)
            if course.optimizer.scheduled
            else None
            for course in self._courses
        ]
        self._fill(jobs)

    def load(self, jobs: Sequence[Job]) -> None:
        """Take over other clients, or the same ones in another round."""
        self.received.load([job.received for job in jobs])
        for total in self.sums.values():
            total.zero_()
        self._fill(jobs)

    def _fill(self, jobs: Sequence[Job]) -> None:
        n = len(jobs)
        for name, place in self.tensors.items():
            # one by one: a client's tensors may lie in host memory or in a file
            for i, job in enumerate(jobs):
                place[i].copy_(job.state[name], non_blocking=True)
        for course, rates in zip(self._courses, self._rates, strict=True):
            if rates is not None:
                now = [course.optimizer.rate(job.round) for job in jobs]
                rates.copy_(torch.tensor(now, dtype=rates.dtype))
        self._held: list[set[str]] = [set() for _ in range(n)]  # what each client will keep
        self._steps = [[0] * n for _ in self._courses]
        self._seen = [[0] * n for _ in self._courses]  # samples, by phase
        self._clients = n
        for buffer in self.momentum.values():
            buffer.zero_()
        if self._keeps:
            for i, job in enumerate(jobs):
                for key, value in job.optimizer.items():
                    if key not in self.momentum:
                        shape = n, *value.shape
                        self.momentum[key] = value.new_zeros(shape, device=self._setting.device)
                    self.momentum[key][i].copy_(value)
                    self._held[i].add(key)

    # Training.

    def take(self, number: int, step: Step) -> None:
        """Take a step of phase `number`."""
        course = self._courses[number]
        key = (step.start, step.stop, step.sizes)
        if key not in course.graphs:
            work = partial(self._step, course, self._rates[number], step.start, step.stop)
            course.graphs[key] = StepGraph(work, self._setting.record)
        course.graphs[key](step.inputs)
        for i in range(step.start, step.stop):
            self._steps[number][i] += 1
            self._seen[number][i] += step.sizes[-1]

    def end_phase(self, number: int) -> None:
        """Momenta start at zero in the next phase unless they are kept."""
        course = self._courses[number]
        if not self._keeps:
            for buffer in self.momentum.values():
                buffer.zero_()
            return
        groups = course.phase.groups(course.optimizer, course.moving)
        keys = {
            key
            for spec, names in groups
            for name in names
            if name in course.stepped
            for key in slots(spec, name)
        }
        for held, taken in zip(self._held, self._steps[number], strict=True):
            held |= keys if taken else set()

    def _step(
        self, course: _Course, rates: Tensor | None, start: int, stop: int, *inputs: Tensor
    ) -> None:
        """One step of clients start..stop. Reads its inputs, writes the stack's own tensors."""
        weights = {n: self.tensors[n][start:stop] for n in course.moving}
        first = inputs if course.phase.lookahead is None else inputs[: len(inputs) // 2]
        gradients, late, terms = self._gradients(course, weights, start, stop, first)
        if course.phase.lookahead is not None:
            size = course.phase.lookahead
            ahead = {
                n: value - size * gradients[n] if n in gradients else value
                for n, value in weights.items()
            }
            second = inputs[len(first) :]
            gradients, late, terms = self._gradients(course, ahead, start, stop, second)
        course.stepped |= set(gradients)
        course.terms |= set(terms)
        for number, (spec, names) in enumerate(course.phase.groups(course.optimizer, weights)):
            own = {n: gradients[n] for n in names if n in gradients}
            memory = {n: self._memory(spec, n, start, stop) for n in own}
            now = None if rates is None or number else rates[start:stop]
            step_together(spec, weights, own, memory, now, late)
        samples = inputs[-1].shape[1]  # of the last batch
        for name, value in terms.items():
            if name not in self.sums:
                self.sums[name] = value.new_zeros(self._clients)
            self.sums[name][start:stop].add_(value * samples)

    def _gradients(
        self, course: _Course, weights: Named, start: int, stop: int, batch: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Gradients by parameter, where the loss reaches it, those of the terms that come after
        clipping, and loss terms (clients,).

        batch: x, y and, where the method's loss draws, its draws, each (clients, b, ...).
        """
        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
        # Statistics are written in place, client by client, as each network alone would do.
        fixed = {n: v[start:stop] for n, v in self.tensors.items() if n not in leaves}
        tensors = self.received.rows(start, stop)
        work = partial(self._loss, getattr(self._method, course.phase.loss), course.phase.unclipped)
        losses, terms = vmap(work, in_dims=(0, 0, 0, self.received.dims))(
            leaves, fixed, tuple(batch), tensors
        )
        # The clients do not touch each other, so the sum's gradient is each one's own.
        values = list(leaves.values())
        late = course.phase.unclipped

        def gradients(total: Tensor, again: bool = False) -> dict[str, Tensor]:
            found = torch.autograd.grad(total, values, retain_graph=again, allow_unused=True)
            return {n: g for n, g in zip(leaves, found, strict=True) if g is not None}

        now = gradients(losses.sum(), bool(late)) if values else {}
        rest = torch.stack([terms[name].sum() for name in late]).sum() if late else None
        after = gradients(rest) if values and rest is not None else {}
        return now, after, {name: value.detach() for name, value in terms.items()}

    def _loss(
        self,
        loss: Callable[[LocalModel, Batch, Message], dict[str, Tensor]],
        late: Sequence[str],
        leaves: Named,
        fixed: Named,
        batch: tuple[Tensor, ...],
        received: Tensors,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        tensors = {**leaves, **fixed}

        def own(images: Tensor) -> Output:
            return cast(Output, functional_call(self._setting.skeleton, tensors, (images,)))

        with self._setting.autocast():
            terms = loss(
                LocalView(leaves, own, self._setting.run_other),
                Batch(*batch),
                self.received.message(received),
            )
            return torch.stack([v for name, v in terms.items() if name not in late]).sum(), terms

    def _memory(self, spec: OptimizerSpec, name: str, start: int, stop: int) -> dict[str, Tensor]:
        """What the optimisers of clients start..stop remember of a parameter (views)."""
        for key, slot in slots(spec, name).items():
            if key not in self.momentum:
                self.momentum[key] = blank(slot, self.tensors[name])
        return {slot: self.momentum[key][start:stop] for key, slot in slots(spec, name).items()}

    # Results.

    def results(self) -> list[Trained]:
        """Every client's network, momenta and terms, as copies. The host waits here, once."""
        names = list(self.sums)
        totals = [self.sums[name].double() for name in names]
        rows = torch.stack(totals, dim=1).tolist() if totals else [[]] * self._clients
        return [self._result(i, dict(zip(names, row, strict=True))) for i, row in enumerate(rows)]

    def _result(self, i: int, totals: Mapping[str, float]) -> Trained:
        terms = {}
        for name, total in totals.items():
            # samples of the phases whose loss has this term
            seen = sum(
                s[i] for c, s in zip(self._courses, self._seen, strict=True) if name in c.terms
            )
            if seen:
                terms[name] = total / seen
        return Trained(
            {name: self.tensors[name][i].clone() for name in self.tensors},
            {name: self.momentum[name][i].clone() for name in sorted(self._held[i])},
            terms,
        )
