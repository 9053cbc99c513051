"""A step recorded once and replayed, so that its thousands of launches cost the host one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

Recorder = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes work that reads and writes only tensors which stay where they are; returns its replay.
Recording itself does not do the work."""

WARM_UP = 3  # plain runs first: libraries allocate and choose on their first calls


class CudaRecorder:
    """Records CUDA graphs. All share one memory pool: whatever a graph leaves behind lies outside
    the pool, so that no replay can disturb another's results."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        replay: Callable[[], None] = graph.replay
        return replay


def no_recorder() -> None:
    """Every step is taken anew."""
    return None


@dataclass(frozen=True)
class Lane:
    """Where a stack's steps run: a stream of its own, or the device's usual one where None."""

    record: Recorder | None
    stream: torch.cuda.Stream | None = None

    def current(self) -> AbstractContextManager[object]:
        """Inside, work goes to this lane."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def follow(self) -> None:
        """What this lane does next waits for what the usual stream has been given."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())

    def join(self) -> None:
        """What the usual stream does next waits for this lane."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class StepGraph:
    """A step that is called again and again with inputs of the same shapes.

    step: besides its inputs it touches only tensors that stay where they are; it returns nothing.
    record: None runs it plainly every time.
    """

    def __init__(self, step: Callable[..., None], record: Recorder | None) -> None:
        self._step = step
        self._record = record
        self._calls = 0
        self._inputs: list[Tensor] = []
        self._replay: Callable[[], None] | None = None

    def __call__(self, inputs: Sequence[Tensor]) -> None:
        self._calls += 1
        if self._record is None or self._calls <= WARM_UP:
            self._step(*inputs)
            return
        if self._replay is None:
            self._inputs = [value.clone() for value in inputs]
            self._replay = self._record(lambda: self._step(*self._inputs))
        else:
            for place, value in zip(self._inputs, inputs, strict=True):
                place.copy_(value)
        self._replay()
