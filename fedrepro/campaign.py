"""Long runs by priority, in processes with one thread each, stopped and resumed at any time; on a
GPU if there is one. A worker, a process of its own, trains one run of a list and writes its
progress into `<runs>/campaign/<key>.json`. The record is where a sweep looks for it."""

import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import psutil
import torch
import yaml
from filelock import FileLock, Timeout
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from fedrepro.base import files
from fedrepro.base.errors import Diverged, FedReproError, Missing, first_mistake, need, one_line
from fedrepro.base.progress import Progress
from fedrepro.base.protocol import Scale
from fedrepro.data import folders
from fedrepro.federated import metrics
from fedrepro.papers import Arm, Question, load
from fedrepro.quantities.base import Study, get, study
from fedrepro.quantities.costs import pflop, pflop_unread
from fedrepro.records import Store, federation_of
from fedrepro.records.packed import holds
from fedrepro.records.store import DIVERGED
from fedrepro.report.text import aligned

FOLDER = "campaign"  # in the runs folder: the progress of each run
GRACE = 120.0  # seconds a stopped worker has to save its last round
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
NOTHING = {"round": 0, "rounds": 0, "trained": 0, "seconds": 0.0}  # of a run's status, at first
STOPS = (signal.SIGINT, signal.SIGTERM)
ENDED = ("done", "diverged")  # a run that diverged would do so again
HEADER = ("paper", "experiment", "data set", "scale", "row", "seed", "state", "PFLOP", "hours left")


class Entry(BaseModel, frozen=True, extra="forbid"):
    """Rows of one experiment: all of one seed, then those of the next. methods: labels of rows or
    names of methods, also of your own; None for all rows. changes: as in `Study`. pflop: a run's
    floating point operations in 1e15, shown until some run has read the data and it is counted.
    note: for readers."""

    paper: Annotated[str, StringConstraints(to_lower=True)]
    experiment: str
    dataset: str
    scale: Scale = "paper"
    methods: tuple[str, ...] | None = Field(None, min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0, strict=True)], ...] = Field((0,), min_length=1)
    changes: dict[str, Any] = {}
    pflop: float | None = Field(None, gt=0, allow_inf_nan=False)
    note: str = ""

    @property
    def place(self) -> tuple[str, str, str, str]:
        return self.paper, self.experiment, self.dataset, self.scale


@dataclass(frozen=True)
class Run:
    """One row of an entry for one seed, or one trial of a value of its tuned setting."""

    entry: Entry
    row: str
    seed: int
    arm: Arm
    trial: str = ""
    pflop: float | None = None

    @property
    def name(self) -> str:
        return self.row + f", trial {self.trial}" * bool(self.trial)

    def __str__(self) -> str:
        return f"{' '.join(self.entry.place)}, {self.name}, seed {self.seed}"

    def study(self, runs: Path | None = None, root: Path | None = None, **how: Any) -> Study:
        """The study that trains it."""
        paper, _, dataset, scale = self.entry.place
        how["changes"] = self.entry.changes
        return study(paper, dataset, scale, self.seed, runs, root, **how)

    @cached_property
    def key(self) -> str:
        """It depends only on what is trained."""
        asked = self.study()
        experiment = asked.paper.experiment(self.entry.experiment)
        config = json.dumps(asked.spec(self.arm).config())
        nameless = replace(self.arm, label="", row="", column=None, alternative=False)
        # The kind decides what else is measured, such as leakage.
        what = repr((config, nameless, self.arm.tuning, experiment.kind == "leakage"))
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def packed(self, runs: Path) -> bool:
        """Whether it is in the packed records of a folder. If a setting is tuned, a run with any of
        the values is: only the best value is trained to the end. Never a run on own images: its
        configuration does not say which."""
        asked, rates = self.study(), list(self.arm.trials())
        measured = get(asked.paper.experiment(self.entry.experiment).kind).probe
        probe = "" if self.trial or measured is None else measured.name
        own_images = folders.kind(self.entry.dataset) != self.entry.dataset
        constants = (one for value, tuned, _ in rates for one in tuned.constants(value))
        ends = [tuned for _, tuned, _ in (*rates, *constants)] or [self.arm]
        return not own_images and any(holds(runs, asked.spec(arm).config(), probe) for arm in ends)


