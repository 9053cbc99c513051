"""Which clients of a stack step together, and the batches they read: the same ones, in the same
order and augmented the same way, as each would read alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from fedrepro.batches import epoch_batches, slices
from fedrepro.data.transforms import Draws, augment, draw, normalise, together
from fedrepro.engine.base import Job, Streams
from fedrepro.methods.base import Method
from fedrepro.protocol import DataSpec

BLOCK_BYTES = 64 * 2**20  # prepared images held at a time

Batches = tuple[Tensor, ...]  # what one step of a client reads: one batch, or two with lookahead


@dataclass(frozen=True)
class Step:
    """Clients start..stop of a stack each read batches of these sizes.

    inputs: x (clients, b, 3, H, W), y (clients, b) and, where the method's loss draws, its draws
    (clients, b, k), of each batch in turn.
    """

    start: int
    stop: int
    sizes: tuple[int, ...]
    inputs: tuple[Tensor, ...] = ()


def stacking_order(n: int, batch_size: int) -> tuple[int, int]:
    """Sort key of a client with n images: by number of full batches, the most first, then by the
    size of the rest. So the clients with another full batch always come first in a stack."""
    sizes = [part.stop - part.start for part in slices(n, batch_size)]
    full = sum(size == batch_size for size in sizes)
    return -full, 0 if full == len(sizes) else sizes[-1]


def plan(epoch: Sequence[Sequence[Batches]], batch_size: int) -> Iterator[tuple[Step, int]]:
    """Steps that take every client through its epoch, with their position in the client's list.

    Clients do not wait for each other's rests: full batches first, all clients that have one more
    together; then the rests, neighbours of equal size together. Nobody's own order changes.
    """
    shapes = [[tuple(len(b) for b in step) for step in steps] for steps in epoch]
    whole = [sum(set(shape) == {batch_size} for shape in client) for client in shapes]
    for position in range(max(whole)):
        here = [c[position] if n > position else None for c, n in zip(shapes, whole, strict=True)]
        yield from ((step, position) for step in _neighbours(here))
    # Counted from a client's end, as the number of its full batches may differ from others'. There
    # is one rest, or a number of steps of a client with less than a batch.
    most = max(len(c) - n for c, n in zip(shapes, whole, strict=True))
    for back in range(-most, 0):
        rests = [
            c[back] if n - len(c) <= back else None for c, n in zip(shapes, whole, strict=True)
        ]
        yield from ((step, back) for step in _neighbours(rests))


def _neighbours(shapes: Sequence[tuple[int, ...] | None]) -> Iterator[Step]:
    start = 0
    for shape, members in groupby(shapes):
        stop = start + len(list(members))
        if shape is not None:
            yield Step(start, stop, shape)
        start = stop


class Reader:
    """The images of a stack's clients as one pool on the device, read by index."""

    def __init__(
        self,
        method: Method,
        jobs: Sequence[Job],
        spec: DataSpec,
        batch_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._spec, self._batch_size, self._device, self._dtype = spec, batch_size, device, dtype
        self._counts = [len(job.samples) for job in jobs]
        self._method = method
        self._streams = [Streams.of(job) for job in jobs]
        # clients of several seeds often hold the very same images: once in the pool is enough
        held = {id(job.samples): job.samples for job in jobs}
        self._images = _joined([samples.images for samples in held.values()])
        self._labels = _joined([samples.labels for samples in held.values()])
        offsets: dict[int, int] = {}
        end = 0
        for key, samples in held.items():
            offsets[key] = end
            end += len(samples)
        self._offsets = [offsets[id(job.samples)] for job in jobs]
        image = self._images[0].numel() * torch.empty((), dtype=dtype).element_size()
        self._block = max(1, BLOCK_BYTES // image)

    def epoch(self, pairs: bool, steps: int | None = None) -> Iterator[Step]:
        """One shuffled epoch of every client, or so many of its steps. pairs: steps read two
        batches; an odd one is left."""
        epoch = [
            _paired(batches) if pairs else [(batch,) for batch in batches]
            for batches in (
                epoch_batches(n, self._batch_size, streams.order, steps)
                for n, streams in zip(self._counts, self._streams, strict=True)
            )
        ]
        block: list[tuple[Step, list[Tensor]]] = []
        rows = 0
        for step, position in plan(epoch, self._batch_size):
            reads = [
                epoch[client][position][part] + self._offsets[client]
                for part in range(len(step.sizes))
                for client in range(step.start, step.stop)
            ]
            rows += sum(len(index) for index in reads)
            block.append((step, reads))
            if rows >= self._block:
                yield from self._prepared(block)
                block, rows = [], 0
        if block:
            yield from self._prepared(block)

    def _prepared(self, block: Sequence[tuple[Step, list[Tensor]]]) -> Iterator[Step]:
        """The steps of a block with their inputs, prepared in one go."""
        draws = self._draws([step for step, _ in block])
        index = self._upload(torch.cat([index for _, reads in block for index in reads]))
        x, y = augment(self._images[index], draws), self._labels[index]
        x = normalise(x, self._spec.normalise, self._dtype)
        own = self._method_draws([step for step, _ in block])
        columns = [x, y] if own is None else [x, y, own]
        at = 0
        for step, _ in block:
            inputs: list[Tensor] = []
            clients = step.stop - step.start
            for size in step.sizes:
                end = at + clients * size
                inputs += [column[at:end].unflatten(0, (clients, size)) for column in columns]
                at = end
            yield Step(step.start, step.stop, step.sizes, tuple(inputs))

    def _draws(self, steps: Sequence[Step]) -> Draws:
        """Each client's own draws, batch by batch in the order the steps read, on the device."""
        drawn = together(
            [
                draw(size, self._spec, streams.augmentation)
                for step in steps
                for size in step.sizes
                for streams in self._streams[step.start : step.stop]
            ]
        )
        return Draws(*(None if part is None else self._upload(part) for part in drawn))

    def _method_draws(self, steps: Sequence[Step]) -> Tensor | None:
        """What the method's loss draws, in the same order."""
        drawn = [
            self._method.draw(size, streams.draws)
            for step in steps
            for size in step.sizes
            for streams in self._streams[step.start : step.stop]
        ]
        parts = [part for part in drawn if part is not None]
        return self._upload(torch.cat(parts).to(self._dtype)) if parts else None

    def _upload(self, values: Tensor) -> Tensor:
        """To the device; the host goes on at once."""
        if self._device.type == "cuda":
            return values.pin_memory().to(self._device, non_blocking=True)
        return values.to(self._device)


def _paired(batches: Sequence[Tensor]) -> list[Batches]:
    return list(zip(batches[::2], batches[1::2], strict=False))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def readable(job: Job) -> Hashable:
    """Equal for jobs whose images fit into one pool."""
    return tuple(job.samples.images.shape[1:])
