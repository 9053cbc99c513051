"""The server's side of a round: which clients participate, and the average of their messages."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor

from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import numpy_stream
from fedrepro.methods.messages import Message
from fedrepro.models import TensorInfo


def participants(protocol: Protocol, seed: int, number: int, clients: int) -> list[int]:
    """Indices, in order, of the clients that participate in a round, counted from 1: all, or a
    share drawn for it. If clients take turns, every `clients // count` draws use one shuffled
    order of them (clients left over do not participate in that pass)."""
    count = max(1, round(protocol.participation * clients))
    if count == clients:
        return list(range(clients))
    draw = (number - 1) // protocol.stay + 1
    if not protocol.turns:
        drawn = numpy_stream(seed, "participation", round=draw)
        return sorted(drawn.choice(clients, count, replace=False).tolist())
    passes, place = divmod(draw - 1, clients // count)
    order = numpy_stream(seed, "participation", round=passes + 1).permutation(clients)
    return sorted(order[place * count : (place + 1) * count].tolist())


def turns_of(protocol: Protocol, clients: int) -> int:
    """The largest number of rounds in which one client can participate: its turns if clients take
    turns, else all rounds, because each draw may choose it."""
    count = max(1, round(protocol.participation * clients))
    if not protocol.turns or count == clients:
        return protocol.rounds
    passes, rest = divmod(protocol.rounds, protocol.stay * (clients // count))
    return passes * protocol.stay + min(rest, protocol.stay)


class RunningAverage:
    """Adds networks one after another, so that only the sum is in memory.
    first_statistics: BatchNorm statistics are the first client's instead of the average."""

    def __init__(self, layout: Mapping[str, TensorInfo], first_statistics: bool = False) -> None:
        self._layout = layout
        self._first = first_statistics
        self.tensors: dict[str, Tensor] = {}

    def weight_tensors(self, counts: Sequence[int], batch_size: int) -> None:
        """Multiply the sum's tensor j by client j's share of all batches. MPFT's code applies the
        weights to the tensors instead of the clients. counts: of the clients' images."""
        batches = [math.ceil(count / batch_size) for count in counts]
        for value, own in zip(self.tensors.values(), batches, strict=False):
            value.mul_(own / sum(batches))

    def take(self, position: int, message: Message, weight: float) -> None:
        """Add the shared tensors of a client's message with its weight, and remove them from it.
        Position 0 is the round's first client."""
        shared = cast(Mapping[str, Tensor], message.pop("model", {}))
        for name, value in shared.items():
            info = self._layout[name]
            if self._first and info.is_bn and info.is_buffer:
                if position == 0:
                    self.tensors[name] = value.clone()
            elif name in self.tensors:
                self.tensors[name].add_(value, alpha=weight)
            else:
                self.tensors[name] = weight * value
