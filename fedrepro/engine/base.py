"""What the round loop asks of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from typing import Protocol as Interface

from torch import Generator, Tensor

from fedrepro.data.federation import Samples
from fedrepro.messages import Message
from fedrepro.methods.base import Method, Phase
from fedrepro.protocol import Augmentation
from fedrepro.rng import Purpose, torch_stream


@dataclass(frozen=True)
class Job:
    """Local training of one client in one round.

    state: every tensor of the network at the start (read, never written; it may lie in host memory
    or in a mapped file).
    optimizer: momentum by parameter name where the method keeps it between rounds.
    stream: the purpose whose random streams order the batches.
    """

    client: int
    round: int
    seed: int
    state: Mapping[str, Tensor]
    samples: Samples
    received: Message
    phases: Sequence[Phase]
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    stream: Purpose = "batches"


class Streams(NamedTuple):
    """A job's random streams: batch order, augmentation, and what the method's loss draws."""

    order: Generator
    augmentation: Generator
    draws: Generator

    @classmethod
    def of(cls, job: Job) -> Streams:
        keys: tuple[Purpose, ...] = (job.stream, "augmentation", "draws")
        return cls(*(torch_stream(job.seed, key, job.client, job.round) for key in keys))


@dataclass(frozen=True)
class Trained:
    """state and optimizer after training; terms: each loss term's mean over all samples seen."""

    state: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    terms: dict[str, float]


class Engine(Interface):
    """Trains and runs networks given as named tensors."""

    name: str

    def train(self, method: Method, jobs: Sequence[Job]) -> Iterator[tuple[int, Trained]]:
        """Train each job's network; positions and results as they become ready, in any order, so
        that the caller need not hold all of them."""

    def features(
        self,
        state: Mapping[str, Tensor],
        samples: Samples,
        training: bool = False,
        augmentation: Augmentation | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Features (n, d) on the run's device, without gradients, of un-augmented samples unless
        an augmentation and a generator to draw it from are given."""

    def evaluate(self, state: Mapping[str, Tensor], samples: Samples) -> tuple[float, float]:
        """Accuracy in percent and mean cross-entropy of un-augmented samples."""

    def bn_statistics(self, state: Mapping[str, Tensor], samples: Samples) -> dict[str, Tensor]:
        """BatchNorm running statistics re-estimated as plain averages over one pass."""


def in_order(results: Iterable[tuple[int, Trained]]) -> list[Trained]:
    """All results by position."""
    return [trained for _, trained in sorted(results, key=lambda pair: pair[0])]
