"""Trackers: receive every round of a run, and write into their own folder in its record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from fedrepro.base.errors import FedReproError, choices
from fedrepro.base.places import TRACK


class Tracker:
    """Base class for trackers. A subclass with its own `name` may be passed as `track`.

    folder: its own, empty. A resumed run sends its earlier rounds again.
    """

    name = ""

    def __init__(self, folder: Path) -> None: ...

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Receive a finished round: accuracy in percent by domain and their mean, loss terms as
        means over clients, bytes by kind and their total."""

    def close(self) -> None: ...


class TensorBoard(Tracker):
    """Event files: `tensorboard --logdir runs`."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


TRACKERS = {tracker.name: tracker for tracker in (TensorBoard,)}


def resolve(track: str | type[Tracker]) -> type[Tracker] | None:
    """The tracker with a name, by default the environment's; None if neither is given.
    FedReproError: it is not known, or not installed."""
    track = track or os.environ.get(TRACK, "")
    if not isinstance(track, str):
        return track
    if not track:
        return None
    if track not in TRACKERS:
        raise FedReproError(f"no tracker {track!r}; choose from {choices(track, TRACKERS)}")
    if find_spec(track) is None:
        raise FedReproError(f"{track} is not installed; `pip install 'fedrepro[{track}]'`")
    return TRACKERS[track]
