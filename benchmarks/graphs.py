"""The plain loop on a GPU, with the kernels of a step's gradients launched together.

The plain loop launches the kernels of a step one by one, which costs the host time. Here they are
recorded once as a CUDA graph, for each loss and each size of a batch, and then launched together.
They are the same kernels, so the numbers are the plain loop's, bit by bit (`gpu.py --only checks`).
How much time that saves is not measured yet.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from fedrepro.engine import ENGINES, LoopEngine
from fedrepro.engine.base import Loss
from fedrepro.engine.stacked import form
from fedrepro.methods.base import Batch, LocalModel
from fedrepro.methods.server import Message

WARM = 2  # plain steps before a recording: libraries set up their memory in them
Found = tuple[dict[str, Tensor], dict[str, Tensor]]


class GraphEngine(LoopEngine):
    """Records what `_gradients` launches, by loss, trained parameters, sizes and message's form."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._pool = torch.cuda.graph_pool_handle()
        self._recorded: dict[Hashable, Recorded | int] = {}  # or the plain steps so far
        self._received: dict[Hashable, Message] = {}  # the recordings read these, by form
        self._current: tuple[Message, Hashable] = {}, None

    def _gradients(
        self,
        loss: Loss,
        model: LocalModel,
        batch: Batch,
        received: Message,
        late: Sequence[str] = (),
    ) -> Found:
        """As the plain loop's. Late terms are not recorded."""
        if late:
            return super()._gradients(loss, model, batch, received, late)
        kind = self._load_received(received)
        sizes = tuple(None if part is None else part.shape for part in batch)
        key = loss.__name__, tuple(model.params), sizes, kind
        found = self._recorded.get(key, 0)
        if isinstance(found, int):
            if found < WARM:
                self._recorded[key] = found + 1
                return super()._gradients(loss, model, batch, received)
            still = tree_map_only(Tensor, torch.clone, batch)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, self._pool, torch.cuda.current_stream()):
                    terms, _ = super()._gradients(loss, model, still, self._received[kind])
            except RuntimeError as error:  # the loss reads a value on the host
                print(f"{loss.__qualname__} stays plain: {error}")
                self._recorded[key] = -sys.maxsize
                return super()._gradients(loss, model, batch, received)
            gradients = [value.grad for value in model.params.values()]
            terms = {name: value.detach() for name, value in terms.items()}
            found = self._recorded[key] = Recorded(still, graph, terms, gradients)
        return found.repeat(batch, model), {}

    def _load_received(self, received: Message) -> Hashable:
        """Copy a job's message to the place that recordings of its form read; returns the form."""
        last, kind = self._current
        if received is not last:
            kind = form(received)
            place = self._received.setdefault(kind, tree_map(torch.clone, received))
            for one, value in zip(tree_leaves(place), tree_leaves(received), strict=True):
                one.copy_(value)
            self._current = received, kind
        return kind


class Recorded(NamedTuple):
    """The gradients of one loss for batches of one size."""

    batch: Batch
    graph: torch.cuda.CUDAGraph
    terms: dict[str, Tensor]
    gradients: list[Tensor | None]

    def repeat(self, batch: Batch, model: LocalModel) -> dict[str, Tensor]:
        """Put the gradients into the parameters; returns the loss's terms."""
        for place, value in zip(self.batch, batch, strict=True):
            if place is not None and value is not None:
                place.copy_(value)
        self.graph.replay()
        for parameter, gradient in zip(model.params.values(), self.gradients, strict=True):
            parameter.grad = gradient
        return self.terms


@contextmanager
def graphs() -> Iterator[None]:
    """Inside, the plain loop is recorded; all on one stream, as recordings require."""
    before = ENGINES["reference"]
    ENGINES["reference"] = GraphEngine
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            yield
    finally:
        ENGINES["reference"] = before
