"""Which clients of a stack step together, and the batches they read: the same ones, in the same
order and augmented the same way, as each would read alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from fedrepro.base.protocol import DataSpec
from fedrepro.data.batches import epoch_batches, slices
from fedrepro.data.transforms import Draws, augment, draw, normalise, together
from fedrepro.engine.base import Job, Streams
from fedrepro.methods.base import Method

Batches = tuple[Tensor, ...]  # what one step of a client reads: one batch, or two with lookahead


@dataclass(frozen=True)
class Step:
    """Clients start..stop of a stack each read one batch, or two with lookahead.

    A batch: x (clients, b, 3, H, W), y (clients, b) and, where the method's loss draws, its draws
    (clients, b, k).
    """

    start: int
    stop: int
    batches: tuple[tuple[Tensor, ...], ...]


def stacking_order(n: int, batch_size: int) -> tuple[int, int]:
    """Sort key of a client with n images: by number of full batches, the most first, then by the
    size of the rest. So the clients with another full batch always come first in a stack."""
    sizes = [part.stop - part.start for part in slices(n, batch_size)]
    full = sum(size == batch_size for size in sizes)
    return -full, 0 if full == len(sizes) else sizes[-1]


def plan(
    epoch: Sequence[Sequence[Batches]], batch_size: int
) -> Iterator[tuple[int, list[Batches]]]:
    """Steps that take every client through its epoch: the first client, and what each reads.

    Clients do not wait for each other's rests: full batches first, all clients that have one more
    together; then the rests, neighbours of equal size together. Nobody's own order changes.
    """
    whole = [sum({len(b) for b in step} == {batch_size} for step in client) for client in epoch]
    rests = max(len(client) - n for client, n in zip(epoch, whole, strict=True))
    pairs = list(zip(epoch, whole, strict=True))
    turns = [[c[p : p + 1] if p < n else [] for c, n in pairs] for p in range(max(whole))]
    turns += [[c[n + p : n + p + 1] for c, n in pairs] for p in range(rests)]
    for turn in turns:
        start = 0
        for shape, group in groupby(turn, lambda step: [len(b) for b in step[0]] if step else []):
            members = list(group)
            if shape:
                yield start, [step[0] for step in members]
            start += len(members)


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
        self._method = method
        self._streams = [Streams.of(job) for job in jobs]
        self._counts = [len(job.samples) for job in jobs]
        self._offsets = [sum(self._counts[:i]) for i in range(len(jobs))]
        self._images = torch.cat([job.samples.images for job in jobs])
        self._labels = torch.cat([job.samples.labels for job in jobs])

    def epoch(self, pairs: bool, steps: int | None = None) -> Iterator[Step]:
        """One shuffled epoch of every client, or so many of its steps. pairs: steps read two
        batches; an odd one is left."""
        epoch: list[list[Batches]] = []
        for n, streams in zip(self._counts, self._streams, strict=True):
            batches = epoch_batches(n, self._batch_size, streams.order, steps)
            paired = zip(batches[::2], batches[1::2], strict=False)
            epoch.append(list(paired) if pairs else [(batch,) for batch in batches])
        for start, reads in plan(epoch, self._batch_size):
            parts = zip(*reads, strict=True)
            yield Step(start, start + len(reads), tuple(self._batch(start, part) for part in parts))

    def _batch(self, start: int, indices: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One batch of each of some neighbours, its random draws from the client's own streams."""
        clients, size = len(indices), len(indices[0])
        offsets = self._offsets[start : start + clients]
        index = torch.cat([own + offset for own, offset in zip(indices, offsets, strict=True)])
        index = index.to(self._device)
        streams = self._streams[start : start + clients]
        drawn = together([draw(size, self._spec, own.augmentation) for own in streams])
        draws = Draws(*(None if part is None else part.to(self._device) for part in drawn))
        x = augment(self._images[index], draws)
        columns = [normalise(x, self._spec.normalise, self._dtype), self._labels[index]]
        extra = [self._method.draw(size, own.draws) for own in streams]
        if parts := [part for part in extra if part is not None]:
            columns.append(torch.cat(parts).to(self._device, self._dtype))
        return tuple(column.unflatten(0, (clients, size)) for column in columns)
