"""What a run has measured so far, and what the round loop itself asks of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from fedrepro.base.protocol import EarlyStop
from fedrepro.federated.metrics import ROUNDING

CURVE_COLUMNS = ("round", "measure", "subject", "domain", "split", "value")
LAST = 5  # rounds at a run's end that the rule `last5` reads
Row = tuple[int, str, str, str, str, float]


def logged(number: int, measure: str, values: Mapping[str, float]) -> list[Row]:
    """Rows of what belongs to no domain, by subject."""
    return [(number, measure, name, "", "", float(value)) for name, value in values.items()]


def term_rows(number: int, terms: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """Rows of the loss terms, by client."""
    return [
        (number, "term", term, client, "train", value)
        for client, own in terms.items()
        for term, value in own.items()
    ]


class Curve:
    """The rows of a run. subject: the network whose accuracy counts; watched: whose validation loss
    does, where it is another."""

    def __init__(self, subject: str, stop: EarlyStop | None, watched: str = "") -> None:
        self.rows: list[Row] = []
        self.accuracy = float("nan")  # mean of the last tests
        self._stop = stop
        self._read = {
            (watched or subject, "loss", "validation"): "losses",
            (subject, "accuracy", "test"): "accuracies",
        }
        # Means over domains by round.
        self._means: dict[str, dict[int, float]] = {"losses": {}, "accuracies": {}}

    def add(self, rows: Iterable[Row]) -> None:
        """Rows of further rounds."""
        found: dict[tuple[str, int], list[float]] = {}
        for row in rows:
            self.rows.append(row)
            number, measure, subject, _, split, value = row
            if kind := self._read.get((subject, measure, split)):
                found.setdefault((kind, number), []).append(value)
        for (kind, number), values in found.items():
            self._means[kind][number] = float(np.mean(values))
            if kind == "accuracies":
                self.accuracy = self._means[kind][number]

    def scored(self) -> set[int]:
        """The rounds that a score rule may read (`metrics.scores`), as far as the run has come."""
        accuracies, losses = self._means["accuracies"], self._means["losses"]
        rounds = set(sorted(accuracies)[-LAST:])
        if accuracies:
            highest = max(accuracies.values()) - ROUNDING
            rounds.add(max(r for r, value in accuracies.items() if value >= highest))
        return rounds | ({min(losses, key=losses.__getitem__)} if losses else set())

    def stopped(self, round: int) -> bool:
        """Whether the early stop has come by the end of a round."""
        losses = self._means["losses"]
        if self._stop is None or not losses:
            return False
        return round - min(losses, key=losses.__getitem__) >= self._stop.patience

    def frame(self) -> pd.DataFrame:
        """Everything, tidy."""
        return pd.DataFrame(self.rows, columns=list(CURVE_COLUMNS))
