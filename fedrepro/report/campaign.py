"""A campaign as a table: what is done, under way and waiting, and the hours left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedrepro.models import build_model
from fedrepro.papers import Arm
from fedrepro.report import text

if TYPE_CHECKING:
    from fedrepro.campaign import Run

HEADER = ("paper", "experiment", "data set", "scale", "row", "seed", "state", "PFLOP", "hours left")


def table(runs: Sequence[Run], said: Mapping[str, dict[str, Any]], jobs: int) -> str:
    """One line per run and one of totals. Hours come from the speed of what was trained here.

    said: `campaign.status` of each run by its key."""
    sizes = _sizes(runs, said)
    hours = sum(said[run.key].get("seconds", 0.0) for run in runs if sizes[run.key]) / 3600
    trained = sum(_trained(said[run.key], sizes[run.key] or 0.0) for run in runs)
    speed = trained / hours if hours and trained else None
    left = {run.key: _left(said[run.key], sizes[run.key]) for run in runs}
    lines = []
    for run in runs:
        e, size, rest = run.entry, sizes[run.key], left[run.key]
        to_go = None if speed is None or rest is None else rest / speed
        words = (e.paper, e.experiment, e.dataset, e.scale, run.row, str(run.seed))
        lines.append((*words, _state(said[run.key]), _number(size), _number(to_go)))
    states = [said[run.key]["state"] for run in runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    rest = sum(left[key] or 0.0 for key in left)
    total = f"{len(runs)} runs: {counts}; {_number(rest)} PFLOP left"
    if speed is not None:
        total += f", {_number(rest / speed / jobs)} hours of {jobs} processes at {_number(speed)} "
        total += "PFLOP an hour each, as measured here"
    return f"{text.aligned(HEADER, lines)}\n{total}"


def _state(said: dict[str, Any]) -> str:
    at = f"round {said.get('round', 0)} of {said.get('rounds') or '?'}"
    if said["state"] == "under way":
        return f"under way ({at})"
    return f"waiting ({at})" if said["state"] == "waiting" and said.get("round") else said["state"]


def _trained(said: dict[str, Any], size: float) -> float:
    """PFLOP of the rounds trained here; those of a tuned setting's trials count as the run's."""
    return size * said["trained"] / said["rounds"] if said.get("rounds") else 0.0


def _left(said: dict[str, Any], size: float | None) -> float | None:
    if said["state"] == "done" or size is None:
        return 0.0 if said["state"] == "done" else None
    return size * (1 - said["round"] / said["rounds"]) if said.get("rounds") else size


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _sizes(runs: Sequence[Run], said: Mapping[str, Any]) -> dict[str, float | None]:
    """PFLOP by key: counted where a run has read the same data, else as listed."""
    arms = {run.key: run.study(None, None)[1] for run in runs}
    specs = {key: arm.protocol.data.model_dump_json() for key, arm in arms.items()}
    read = {specs[key]: known["data"] for key, known in said.items() if "data" in known}
    return {
        run.key: pflop(arms[run.key], *read[specs[run.key]])
        if specs[run.key] in read
        else run.entry.pflop
        for run in runs
    }


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
