"""All clients of a round as one step, wherever the shapes of what they train on agree.

The clients' networks are stacked along a leading axis; `vmap` turns a method's loss of one client
into the losses of all, each layer into one grouped or batched product. Every client reads the
batches it would read alone, in the same order, and keeps its own BatchNorm statistics, momentum and
messages, so that the numbers are the plain loop's but for the order of summation inside a kernel.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from functools import partial

import psutil
import torch

from fedrepro.engine.base import Job, Trained
from fedrepro.engine.forward import ForwardEngine
from fedrepro.engine.graphs import CudaRecorder, Recorder
from fedrepro.engine.reading import Reader, readable, stacking_order
from fedrepro.engine.received import form, norms, shared_dims
from fedrepro.engine.stack import Setting, Stack
from fedrepro.methods.base import Method
from fedrepro.models import FLModel
from fedrepro.protocol import Protocol

COPIES, HOST_SHARE = 8, 0.25
STACKS = 4  # recorded stacks kept: training, adaptation before a test, and the last group of each


class FusedEngine(ForwardEngine):
    """Clients stacked and stepped together.

    max_stack: most clients in one stack; None for as many as fit. Where the device's memory does
        not hold a stack, it is halved and trained again from its start.
    record: how steps are recorded for replay; by default CUDA graphs on a GPU, nothing elsewhere.
    """

    name = "fused"

    def __init__(
        self,
        module: FLModel,
        protocol: Protocol,
        device: torch.device,
        max_stack: int | None = None,
        record: Recorder | None = None,
    ) -> None:
        super().__init__(module, protocol, device)
        self.max_stack = max_stack
        if record is None and device.type == "cuda":
            record = CudaRecorder()
        skeleton = copy.deepcopy(self.module).train()
        for layer in norms(skeleton):
            layer.num_batches_tracked = None  # nothing reads it, and vmap could not write it
        self._skeleton = skeleton
        self._record = record
        self._stacks: dict[Hashable, Stack] = {}

    def train(self, method: Method, jobs: Sequence[Job]) -> Iterator[tuple[int, Trained]]:
        """Train each job's network; the largest stacks that fit, one after another."""
        for pending in self._groups(jobs):
            while pending:
                part = pending[: self._largest(jobs[pending[0]])]
                try:
                    with self._multiplying():
                        trained = self._train_stack(method, [jobs[i] for i in part])
                except torch.OutOfMemoryError:
                    if len(part) == 1:
                        raise
                    self._make_room(len(part))
                    continue
                yield from zip(part, trained, strict=True)
                del trained
                pending = pending[len(part) :]

    def _largest(self, job: Job) -> int | None:
        """Most clients in one stack. Host memory does not say when it is full, so that on a CPU
        a stack takes a part of what is free: weights, gradients, momenta, results, and working
        copies of them."""
        if self.device.type != "cpu":
            return self.max_stack
        size = COPIES * sum(value.nbytes for value in job.state.values())
        fits = max(1, int(HOST_SHARE * psutil.virtual_memory().available) // size)
        return fits if self.max_stack is None else min(fits, self.max_stack)

    def _groups(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Positions of jobs that can be stacked, each group in stacking order."""
        groups: dict[Hashable, list[int]] = {}
        for i, job in enumerate(jobs):
            key = (readable(job), self._course(job), form(job.received))
            groups.setdefault(key, []).append(i)
        size = self.protocol.batch_size
        for group in groups.values():
            group.sort(key=lambda i: stacking_order(len(jobs[i].samples), size))
        return list(groups.values())

    def _course(self, job: Job) -> Hashable:
        """Equal for jobs that train the same way."""
        return tuple(
            (
                phase.epochs,
                phase.lookahead,
                phase.loss,
                phase.optimizer or self.protocol.optimizer,
                tuple(name for name, info in self.layout.items() if phase.trains(info)),
            )
            for phase in job.phases
        )

    def _train_stack(self, method: Method, jobs: Sequence[Job]) -> list[Trained]:
        stack = self._stack(method, jobs)
        data, size = self.protocol.data, self.protocol.batch_size
        reader = Reader(method, jobs, data, size, self.device, self.dtype)
        for number, phase in enumerate(jobs[0].phases):
            for _ in range(phase.epochs):
                stack.train(number, reader.epoch(pairs=phase.lookahead is not None))
            stack.end_phase(number)
        return stack.results()

    def _stack(self, method: Method, jobs: Sequence[Job]) -> Stack:
        """A stack with the jobs' tensors in it: a kept one where steps are recorded."""
        dims = shared_dims([job.received for job in jobs])
        if self._record is None:
            return Stack(self._setting(), method, jobs, dims)
        shared = tuple((kind, *named.items()) for kind, named in sorted(dims.items()))
        same = readable(jobs[0]), self._course(jobs[0]), form(jobs[0].received)
        key = (len(jobs), type(method), repr(method), same, shared)
        stack = self._stacks.pop(key, None)
        if stack is None:
            stack = Stack(self._setting(), method, jobs, dims)
        else:
            stack.load(jobs)
        self._stacks[key] = stack  # the last used stands last
        while len(self._stacks) > STACKS:
            del self._stacks[next(iter(self._stacks))]
        return stack

    def _setting(self) -> Setting:
        return Setting(
            self._skeleton,
            self.layout,
            self.protocol.optimizer,
            partial(self._autocast, cache=False),
            self._record,
            self.device,
            self._run_other,
        )

    def _make_room(self, tried: int) -> None:
        self.max_stack = (tried + 1) // 2
        self._stacks.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
