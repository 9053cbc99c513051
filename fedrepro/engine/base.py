"""What the round loop asks of an engine."""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from typing import Protocol as Interface

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedrepro.base.errors import Diverged
from fedrepro.base.protocol import Augmentation
from fedrepro.base.rng import Purpose, torch_stream
from fedrepro.data.federation import Samples
from fedrepro.methods.base import Method, Phase, Shots
from fedrepro.methods.messages import Message


@dataclass(frozen=True)
class Job:
    """Local training of one client in one round.

    state: every tensor of the network at the start (read, never written).
    optimizer: what the optimiser remembers, where it is kept between rounds (`optimizers.slots`).
    stream: the purpose whose random streams order the batches. batch_size: the protocol's where
    None.
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
    batch_size: int | None = None

    def of_few(self, shots: Shots | None) -> Job:
        """The same training on a few images of each class; on all of them where None."""
        if shots is None:
            return self
        labels = self.samples.labels
        place = F.one_hot(labels).cumsum(dim=0).gather(1, labels[:, None])[:, 0]  # in its class
        few = place <= shots.per_class
        samples = Samples(self.samples.images[few], labels[few])
        return replace(self, samples=samples, batch_size=shots.batch_size)


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


# Positions of jobs and their results as they become ready. Who leaves early closes it: that ends
# what is under way.
Results = abc.Generator[tuple[int, Trained], None, None]


class Engine(Interface):
    """Trains and runs networks given as named tensors."""

    name: str
    format: torch.memory_format  # that images and weights lie in

    def train(self, method: Method, jobs: Sequence[Job]) -> Results:
        """Train each job's network; results come in any order, so that the caller need not hold
        all of them."""

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

    def evaluate(
        self, state: Mapping[str, Tensor], samples: Samples
    ) -> tuple[float, float, Tensor]:
        """Accuracy in percent, mean cross-entropy and predicted classes (m,) of un-augmented
        samples; the classes on the host, uint8 where they are at most 256."""

    def bn_statistics(self, state: Mapping[str, Tensor], samples: Samples) -> dict[str, Tensor]:
        """BatchNorm running statistics re-estimated as plain averages over one pass."""


def in_order(results: Iterable[tuple[int, Trained]]) -> list[Trained]:
    """All results by position."""
    return [trained for _, trained in sorted(results, key=lambda pair: pair[0])]


def must_be_finite(method: Method, job: Job, terms: Mapping[str, float]) -> None:
    """Diverged where a loss term is not: all later rounds would be lost on it."""
    broken = [f"{term} = {value}" for term, value in terms.items() if not math.isfinite(value)]
    if broken:
        raise Diverged(
            f"{method.name}, seed {job.seed}: the loss of client {job.client} in round {job.round} "
            f"is not finite ({', '.join(broken)}): training diverged; lower the learning rate, or "
            "see what the method's fields feed it",
            job.seed,
            job.round,
        )
