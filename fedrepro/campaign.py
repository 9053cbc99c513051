"""Long runs by priority, in processes with one thread each, stopped and resumed at any time.

A list names the runs. A worker (`python -m fedrepro.campaign`) trains one run and writes its
progress into `<runs>/campaign/<key>.json`. The record is where a sweep looks for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from filelock import FileLock, Timeout

from fedrepro.base import files
from fedrepro.base.errors import Diverged, FedReproError, one_line
from fedrepro.base.places import CHECKOUT, RUNS, clone
from fedrepro.base.progress import Progress
from fedrepro.campaign_list import FOLDER, Entry, Run, read, status, table
from fedrepro.commands import Root, Runs

LIST = CHECKOUT / "book" / "campaign.yaml"
GRACE = 120.0  # seconds a stopped worker has to save its last round
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


# The parent.


def campaign(
    todo: Sequence[Run],
    runs: Path,
    root: Path | None,
    jobs: int,
    minutes: float | None,
    say: Callable[[str], None],
) -> int:
    """Train the runs that are not done, in the order of the list. Returns how many failed.

    KeyboardInterrupt, SIGTERM and the end of the minutes stop the workers; they save first.
    """
    end = time.monotonic() + (float("inf") if minutes is None else 60 * minutes)
    waiting = [run for run in todo if status(run, runs)["state"] != "done"]
    say(f"{len(todo) - len(waiting)} of {len(todo)} runs are done, {len(waiting)} to do")
    busy: dict[psutil.Popen, Run] = {}
    failed = 0
    # Both, because a shell may start a background job that ignores SIGINT.
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        while (waiting or busy) and time.monotonic() < end:
            while waiting and len(busy) < jobs:
                # The first that does not wait for tuning trials of another seed, else the first.
                taken = [(run.entry, run.row) for run in busy.values()]
                free = (run for run in waiting if (run.entry, run.row) not in taken)
                run = next(free, waiting[0])
                waiting.remove(run)
                busy[_start(run, runs, root)] = run
            time.sleep(0.1)
            for child in [child for child in busy if child.poll() is not None]:
                run = busy.pop(child)
                failed += _ended(run, runs, child.returncode, say)
    finally:
        _stop(list(busy))
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    for child, run in busy.items():  # the minutes are over
        if status(run, runs)["state"] != "waiting":
            failed += _ended(run, runs, child.returncode, say)
    if waiting or busy:
        say("the minutes are over: finished rounds are kept; run the same command to continue")
    return failed


def _start(run: Run, runs: Path, root: Path | None) -> psutil.Popen:
    """A new worker. It ends when its standard input closes, so it always ends with this process.
    Ctrl-C in a terminal does not reach it."""
    entry = run.entry.model_dump(mode="json")
    facts = {"entry": entry, "row": run.row, "seed": run.seed, "key": run.key}
    words = [json.dumps(facts), str(runs), *([] if root is None else [str(root)])]
    log = files.make_folder(runs / FOLDER, "name a writable folder with --runs") / f"{run.key}.log"
    with log.open("wb") as complaints:
        return psutil.Popen(
            [sys.executable, "-m", "fedrepro.campaign", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
            env={**os.environ, **ONE_THREAD},
        )


def _stop(workers: Sequence[psutil.Popen]) -> None:
    for worker in workers:
        worker.terminate()
    for deaf in psutil.wait_procs(workers, timeout=GRACE)[1]:
        deaf.kill()
        deaf.wait()


def _ended(run: Run, runs: Path, code: int, say: Callable[[str], None]) -> int:
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
    return int(said["state"] != "skipped")


def command(
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop after this many; default: at the list's end.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Only show what is done, under way and waiting.")
    ] = False,
    runs: Runs = RUNS,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one per core.")
    ] = None,
    file: Annotated[Path, typer.Option(help="The list of runs.")] = LIST,
    root: Root = None,
) -> None:
    """Train a list of long runs in order of priority.

    Each run has a process with one thread and the lowest priority. If it was stopped or killed,
    the same command continues from the last checkpoints.
    """
    from fedrepro.sweep import cores

    if file == LIST and not LIST.is_file():
        raise FedReproError(f"no list {LIST}: {clone()}, or name one with --file")
    todo, jobs = read(file), jobs or cores()
    runs = runs.expanduser().resolve()
    if show:
        typer.echo(table(todo, runs, jobs))
        return
    folder = files.make_folder(runs / FOLDER, "name a writable folder with --runs")
    try:
        with FileLock(folder / ".lock", timeout=0):
            failed = campaign(todo, runs, root, jobs, minutes, typer.echo)
    except Timeout:
        raise FedReproError(
            f"another campaign trains into {runs}; wait for its end or name a folder with --runs"
        ) from None
    if failed:
        typer.echo(f"{failed} of {len(todo)} runs failed; the same command tries them again")
        raise typer.Exit(1)


# The worker.


class _Told(Progress):
    """Receives a worker's rounds and the signal to stop, and writes the run's status."""

    def __init__(self, path: Path) -> None:
        known = files.read_json(path) if path.exists() else {}
        me = psutil.Process()
        self.path, self.stopping = path, False
        self.said = {k: known.get(k, 0) for k in ("round", "rounds", "trained", "seconds")}
        self.say(state="under way", process=[me.pid, me.create_time()])

    def say(self, **facts: Any) -> None:
        self.said |= facts
        files.write_json(self.path, self.said)

    def stop(self, *_: object) -> None:
        """The signal's handler: the round loop saves its last complete round before it ends."""
        if not self.stopping:
            self.stopping = True
            raise KeyboardInterrupt

    def start(self, label: str, total: int, done: int) -> None:
        self.since = time.monotonic()
        self.say(round=done, rounds=total)

    def round(self, number: int, accuracy: float) -> None:
        spent, self.since = time.monotonic() - self.since, time.monotonic()
        trained, seconds = self.said["trained"] + 1, self.said["seconds"] + spent
        self.say(round=number, trained=trained, seconds=seconds)
        if self.stopping:  # the first one was caught by other code
            raise KeyboardInterrupt


def _work(run: Run, runs: Path, root: Path | None, told: _Told) -> None:
    import torch

    from fedrepro.records import federation_of

    torch.set_num_threads(1)
    asked, arm = run.study(runs, root, told)
    try:
        data = federation_of(arm.protocol.data, root)
    except FedReproError as error:
        told.say(state="skipped", reason=str(error))
        return
    told.say(data=[sum(len(c.train) for c in data.clients), len(data.classes), data.size])
    result = asked.result(run.entry.experiment, arm)
    accuracy = float(result.curve()["avg"].iloc[-1])
    told.say(state="done", run_id=result.record.run_id, accuracy=accuracy)


def end_with_parent() -> None:
    """Wait until standard input closes: the parent keeps it open as long as it lives."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _main(facts: str, folder: str, root: str | None = None) -> None:
    given = json.loads(facts)
    run = Run(**{**given, "entry": Entry(**given["entry"])})
    told = _Told(Path(folder) / FOLDER / f"{run.key}.json")
    signal.signal(signal.SIGTERM, told.stop)
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.nice(19)
    with contextlib.suppress(OSError):  # Linux weights sessions, then their processes
        Path("/proc/self/autogroup").write_text("19")
    try:
        _work(run, Path(folder), None if root is None else Path(root), told)
    except KeyboardInterrupt:
        sys.exit(130)
    except FedReproError as error:
        told.say(state="diverged" if isinstance(error, Diverged) else "failed", reason=str(error))
    except Exception as error:
        traceback.print_exc()
        told.say(state="failed", reason=f"{type(error).__name__}: {one_line(error)}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
