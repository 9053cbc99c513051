"""What the round loop asks of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol as Interface

from torch import Tensor

from fedrepro.data.federation import Samples
from fedrepro.messages import Message
from fedrepro.methods.base import Method, Phase
from fedrepro.rng import Purpose


@dataclass(frozen=True)
class Job:
    """Local training of one client in one round.

    state: every tensor of the network at the start (read, never written).
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


@dataclass(frozen=True)
class Trained:
    """state and optimizer after training; terms: each loss term's mean over all samples seen."""

    state: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    terms: dict[str, float]


class Engine(Interface):
    """Trains and runs networks given as named tensors."""

    name: str

    def train(self, method: Method, jobs: Sequence[Job]) -> list[Trained]:
        """Train each job's network; results in the jobs' order."""

    def features(self, state: Mapping[str, Tensor], samples: Samples, training: bool) -> Tensor:
        """Features (n, d) of un-augmented samples, on the run's device, without gradients."""

    def evaluate(self, state: Mapping[str, Tensor], samples: Samples) -> tuple[float, float]:
        """Accuracy in percent and mean cross-entropy of un-augmented samples."""

    def bn_statistics(self, state: Mapping[str, Tensor], samples: Samples) -> dict[str, Tensor]:
        """BatchNorm running statistics re-estimated as plain averages over one pass."""