def read(path: Path) -> list[Run]:
    """The runs of a list, each once. FedReproError names the first wrong entry."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        flat = " ".join(str(error).split())
        raise FedReproError(f"{path} cannot be read ({flat}); correct it or --file") from None
    listed = isinstance(raw, list) and raw
    need(listed, f"{path} has no list; write one entry per line, `- {{paper: ...}}`")
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
    paper, name, dataset, scale = entry.place
    every = study(paper, dataset, scale, only=entry.methods, changes=entry.changes)
    every.chosen(name)  # FedReproError: it has no such row
    every.announce([name])  # FedReproError: a row cannot run
    need(every.arms(name), f"{name} trains nothing; remove it")
    for seed, row in itertools.product(entry.seeds, entry.methods or (None,)):
        only = None if row is None else (row,)
        asked = Question(load(paper), dataset, scale, seed, only, entry.changes)
        for arm in asked.arms(name):
            for value, whole, tried in arm.trials():
                own = seed if tried.seed is None else tried.seed
                share = tried.protocol.rounds / whole.protocol.rounds
                yield Run(entry, arm.label, own, tried, value, entry.pflop and share * entry.pflop)
            yield Run(entry, arm.label, seed, arm, pflop=entry.pflop)


def status(run: Run, runs: Path) -> dict[str, Any]:
    """A run's last status: state, round, rounds, trained and seconds (here), and more."""
    path = runs / FOLDER / f"{run.key}.json"
    if not path.exists():
        return NOTHING | {"state": "done" if run.packed(runs) else "waiting"}
    said = NOTHING | files.read_json(path)
    if said["state"] == "done" and Store(runs).find(said["run_id"]) is None:
        return NOTHING | {"state": "waiting"}
    if said["state"] == "diverged" and not (runs / said.get("run_id", "") / DIVERGED).exists():
        return NOTHING | {"state": "waiting"}  # its folder was deleted, to train it again
    if said["state"] == "under way" and not _alive(*said["process"]):
        return said | {"state": "waiting"}
    return said


def _alive(pid: int, born: float) -> bool:
    with contextlib.suppress(psutil.Error):
        worker = psutil.Process(pid)
        ended = worker.status() == psutil.STATUS_ZOMBIE  # nobody has fetched its exit status
        return not ended and abs(_born(worker) - born) < 2
    return False


def _born(process: psutil.Process) -> float:
    """Seconds from the machine's start to a process's: a clock that is set moves both alike."""
    return -psutil.boot_time() + process.create_time()


def table(runs: Sequence[Run], folder: Path, jobs: int) -> str:
    """One line per run and one of totals. Hours come from the speed of the runs trained here."""
    said = [status(run, folder) for run in runs]
    data = [run.arm.protocol.data.model_dump_json() for run in runs]
    read = {spec: one["data"] for spec, one in zip(data, said, strict=True) if "data" in one}
    # PFLOP: counted where a run has read the same data or their number is stated, else as listed;
    # NaN: not known.
    counted = [
        pflop(run.arm.protocol, *read[spec])
        if spec in read
        else pflop_unread(run.arm.protocol, ()) or run.pflop
        for run, spec in zip(runs, data, strict=True)
    ]
    frame, sizes = pd.DataFrame(said), pd.Series(counted, dtype=float)
    rounds = frame.rounds.clip(lower=1)
    left = (sizes * (1 - frame["round"] / rounds)).mask(frame.state.isin(ENDED), 0.0)
    hours, done = frame.seconds[sizes.notna()].sum() / 3600, (sizes * frame.trained / rounds).sum()
    speed = done / hours if hours and done else math.nan
    lines = [
        (*run.entry.place, run.name, str(run.seed), _state(one), _number(size), _number(ahead))
        for run, one, size, ahead in zip(runs, said, sizes, left / speed, strict=True)
    ]
    counts = Counter(frame.state)
    last = f"{len(runs)} runs: {', '.join(f'{n} {state}' for state, n in counts.items())}; "
    total, least = left.sum(), "at least " * bool(left.isna().any())
    last += f"{least}{_number(total)} PFLOP left" if total or not least else "PFLOP left: unknown"
    if speed > 0 and (total or not least):
        last += f", {least}{_number(total / speed / jobs)} hours of {jobs} processes at "
        last += f"{_number(speed)} PFLOP per hour each, as measured here"
    return f"{aligned(HEADER, lines)}\n{last}"


def _state(said: dict[str, Any]) -> str:
    shown = said["state"] == "under way" or (said["state"] == "waiting" and said["round"])
    return f"{said['state']}" + f" (round {said['round']} of {said['rounds'] or '?'})" * bool(shown)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


# The parent.


