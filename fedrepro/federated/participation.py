"""Which clients take part in a round."""

from __future__ import annotations

from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import numpy_stream


def participants(protocol: Protocol, seed: int, number: int, clients: int) -> list[int]:
    """Indices, in order, of the clients that take part in a round counted from 1: all of them, or
    a share drawn for it. Where clients take turns, every `clients // count` draws deal out one
    shuffled order of them (those left over sit that pass out)."""
    count = max(1, round(protocol.participation * clients))
    if count == clients:
        return list(range(clients))
    draw = (number - 1) // protocol.stay + 1
    if not protocol.turns:
        drawn = numpy_stream(seed, "participation", round=draw)
        return sorted(drawn.choice(clients, count, replace=False).tolist())
    dealt, place = divmod(draw - 1, clients // count)
    order = numpy_stream(seed, "participation", round=dealt + 1).permutation(clients)
    return sorted(order[place * count : (place + 1) * count].tolist())


def turns_of(protocol: Protocol, clients: int) -> int:
    """Most rounds of a run in which one client takes part: its turns where they are dealt out, else
    all rounds, for a draw may choose it every time."""
    count = max(1, round(protocol.participation * clients))
    if not protocol.turns or count == clients:
        return protocol.rounds
    draws = -(-protocol.rounds // protocol.stay)
    return protocol.stay * -(-draws // (clients // count))
