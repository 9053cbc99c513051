"""The server's side of a round: who takes part, and the average of what they send."""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import numpy_stream
from fedrepro.methods.messages import Message, tensors_of
from fedrepro.models import TensorInfo


def participants(protocol: Protocol, seed: int, number: int, clients: int) -> list[int]:
    """Indices, in order, of the clients that take part in a round counted from 1: all of them, or
    a share drawn for it. Where clients take turns, every `clients // count` draws go
    through one shuffled order of them (those left over sit that pass out)."""
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
    """Most rounds of a run in which one client takes part: its turns where it has them, else
    all rounds, for a draw may choose it every time."""
    count = max(1, round(protocol.participation * clients))
    if not protocol.turns or count == clients:
        return protocol.rounds
    draws = -(-protocol.rounds // protocol.stay)
    return protocol.stay * -(-draws // (clients // count))


class RunningAverage:
    """Adds networks up one after another, so that never more than the sum is held.

    first_statistics: BatchNorm statistics are the first client's instead of the average.
    """

    def __init__(self, layout: Mapping[str, TensorInfo], first_statistics: bool = False) -> None:
        self._layout = layout
        self._first = first_statistics
        self.tensors: dict[str, Tensor] = {}

    def weight_tensors(self, counts: Sequence[int], batch_size: int) -> None:
        """Multiply the sum's tensor j by client j's share of all batches: MPFT's code, which pairs
        the weights with the tensors and not with the clients. counts: of the clients' images."""
        batches = [math.ceil(count / batch_size) for count in counts]
        for value, own in zip(self.tensors.values(), batches, strict=False):
            value.mul_(own / sum(batches))

    def take(self, position: int, message: Message, weight: float) -> None:
        """Add the shared tensors of a client's message, and take them out of it."""
        if "model" in message:
            self.add(position, tensors_of(message, "model"), weight)
            del message["model"]

    def add(self, position: int, model: Mapping[str, Tensor], weight: float) -> None:
        """Add a client's tensors with its weight; position 0 is the round's first client."""
        for name, value in model.items():
            info = self._layout[name]
            if self._first and info.is_bn and info.is_buffer:
                if position == 0:
                    self.tensors[name] = value.clone()
            elif name in self.tensors:
                self.tensors[name].add_(value, alpha=weight)
            else:
                self.tensors[name] = weight * value