def train(
    todo: Sequence[Run],
    runs: Path,
    root: Path | None,
    jobs: int,
    minutes: float | None,
    say: Callable[[str], None],
) -> int:
    """Train the runs that are not done, in the order of the list, and return how many failed. An
    interrupt and the end of the minutes stop the workers; they save first."""
    folder = files.make_folder(runs / FOLDER, "name a writable folder with --runs")
    try:
        (lock := FileLock(folder / ".lock")).acquire(timeout=0)
    except Timeout:
        advice = "wait for its end or name a folder with --runs"
        raise FedReproError(f"another campaign trains into {runs}; {advice}") from None
    os.environ |= dict.fromkeys(ONE_THREAD, "1")  # read when a worker imports numpy and torch
    end = time.monotonic() + (math.inf if minutes is None else 60 * minutes)
    waiting = [run for run in todo if status(run, runs)["state"] not in ENDED]
    say(f"{len(todo) - len(waiting)} of {len(todo)} runs are done, {len(waiting)} to do")
    busy, failed, signals = dict[SpawnProcess, Run](), 0, list[int]()
    with contextlib.ExitStack() as after:
        for one in STOPS:  # raised while a worker starts, it would leave that worker running
            before = signal.signal(one, lambda number, _: signals.append(number))
            after.callback(signal.signal, one, before)
        after.callback(lock.release)
        after.callback(_stop, busy)
        while (waiting or busy) and time.monotonic() < end and not signals:
            while waiting and len(busy) < jobs:
                # The first whose tuning trials are all trained, else the first.
                taken = [(run.entry, run.row) for run in busy.values() if run.trial]
                free = (run for run in waiting if run.trial or (run.entry, run.row) not in taken)
                run = next(free, waiting[0])
                waiting.remove(run)
                worker = SpawnProcess(target=_main, args=(run, runs, root))
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # a worker gets no Ctrl-C
                worker.start()
                busy[worker] = run
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            time.sleep(0.1)
            for child in [child for child in busy if not child.is_alive()]:
                failed += _ended(busy.pop(child), runs, child.exitcode, say)
    if signals:
        raise KeyboardInterrupt
    for child, run in busy.items():  # the minutes are over
        if status(run, runs)["state"] != "waiting":
            failed += _ended(run, runs, child.exitcode, say)
    if waiting or busy:
        say("the minutes are over: finished rounds are kept; run the same command to continue")
    return failed


def _stop(workers: Collection[SpawnProcess]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(GRACE)
        worker.kill()
        worker.join()


def _ended(run: Run, runs: Path, code: int | None, say: Callable[[str], None]) -> int:
    """Print in one line how a run ended. Returns 1 if it failed, else 0."""
    said = status(run, runs)
    if said["state"] == "done":
        spent = f"{said['seconds'] / 60:.1f} minutes" if said["trained"] else "it was there"
        say(f"done: {run}: {said['accuracy']:.2f} % in the last round, {spent}")
        return 0
    if said["state"] == "waiting":  # it ended without a message
        log = runs / FOLDER / f"{run.key}.log"
        said = {"state": "failed", "reason": f"its process ended with status {code}, see {log}"}
    say(f"{said['state']}: {run}: {said['reason']}")
    return int(said["state"] == "failed")


# The worker.


class _Told(Progress):
    """Writes a worker's rounds into the run's status, and receives the signal to stop."""

    def __init__(self, path: Path) -> None:
        known = NOTHING | (files.read_json(path) if path.exists() else {})
        me = psutil.Process()
        self.path, self.stopping = path, False
        self.trained, self._seconds = known["trained"], known["seconds"]
        self.said = {key: known[key] for key in (*NOTHING, "data") if key in known}
        self.say(state="under way", process=[me.pid, _born(me)])

    def say(self, **facts: Any) -> None:
        self.said |= facts
        files.write_json(self.path, self.said)

    def stop(self, *_: object) -> None:
        """The signal's handler: the round loop saves its last complete round before it ends."""
        if not self.stopping:
            self.stopping = True
            raise KeyboardInterrupt

    def start(self, label: str, total: int, done: int) -> None:
        super().start(label, total, done)
        self.say(round=done, rounds=total)

    def round(self, number: int, accuracy: float) -> None:
        super().round(number, accuracy)
        self.say(round=number, trained=self.trained, seconds=self._seconds)
        if self.stopping:  # the first one was caught by other code
            raise KeyboardInterrupt


def _main(run: Run, runs: Path, root: Path | None) -> None:
    told = _Told(runs / FOLDER / f"{run.key}.json")
    signal.signal(signal.SIGTERM, told.stop)
    with (runs / FOLDER / f"{run.key}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    threading.Thread(target=_follow, daemon=True).start()
    os.nice(19)
    with contextlib.suppress(OSError):  # Linux weights sessions, then their processes
        os.setsid()
        Path("/proc/self/autogroup").write_text("19")
    try:
        _work(run, runs, root, told)
    except KeyboardInterrupt:
        sys.exit(130)
    except Diverged as end:
        told.say(state="diverged", reason=str(end), run_id=end.run)
    except FedReproError as error:
        told.say(state="failed", reason=str(error))
    except Exception as error:
        traceback.print_exc()
        place = f"see {runs / FOLDER / run.key}.log"
        told.say(state="failed", reason=f"{type(error).__name__}: {one_line(error)}; {place}")


def _follow() -> None:
    """End with the parent, at last by force."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)


def _work(run: Run, runs: Path, root: Path | None, told: _Told) -> None:
    torch.set_num_threads(1)
    asked, arm = run.study(runs, root, progress=told), run.arm
    changed = "its method's file was changed since the campaign began; start the campaign again"
    need(replace(run).key == run.key, changed)
    try:
        data = federation_of(arm.protocol.data, root)
    except Missing as error:
        told.say(state="skipped", reason=str(error))
        return
    told.say(data=[sum(len(c.train) for c in data.clients), len(data.classes), data.size])
    record = asked.trained(arm) if run.trial else asked.result(run.entry.experiment, arm).record
    accuracy = float(metrics.accuracies(record.curve)["avg"].iloc[-1])
    told.say(state="done", run_id=record.run_id, accuracy=accuracy)
