"""A campaign as a table: what is done, under way and waiting, and the hours left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedrepro.campaign import Run, status
from fedrepro.models import build_model
from fedrepro.papers import Arm
from fedrepro.report import text

HEADER = ("paper", "experiment", "data set", "scale", "row", "seed", "state", "PFLOP", "hours left")


def table(runs: Sequence[Run], folder: Path, jobs: int) -> str:
    """One line per run and one of totals. Hours come from the speed of what was trained here."""
    said = [status(run, folder) for run in runs]
    arms = [run.study(None, None)[1] for run in runs]
    specs = [arm.protocol.data.model_dump_json() for arm in arms]
    read = {spec: known["data"] for spec, known in zip(specs, said, strict=True) if "data" in known}
    # PFLOP: counted where a run has read the same data, else as listed.
    sizes = [
        pflop(arm, *read[spec]) if spec in read else run.entry.pflop
        for run, arm, spec in zip(runs, arms, specs, strict=True)
    ]
    known = [(one, size) for one, size in zip(said, sizes, strict=True) if size is not None]
    hours = sum(one.get("seconds", 0.0) for one, _ in known) / 3600
    # The trials of a tuned setting count as the run's rounds.
    done = sum(size * _share(one, "trained") for one, size in known)
    speed = done / hours if hours and done else None
    lines, total = [], 0.0
    for run, one, size in zip(runs, said, sizes, strict=True):
        e, finished = run.entry, one["state"] == "done"
        left = 0.0 if finished else None if size is None else size * (1 - _share(one, "round"))
        total += left or 0.0
        ahead = None if speed is None or left is None else left / speed
        words = (e.paper, e.experiment, e.dataset, e.scale, run.row, str(run.seed))
        lines.append((*words, _state(one), _number(size), _number(ahead)))
    states = [one["state"] for one in said]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    last = f"{len(runs)} runs: {counts}; {_number(total)} PFLOP left"
    if speed is not None:
        last += f", {_number(total / speed / jobs)} hours of {jobs} processes at {_number(speed)} "
        last += "PFLOP an hour each, as measured here"
    return f"{text.aligned(HEADER, lines)}\n{last}"


def _state(said: dict[str, Any]) -> str:
    at = f" (round {said.get('round', 0)} of {said.get('rounds') or '?'})"
    shown = said["state"] == "under way" or (said["state"] == "waiting" and said.get("round"))
    return str(said["state"]) + (at if shown else "")


def _share(said: dict[str, Any], rounds: str) -> float:
    """The rounds trained here, or those that are over, of all."""
    return float(said[rounds] / said["rounds"]) if said.get("rounds") else 0.0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def pflop(arm: Arm, images: int, classes: int, size: int) -> float:
    """An estimate of a run's 1e15 floating point operations: three forward passes of the protocol's
    network for each of the clients' images and epoch. Tests, the server's work, what a method adds
    and the trials of a tuned setting are left out. size: as a federation's."""
    p = arm.protocol
    passes = 3 * images * p.participation * p.local_epochs * p.rounds
    embedded = p.data.encoder is not None
    return _forward(p.model, json.dumps(p.model_args), classes, size, embedded) * passes / 1e15


@lru_cache
def _forward(model: str, given: str, classes: int, size: int, embedded: bool) -> float:
    """Operations of one image's forward pass."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = build_model(model, classes, size, **json.loads(given)).eval()
        network(torch.zeros((1, size) if embedded else (1, 3, size, size)))  # shapes, no numbers
    return float(counter.get_total_flops())
