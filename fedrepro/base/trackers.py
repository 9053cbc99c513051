"""Trackers: told of every round of a run, in a folder of their own beside its record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from fedrepro.base.errors import FedReproError, choices
from fedrepro.base.places import TRACK


class Tracker:
    """What a run is followed with; a subclass, with a name of its own, may be given as `track`.

    folder: its own, empty. A run that goes on tells the rounds it has already been through again.
    """

    name = ""

    def __init__(self, folder: Path) -> None: ...

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """A round is over: accuracy in percent by domain and their mean, loss terms as means over
        clients, bytes by kind and their total."""

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
    """A tracker by its name, that of the environment where none is given; None where neither is.
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
