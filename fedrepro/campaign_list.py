"""A campaign's list: its runs, the progress of each, and the hours left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedrepro.base import files
from fedrepro.base.errors import FedReproError, choices, first_mistake
from fedrepro.base.protocol import Scale

if TYPE_CHECKING:
    from fedrepro.papers import Arm

FOLDER = "campaign"  # in the runs folder: the progress of each run
HEADER = ("paper", "experiment", "data set", "scale", "row", "seed", "state", "PFLOP", "hours left")


class Entry(BaseModel):
    """Rows of one experiment, for some seeds: all rows of a seed, then those of the next seed.

    methods: rows by label; None: all. changes: as in `Study`. pflop: a run's floating point
    operations in 1e15, shown until some run has read the data and it is counted. note: for readers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    paper: str
    experiment: str
    dataset: str
    scale: Scale = "paper"
    methods: tuple[str, ...] | None = None
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (0,)
    changes: dict[str, Any] = {}
    pflop: float | None = Field(None, gt=0)
    note: str = ""


@dataclass(frozen=True)
class Run:
    """One row of an entry for one seed. key: depends only on what is trained."""

    entry: Entry
    row: str
    seed: int
    key: str = ""

    def __str__(self) -> str:
        e = self.entry
        return f"{e.paper} {e.experiment} {e.dataset} {e.scale}, {self.row}, seed {self.seed}"

    def study(self, runs: Path | None, root: Path | None, progress: Any = None) -> tuple[Any, Any]:
        """The study that trains it, and its arm there."""
        from fedrepro.quantities.paper_run import study

        e = self.entry
        where = {"runs_dir": runs, "data_root": root, "changes": e.changes, "device": "cpu"}
        asked = study(e.paper, e.dataset, e.scale, self.seed, progress=progress, **where)
        return asked, next(arm for arm in asked.arms(e.experiment) if arm.label == self.row)


def read(path: Path) -> list[Run]:
    """The runs of a list, each once. FedReproError names the first wrong entry."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        flat = " ".join(str(error).split())
        raise FedReproError(f"{path} cannot be read ({flat}); correct it or --file") from None
    if not isinstance(raw, list):
        raise FedReproError(f"{path} has no list; write one entry per line, `- {{paper: ...}}`")
    runs: dict[str, Run] = {}
    for number, given in enumerate(raw, start=1):
        try:
            for run in _runs(Entry.model_validate(given)):
                runs.setdefault(run.key, run)
        except ValidationError as error:
            raise FedReproError(f"{path.name}, entry {number}, {first_mistake(error)}") from None
        except FedReproError as error:
            raise FedReproError(f"{path.name}, entry {number}: {error}") from None
    return list(runs.values())


def _runs(entry: Entry) -> Iterator[Run]:
    from fedrepro.papers.registry import load

    paper = load(entry.paper)
    rows = [arm.label for arm in paper.arms(entry.experiment, entry.dataset, entry.scale)]
    if not rows:
        raise FedReproError(f"{entry.experiment} trains nothing; remove it")
    for row in entry.methods or ():
        if row not in rows:
            raise FedReproError(f"no row {row!r}; choose from {choices(row, rows)}")
    for seed in entry.seeds:
        for row in entry.methods or rows:
            yield replace(run := Run(entry, row, seed), key=_key(run))


def _key(run: Run) -> str:
    from fedrepro import methods
    from fedrepro.records import RunSpec

    asked, arm = run.study(None, None)
    experiment = asked.paper.experiment(run.entry.experiment)
    config = RunSpec(methods.create(arm.method, **arm.fields), arm.protocol, run.seed).config()
    nameless = replace(arm, label="", row="", column=None, alternative=False)
    # The kind decides what else is measured, such as leakage.
    what = repr((json.dumps(config), nameless, experiment.tuning, experiment.kind == "leakage"))
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def status(run: Run, runs: Path) -> dict[str, Any]:
    """A run's last status: state, round, rounds, trained and seconds (here), and more."""
    path = runs / FOLDER / f"{run.key}.json"
    said = files.read_json(path) if path.exists() else {"state": "waiting"}
    gone = said["state"] == "done" and not _kept(said["run_id"], runs)
    if gone or (said["state"] == "under way" and not _alive(*said["process"])):
        return said | {"state": "waiting"}
    return said


def _kept(run_id: str, runs: Path) -> bool:
    """Whether a finished run is stored, in its own folder or packed."""
    from fedrepro.records.packed import Pack

    return (runs / run_id / "done").exists() or run_id in Pack(runs).runs


def _alive(pid: int, born: float) -> bool:
    try:
        worker = psutil.Process(pid)
        ended = worker.status() == psutil.STATUS_ZOMBIE  # nobody has fetched its exit status
        return not ended and abs(worker.create_time() - born) < 2
    except psutil.Error:
        return False


# The table.


def table(runs: Sequence[Run], folder: Path, jobs: int) -> str:
    """One line per run and one of totals. Hours come from the speed of the runs trained here."""
    from fedrepro.report.text import aligned

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
        last += "PFLOP per hour each, as measured here"
    return f"{aligned(HEADER, lines)}\n{last}"


def _state(said: dict[str, Any]) -> str:
    at = f" (round {said.get('round', 0)} of {said.get('rounds') or '?'})"
    shown = said["state"] == "under way" or (said["state"] == "waiting" and said.get("round"))
    return str(said["state"]) + (at if shown else "")


def _share(said: dict[str, Any], rounds: str) -> float:
    """The share of the rounds that was trained here, or that is done."""
    return float(said[rounds] / said["rounds"]) if said.get("rounds") else 0.0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def pflop(arm: Arm, images: int, classes: int, size: int) -> float:
    """An estimate of a run's 1e15 floating point operations: three forward passes of the protocol's
    network for each of the clients' images and epochs. Tests, the server's work, a method's extra
    work and the trials of a tuned setting are left out. size: as in `Federation`."""
    p = arm.protocol
    passes = 3 * images * p.participation * p.local_epochs * p.rounds
    embedded = p.data.encoder is not None
    return _forward(p.model, json.dumps(p.model_args), classes, size, embedded) * passes / 1e15


@lru_cache
def _forward(model: str, given: str, classes: int, size: int, embedded: bool) -> float:
    """Operations of one image's forward pass."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from fedrepro.models import build_model

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = build_model(model, classes, size, **json.loads(given)).eval()
        network(torch.zeros((1, size) if embedded else (1, 3, size, size)))  # shapes, no numbers
    return float(counter.get_total_flops())
