"""Named random streams.
Every draw of a run comes from a stream with the key (seed, purpose, client, round). So adding a
client, a method or an evaluation never changes the other draws, and a resumed round has the same
draws as an uninterrupted one. Nothing reads a global generator. A client's further trainings in a
round (second network, adaptation) have batches of their own, but the first one's augmentation and
draws of the loss."""

import hashlib
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch

from fedrepro.base.errors import need

Purpose = Literal[
    "split", "allocation", "initialisation", "batches", "augmentation", "participation", "method",
    "draws", "dropout", "adaptation", "twin", "server", "generation", "figure",
]  # fmt: skip


def stream_seed(
    seed: int, purpose: Purpose, client: int | None = None, round: int | None = None
) -> int:
    """A 63-bit seed for one stream; equal keys give equal seeds on every machine. torch's CPU
    generator uses its low 32 bits."""
    key = f"{seed}|{purpose}|{client}|{round}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def torch_stream(
    seed: int, purpose: Purpose, client: int | None = None, round: int | None = None
) -> torch.Generator:
    """A CPU generator at the start of the stream (draws are small and move to the device)."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose, client, round))


def numpy_stream(
    seed: int, purpose: Purpose, client: int | None = None, round: int | None = None
) -> np.random.Generator:
    """A numpy generator at the start of the stream."""
    return np.random.default_rng(stream_seed(seed, purpose, client, round))


def global_state() -> bytes:
    """The state of torch's and numpy's global generators; it changes with every draw. Not of
    Python's: imports of other libraries draw from it."""
    return pickle.dumps((torch.get_rng_state().numpy(), np.random.get_state()))


def must_be_untouched(before: bytes, method: str) -> None:
    """FedReproError: since this `global_state` a method has drawn from a global generator."""
    why = "which a resumed run does not repeat; use client.generator, base.rng, or draw's generator"
    own = f"{method} draws from torch's global generator or numpy's, {why}"
    need(before == global_state(), own)


@contextmanager
def seeded_modules(
    seed: int,
    round: int | None = None,
    purpose: Purpose = "initialisation",
    client: int | None = None,
) -> Iterator[None]:
    """Build torch modules inside, or train one with dropout: they read the global generator, which
    is set to the stream here and put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, purpose, client, round))
        yield
