"""All clients of a round as one step, wherever the shapes of what they train on agree.

The clients' networks are stacked along a leading axis; `vmap` turns a method's loss of one client
into the losses of all, each layer into one grouped or batched product. Every client reads the
batches it would read alone, in the same order, and keeps its own BatchNorm statistics, momentum and
messages, so that the numbers are the plain loop's but for the order of summation inside a kernel.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence

import psutil
import torch

from fedrepro.engine.base import Job, Results, Trained
from fedrepro.engine.forward import ForwardEngine
from fedrepro.engine.graphs import CudaRecorder, Lane, Recorder, no_recorder
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
    record: makes what records steps for replay; by default CUDA graphs on a GPU, nothing elsewhere.
    lanes: stacks trained at the same time, step by step in turn, each on a CUDA stream of its own
        (with a `max_stack` of 1: every client apart, side by side).
    """

    name = "fused"

    def __init__(
        self,
        module: FLModel,
        protocol: Protocol,
        device: torch.device,
        max_stack: int | None = None,
        record: Callable[[], Recorder | None] | None = None,
        lanes: int = 1,
    ) -> None:
        super().__init__(module, protocol, device)
        self.max_stack = max_stack
        if record is None:
            record = CudaRecorder if device.type == "cuda" else no_recorder
        skeleton = copy.deepcopy(self.module).train()
        for layer in norms(skeleton):
            layer.num_batches_tracked = None  # nothing reads it, and vmap could not write it
        self._skeleton = skeleton
        # A recorder's graphs share memory, so that only one of them may run at a time.
        self._lanes = [Lane(record(), _stream(device, number)) for number in range(lanes)]
        self._stacks: dict[Hashable, Stack] = {}

    def train(self, method: Method, jobs: Sequence[Job]) -> Results:
        """Train each job's network; the largest stacks that fit, one after another."""
        for pending in self._groups(jobs):
            while pending:
                size = self._largest(jobs[pending[0]])
                parts = [part for part in _cut(pending, size, len(self._lanes)) if part]
                try:
                    with self._multiplying():
                        trained = self._train_parts(method, [[jobs[i] for i in p] for p in parts])
                except torch.OutOfMemoryError:
                    if len(parts[0]) == 1:
                        raise
                    self._make_room(len(parts[0]))
                    continue
                done = [i for part in parts for i in part]
                yield from zip(done, trained, strict=True)
                del trained
                pending = pending[len(done) :]

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
            key = (readable(job), self._course(job), self._size(job), form(job.received))
            groups.setdefault(key, []).append(i)
        for group in groups.values():
            size = self._size(jobs[group[0]])
            order = {i: stacking_order(len(jobs[i].samples), size) for i in group}
            group.sort(key=order.__getitem__)
        return list(groups.values())

    def _size(self, job: Job) -> int:
        """Images in its batches."""
        return job.batch_size or self.protocol.batch_size

    def _course(self, job: Job) -> Hashable:
        """Equal for jobs that train the same way."""
        return tuple(
            (
                phase.epochs,
                phase.steps,
                phase.lookahead,
                phase.loss,
                phase.unclipped,
                phase.apart,
                phase.optimizer or self.protocol.optimizer,
                tuple(name for name, info in self.layout.items() if phase.trains(info)),
            )
            for phase in job.phases
        )

    def _train_parts(self, method: Method, parts: Sequence[Sequence[Job]]) -> list[Trained]:
        """Train stacks side by side, each on a lane; results in the parts' order."""
        begun = [
            (lane, *self._begin(method, jobs, number))
            for number, (lane, jobs) in enumerate(zip(self._lanes, parts, strict=False))
        ]
        waiting = [(lane, steps) for lane, _, steps in begun]
        while waiting:
            still = []
            for lane, steps in waiting:
                with lane.current():
                    if next(steps, None) is not None:
                        still.append((lane, steps))
            waiting = still
        for lane, _, _ in begun:
            lane.join()
        return [trained for _, stack, _ in begun for trained in stack.results()]

    def _begin(
        self, method: Method, jobs: Sequence[Job], number: int
    ) -> tuple[Stack, Iterator[bool]]:
        """A filled stack and its steps."""
        stack = self._stack(method, jobs, number)
        data, size = self.protocol.data, self._size(jobs[0])
        reader = Reader(method, jobs, data, size, self.device, self.dtype)
        self._lanes[number].follow()

        def steps() -> Iterator[bool]:
            for phase_number, phase in enumerate(jobs[0].phases):
                for _ in range(phase.epochs):
                    for step in reader.epoch(phase.lookahead is not None, phase.steps):
                        stack.take(phase_number, step)
                        yield True
                stack.end_phase(phase_number)

        return stack, steps()

    def _stack(self, method: Method, jobs: Sequence[Job], lane: int) -> Stack:
        """A stack with the jobs' tensors in it: a kept one where steps are recorded."""
        dims = shared_dims([job.received for job in jobs])
        if self._lanes[lane].record is None:
            return Stack(self._setting(lane), method, jobs, dims)
        shared = tuple((kind, *named.items()) for kind, named in sorted(dims.items()))
        same = readable(jobs[0]), self._course(jobs[0]), form(jobs[0].received)
        key = (lane, len(jobs), type(method), repr(method), same, shared)
        stack = self._stacks.pop(key, None)
        if stack is None:
            stack = Stack(self._setting(lane), method, jobs, dims)
        else:
            stack.load(jobs)
        self._stacks[key] = stack  # the last used stands last
        while len(self._stacks) > STACKS * len(self._lanes):
            del self._stacks[next(iter(self._stacks))]
        return stack

    def _setting(self, lane: int) -> Setting:
        return Setting(
            self._skeleton,
            self.layout,
            self.protocol.optimizer,
            self._autocast,
            self._lanes[lane].record,
            self.device,
            self._run_other,
        )

    def _make_room(self, tried: int) -> None:
        self.max_stack = (tried + 1) // 2
        self._stacks.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _cut(pending: Sequence[int], size: int | None, lanes: int) -> Iterator[list[int]]:
    """The next positions for each lane: evenly, but no more than `size` each."""
    share = -(-len(pending) // lanes)
    size = share if size is None else min(size, share)
    for lane in range(lanes):
        yield list(pending[lane * size : (lane + 1) * size])


def _stream(device: torch.device, number: int) -> torch.cuda.Stream | None:
    """The first lane is the device's usual stream."""
    return torch.cuda.Stream(device) if device.type == "cuda" and number else None
