"""What the clients of a stack read and receive: each its own, in the order it would alone."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from fedrepro.base.protocol import DataSpec
from fedrepro.data.batches import epoch_batches, slices
from fedrepro.data.transforms import Draws, augment, draw, normalise, together
from fedrepro.engine.base import Job, Streams, callable_under_vmap
from fedrepro.methods.base import Method
from fedrepro.methods.messages import Message, Network, Payload

APART = "\n"  # between a payload's kind and a tensor's name
Batches = tuple[Tensor, ...]  # indices one step of a client reads: one batch, or two with lookahead


class Step(NamedTuple):
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
        self, method: Method, jobs: Sequence[Job], spec: DataSpec, batch_size: int, like: Tensor
    ) -> None:
        """like: a tensor of the run's device and type."""
        self._method, self._spec, self._batch_size, self._like = method, spec, batch_size, like
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
        clients, size, device = slice(start, start + len(indices)), len(indices[0]), self._like
        offsets, streams = self._offsets[clients], self._streams[clients]
        index = torch.cat([own + offset for own, offset in zip(indices, offsets, strict=True)])
        index = index.to(device.device)
        drawn = together([draw(size, self._spec, own.augmentation) for own in streams])
        draws = Draws(*(None if part is None else part.to(device.device) for part in drawn))
        x = augment(self._images[index], draws)
        columns = [normalise(x, self._spec.normalise, device.dtype), self._labels[index]]
        extra = [self._method.draw(size, own.draws) for own in streams]
        if parts := [part for part in extra if part is not None]:
            columns.append(torch.cat(parts).to(device))
        return tuple(column.unflatten(0, (len(indices), size)) for column in columns)


class Received:
    """The messages of a stack's clients. tensors: by kind and name, (clients, ...)."""

    def __init__(self, messages: Sequence[Message], device: torch.device) -> None:
        self._forms: Message = dict(messages[0])
        for kind, payload in messages[0].items():
            if isinstance(payload, Network):
                self._forms[kind] = network = copy.copy(payload)
                network._skeleton = callable_under_vmap(payload._skeleton)
        named = [flat(message) for message in messages]
        self.tensors = {n: torch.stack([own[n] for own in named]).to(device) for n in named[0]}

    def message(self, tensors: Mapping[str, Tensor]) -> Message:
        """The message as one client's loss reads it, from that client's tensors."""
        return {kind: self._payload(kind, tensors) for kind in self._forms}

    def _payload(self, kind: str, tensors: Mapping[str, Tensor]) -> Payload:
        form = self._forms[kind]
        named = {name: tensors[kind + APART + name] for name in parts(form)}
        if isinstance(form, Tensor):
            return named[""]
        if not isinstance(form, Network):
            return named
        network = copy.copy(form)
        network.tensors = {name: named[name] for name in form._skeleton.state_dict()}
        return network


def parts(payload: Payload) -> Mapping[str, Tensor]:
    """The tensors of a payload by name; a single tensor's name is empty."""
    if isinstance(payload, Tensor):
        return {"": payload}
    return payload.tensors if isinstance(payload, Network) else payload


def flat(message: Message) -> dict[str, Tensor]:
    """All tensors of a message by kind and name."""
    return {
        kind + APART + name: value
        for kind, payload in message.items()
        for name, value in parts(payload).items()
    }


def form(message: Message) -> Hashable:
    """Equal for messages that can be stacked: kinds, names, shapes, types, architectures."""
    return tuple(
        (
            kind,
            str(payload._skeleton) if isinstance(payload, Network) else type(payload).__name__,
            isinstance(payload, Network) and payload._skeleton.training,
            tuple((name, value.shape, value.dtype) for name, value in parts(payload).items()),
        )
        for kind, payload in sorted(message.items())
    )
