"""One notebook, executed by papermill in a process of its own.

It is written under a temporary name and renamed once it has ended, so that a name in
`<runs>/notebooks` is a whole notebook; one that failed is `<name>.failed.ipynb`, with its
traceback. Run as `python -m fedrepro.execute`, this module is that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedrepro.base.errors import one_line
from fedrepro.papers import load

PLACES = ("data_root", "runs_dir")  # parameters that name folders of this machine
GRACE = 10.0  # seconds a stopped notebook has to shut its kernel down
State = Literal["done", "kept", "failed"]


@dataclass(frozen=True)
class Job:
    """One notebook to execute: `source` with `parameters` gives `output`."""

    paper: str
    dataset: str
    seed: int
    source: Path
    output: Path
    parameters: dict[str, Any]

    @property
    def failed(self) -> Path:
        """Where the notebook is kept if it fails."""
        return self.output.with_suffix(".failed.ipynb")

    @property
    def running(self) -> Path:
        """Where it is written meanwhile: beside `notebooks`, where nobody looks for results."""
        return self.output.parent.parent / ".running" / self.output.name


@dataclass(frozen=True)
class Outcome:
    """How a job ended. kept: it was whole already. score: a label and its mean accuracy in
    percent, from the notebook's first table. path: None where not even a failed notebook is."""

    job: Job
    state: State
    seconds: float
    reason: str = ""
    score: str = ""
    path: Path | None = None


_children: set[subprocess.Popen[bytes]] = set()
_stopping = threading.Event()


def allow() -> None:
    """Take notebooks again after `stop`."""
    _stopping.clear()


def stop() -> None:
    """End the notebooks this process is executing: ask first, then kill their process groups."""
    _stopping.set()
    running = list(_children)
    for child in running:
        _signal(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    for child in running:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(child, signal.SIGKILL)


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def execute(job: Job, resume: bool = False, threads: int = 1) -> Outcome:
    """Execute one notebook in a new process and put the result where it belongs."""
    from filelock import FileLock, Timeout

    from fedrepro.report.scraps import finished

    started = time.monotonic()
    if resume and finished(job.output):
        return Outcome(job, "kept", 0.0, "", _score(job), job.output)
    try:
        with FileLock(job.running.with_suffix(".lock"), timeout=0):
            job.running.unlink(missing_ok=True)
            code, complaint = _papermill(job, threads)
            if _stopping.is_set():
                job.running.unlink(missing_ok=True)
                return Outcome(job, "failed", 0.0, "interrupted")
            whole = code == 0 and finished(job.running)
            outcome = _keep(job, whole, code, complaint)
    except Timeout:
        outcome = Outcome(job, "failed", 0.0, "another sweep is executing it; wait for its end")
    return replace(outcome, seconds=time.monotonic() - started)


def _papermill(job: Job, threads: int) -> tuple[int, str]:
    """Exit status and last line of standard error of the notebook's process. It has a process
    group of its own, and ends when this process does, however that ends."""
    facts = {"source": str(job.source), "output": str(job.running), "parameters": job.parameters}
    given = os.environ.get("OMP_NUM_THREADS", "")
    count = min(threads, int(given)) if given.isdigit() and int(given) else threads
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            [sys.executable, "-m", "fedrepro.execute"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": str(count)},
        )
        assert child.stdin is not None
        _children.add(child)
        try:
            if _stopping.is_set():  # stop() looked before this child was there
                _signal(child, signal.SIGTERM)
            with contextlib.suppress(BrokenPipeError), child.stdin:
                child.stdin.write(json.dumps(facts).encode() + b"\n")
                child.stdin.flush()
                child.wait()
        finally:
            _children.discard(child)
        complaints.seek(0)
        lines = complaints.read().decode(errors="replace").strip().splitlines()
    return child.wait(), lines[-1] if lines else ""


def _keep(job: Job, whole: bool, code: int, complaint: str) -> Outcome:
    """Rename the notebook to what it turned out to be."""
    if whole:
        _forget_places(job.running)
        os.replace(job.running, job.output)
        job.failed.unlink(missing_ok=True)
        return Outcome(job, "done", 0.0, "", _score(job), job.output)
    if code == 0:
        complaint = "it ended before its last cell, where the results are glued"
    reason = complaint or f"its process ended with exit status {code}"
    if not job.running.exists():
        return Outcome(job, "failed", 0.0, reason)
    os.replace(job.running, job.failed)
    return Outcome(job, "failed", 0.0, reason, "", job.failed)


def _forget_places(path: Path) -> None:
    """Take this machine's folders out of a finished notebook: they are no part of its results, and
    would be wrong wherever else it is read."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    facts = notebook.metadata.papermill
    for key in ("input_path", "output_path"):
        facts[key] = Path(facts[key]).name
    places = {name: facts.parameters.pop(name) for name in PLACES if name in facts.parameters}
    for cell in notebook.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            lines = cell.source.splitlines()
            starts = tuple(f"{name} =" for name in places)
            cell.source = "\n".join(line for line in lines if not line.startswith(starts))
    nbformat.write(notebook, path)


def _score(job: Job) -> str:
    """The mean accuracy of the paper's own method (else the first) in the first table."""
    import scrapbook

    cells = scrapbook.read_notebook(str(job.output)).scraps.data_dict.get("cells") or []
    means = [cell for cell in cells if cell["column"] == "avg" and cell["value"] is not None]
    own = load(job.paper).short.lower()
    for cell in [cell for cell in means if cell["method"].lower() == own] + means:
        return f"{cell['method']} {cell['value']:.1f}"
    return ""


def _main() -> None:
    """The process of one notebook: its facts come as a line on standard input."""
    facts = json.loads(sys.stdin.readline())
    # SystemExit lets papermill shut the kernel down, where a plain SIGTERM would leave it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    threading.Thread(target=end_with_parent, daemon=True).start()
    import papermill
    from nbclient.exceptions import DeadKernelError

    try:
        papermill.execute_notebook(
            facts["source"],
            facts["output"],
            facts["parameters"],
            kernel_name="python3",
            progress_bar=False,
            shutdown_kernel="immediate",  # a busy kernel would keep an interrupted sweep waiting
        )
    except DeadKernelError:
        sys.exit("the kernel died, perhaps for lack of memory")
    except papermill.PapermillExecutionError as error:
        kind = "" if error.ename == "FedReproError" else f"{error.ename}: "
        sys.exit(kind + (error.evalue.splitlines() or [""])[0])
    except Exception as error:  # nbclient and zmq raise many kinds
        sys.exit(f"{type(error).__name__}: {one_line(error)}")


def end_with_parent() -> None:
    """Wait for the end of standard input: the parent holds it open as long as it lives."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    _main()
