"""Runs with a tracker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from fedrepro.base.progress import Progress
from fedrepro.base.trackers import Tracker
from fedrepro.federated import metrics
from fedrepro.federated.rounds import Training


def scalars(curve: pd.DataFrame) -> pd.DataFrame:
    """A curve's values for a tracker: one row per round, one column per name."""
    terms = curve[curve.measure == "term"].pivot_table("value", "round", "subject")
    sent = metrics.traffic(curve)
    tested = metrics.accuracies(curve).rename(columns={"avg": "mean"})
    parts = {"accuracy": tested, "term": terms, "bytes": sent.assign(total=sent.sum(axis=1))}
    return pd.concat([part.add_prefix(f"{name}/") for name, part in parts.items()], axis=1)


def tell(tracker: Tracker, curve: pd.DataFrame) -> None:
    """Send every round of a curve to a tracker."""
    for number, values in scalars(curve).iterrows():
        tracker.round(int(str(number)), {str(k): v for k, v in values.dropna().items()})


def replay(folder: Path, track: type[Tracker], curve: pd.DataFrame) -> None:
    """Send a finished run to a tracker, if it has not received it."""
    if not (place := folder / track.name).exists():
        place.mkdir(parents=True)
        tracker = track(place)
        tell(tracker, curve)
        tracker.close()


class Tracked(Progress):
    """Passes each round on, and sends it to a tracker. After a resume the tracker begins again with
    the stored rounds, so that no round appears twice."""

    def __init__(
        self, inner: Progress, training: Training, folder: Path, track: type[Tracker]
    ) -> None:
        self._inner, self._training, self.name = inner, training, inner.name
        self._place, self._track, self._told = folder / track.name, track, 0

    def start(self, label: str, total: int, done: int) -> None:
        self._inner.start(label, total, done)
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir()
        self._tracker = self._track(self._place)
        self._tell()

    def round(self, number: int, accuracy: float) -> None:
        self._inner.round(number, accuracy)
        self._tell()

    def finish(self, text: str) -> None:
        self._inner.finish(text)
        self._tracker.close()

    def _tell(self) -> None:
        rows = self._training.log.rows
        if len(rows) > self._told:
            columns = list(metrics.CURVE_COLUMNS)
            tell(self._tracker, pd.DataFrame(rows[self._told :], columns=columns))
        self._told = len(rows)
