"""What a run has measured so far, and what the round loop itself asks of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from fedrepro.metrics import ROUNDING
from fedrepro.protocol import EarlyStop

CURVE_COLUMNS = ("round", "measure", "subject", "domain", "split", "value")
LAST = 5  # rounds at a run's end that the rule `last5` reads
Row = tuple[int, str, str, str, str, float]


class Curve:
    """The rows of a run. subject: the network whose accuracy and validation loss count."""

    def __init__(self, subject: str, stop: EarlyStop | None) -> None:
        self.rows: list[Row] = []
        self.accuracy = float("nan")  # mean of the last tests
        self._subject, self._stop = subject, stop
        self._losses: dict[int, float] = {}  # of the held-out images, by round
        self._accuracies: dict[int, float] = {}  # of the tests, by round

    def add(self, rows: Iterable[Row]) -> None:
        """Rows of further rounds."""
        losses: dict[int, list[float]] = {}
        accuracies: dict[int, list[float]] = {}
        for row in rows:
            self.rows.append(row)
            number, measure, subject, _, split, value = row
            if subject == self._subject and (measure, split) == ("loss", "validation"):
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
