"""What a run has measured so far, and what the round loop itself asks of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from torch import Tensor

from fedrepro.base.protocol import EarlyStop
from fedrepro.engine import Job, Trained
from fedrepro.federated.aggregation import RunningAverage
from fedrepro.federated.clients import Client, Groups
from fedrepro.federated.metrics import ROUNDING
from fedrepro.methods.base import Upload
from fedrepro.methods.messages import Message, count_bytes

CURVE_COLUMNS = ("round", "measure", "subject", "domain", "split", "value")
LAST = 5  # rounds at a run's end that the rule `last5` reads
Row = tuple[int, str, str, str, str, float]


class Curve:
    """The rows of a run. subject: the network whose accuracy counts; watched: whose validation loss
    does, where it is another."""

    def __init__(self, subject: str, stop: EarlyStop | None, watched: str = "") -> None:
        self.rows: list[Row] = []
        self.accuracy = float("nan")  # mean of the last tests
        self._subject, self._stop, self._watched = subject, stop, watched or subject
        self._losses: dict[int, float] = {}  # of the held-out images, by round
        self._accuracies: dict[int, float] = {}  # of the tests, by round

    def add(self, rows: Iterable[Row]) -> None:
        """Rows of further rounds."""
        losses: dict[int, list[float]] = {}
        accuracies: dict[int, list[float]] = {}
        for row in rows:
            self.rows.append(row)
            number, measure, subject, _, split, value = row
            if subject == self._watched and (measure, split) == ("loss", "validation"):
                losses.setdefault(number, []).append(value)
            if subject == self._subject and (measure, split) == ("accuracy", "test"):
                accuracies.setdefault(number, []).append(value)
        self._losses |= {number: float(np.mean(values)) for number, values in losses.items()}
        self._accuracies |= {number: float(np.mean(found)) for number, found in accuracies.items()}
        if accuracies:
            self.accuracy = self._accuracies[max(accuracies)]

    def scored(self) -> set[int]:
        """The rounds that a score rule may read (`metrics.scores`), as far as the run has come."""
        rounds = set(sorted(self._accuracies)[-LAST:])
        if self._accuracies:
            highest = max(self._accuracies.values()) - ROUNDING
            rounds.add(max(r for r, value in self._accuracies.items() if value >= highest))
        if self._losses:
            rounds.add(min(self._losses, key=self._losses.__getitem__))
        return rounds

    def stopped(self, round: int) -> bool:
        """Whether the early stop has come by the end of a round."""
        if self._stop is None or not self._losses:
            return False
        best = min(self._losses, key=self._losses.__getitem__)
        return round - best >= self._stop.patience

    def frame(self) -> pd.DataFrame:
        """Everything, tidy."""
        return pd.DataFrame(self.rows, columns=list(CURVE_COLUMNS))


@dataclass
class Round:
    """A round in the making: who takes part, and what has come back. By client: its position among
    those chosen."""

    number: int
    chosen: list[Client]
    average: RunningAverage
    downs: list[Message] = field(default_factory=list)
    weights: Sequence[float] = ()
    jobs: list[Job] = field(default_factory=list)
    uploads: dict[int, Upload] = field(default_factory=dict)
    after: dict[int, Groups] = field(default_factory=dict)
    twins: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    clock: dict[str, float] = field(default_factory=dict)
    tested: list[Row] = field(default_factory=list)
    terms: list[Row] = field(default_factory=list)
    predicted: dict[str, Tensor] = field(default_factory=dict)

    def add_terms(self, client: Client, trained: Trained, prefix: str = "") -> None:
        for term, value in trained.terms.items():
            name = client.data.name
            self.terms.append((self.number, "term", prefix + term, name, "train", value))

    def rows(self, server: Mapping[str, float]) -> list[Row]:
        """What the curve keeps of the round, whatever order clients came back in."""
        order = {client.data.name: i for i, client in enumerate(self.chosen)}
        rows = self.tested + sorted(self.terms, key=lambda row: order[row[3]])
        rows += [(self.number, "server", k, "", "", v) for k, v in server.items()]
        for way, counted in (("down", count_bytes(self.downs)), ("up", self.sent)):
            named = {f"{way}/{kind}": float(size) for kind, size in counted.items()}
            rows += [(self.number, "bytes", k, "", "", v) for k, v in named.items()]
        return rows + [(self.number, "seconds", k, "", "", v) for k, v in self.clock.items()]
