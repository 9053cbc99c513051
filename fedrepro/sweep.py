"""Sweeps: papermill executes a paper's notebook for each data set and seed, several at a time, on
this machine or on a dask cluster. A notebook is renamed at its end: all in `<runs>/notebooks` are
complete, and a failed one is `<name>.failed.ipynb`, with its traceback."""

import contextlib
import hashlib
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any, Literal

import nbformat
import psutil
from filelock import FileLock, Timeout

from fedrepro.base.errors import FedReproError, need, one_line
from fedrepro.base.files import CHECKOUT, CLONE, LOAD, TRACK, check_runs, loaded_code, make_folder
from fedrepro.data import folders
from fedrepro.data.manifest import data_root as find_root
from fedrepro.papers import Question, default_datasets, load
from fedrepro.report.text import aligned

NOTEBOOKS = CHECKOUT / "notebooks"
ROOM = 4 << 30  # bytes of free memory per notebook; ADCOL with digit CNNs needs 1.8 GiB
PLACES = ("data_root", "runs_dir")  # parameters that name folders of this machine
GRACE = 10.0  # seconds in which an interrupted kernel saves its last round
INTERRUPTED = "interrupted"
LONGEST = 150  # letters of a file name; file systems allow 255 bytes
_ending = threading.Event()  # the notebooks of this process are being stopped
# An interrupt is no error to print, neither for a kernel nor for its sockets.
SILENT = [
    "--log-level=CRITICAL",
    '--IPKernelApp.logging_config={"loggers": {"tornado": {"level": "CRITICAL"}}}',
]


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
        """Its path while it runs: next to `notebooks`, where nothing looks for results."""
        return self.output.parent.parent / ".running" / self.output.name


@dataclass(frozen=True)
class Outcome:
    """How a job ended. kept: it was complete already. path: None if there is not even a failed
    notebook."""

    job: Job
    state: Literal["done", "kept", "failed"]
    seconds: float = 0.0
    reason: str = ""
    path: Path | None = None


# A sweep: planned, then executed.


def plan(
    papers: list[str], datasets: list[str] | None, seeds: list[int], common: Mapping[str, Any]
) -> list[Job]:
    """The jobs of a sweep. Every value is checked before the first kernel starts. datasets: None
    for the experiments' own. common: the parameters that all notebooks share."""
    check_runs(folder := Path(common["runs_dir"]))
    if common["data_root"] is not None:
        find_root(common["data_root"])
    experiment, scale = common["experiment"], common["scale"]
    how = common["methods"], common.get("changes", {}), common["device"]
    jobs = []
    for name in dict.fromkeys(papers):
        paper, source = load(name), NOTEBOOKS / f"{name}.ipynb"
        every = datasets or default_datasets(paper, experiment, scale)
        for dataset, seed in product(every, seeds):
            asked = Question(paper, dataset, scale, seed, *how)
            what = f"{paper.short}: nothing to run for {experiment} on {dataset} with these methods"
            advice = f"see `fedrepro experiments --paper {name}`"
            need(asked.chosen(experiment), f"{what}; {advice}")
            given = {**common, "dataset": asked.dataset, "seed": seed}
            output = folder / "notebooks" / file_name(name, given)
            given["dataset"] = folders.placed(asked.dataset)
            jobs.append(Job(name, asked.dataset, seed, source, output, given))
    for job in jobs:
        need(job.source.is_file(), f"no notebook {job.source}: {CLONE}")
    return list({job.output: job for job in jobs}.values())


def file_name(paper: str, parameters: Mapping[str, Any]) -> str:
    """`<paper>-<dataset>-<scale>-seed<N>.ipynb`, with what makes it a part or another protocol: the
    experiment if it is not all, chosen methods, and changed settings."""
    part, rows = parameters["experiment"], parameters["methods"]
    parts = [paper, *([] if part == "all" else [part]), parameters["dataset"], parameters["scale"]]
    parts += [] if rows is None else ["only", *rows]
    parts += [f"{name}={value}" for name, value in parameters.get("changes", {}).items()]
    signed = "-".join([*parts, f"seed{parameters['seed']}"])
    signed = re.sub(r"(?<=[=\[( ,])-(?=[\d.i])", "minus", signed)  # else -1 and 1 have one name
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", signed)
    if len(plain) > LONGEST or not re.fullmatch(r"[\w .,=:(){}'\"\[\]-]+", signed, re.ASCII):
        plain = f"{plain[:LONGEST]}-{hashlib.sha256(signed.encode()).hexdigest()[:8]}"
    return f"{plain}.ipynb"


def sweep(
    jobs: Sequence[Job], *, workers: int | None, resume: bool, on: str, scheduler: str | None
) -> Generator[Outcome]:
    """Execute the jobs, `workers` at a time. Yields how each ended, when it ends.
    workers: None for `usual_workers`, or one if a scheduler has others. resume: skip complete
    notebooks. on: `local`, or `dask` with a scheduler's address or a cluster on this machine.
    KeyboardInterrupt stops the notebooks of this machine."""
    workers = workers or (usual_workers(jobs) if scheduler is None else 1)
    carried = {name: os.environ.get(name, "") for name in (LOAD, TRACK)}
    run = partial(execute, carried=carried, resume=resume, threads=max(1, cores() // workers))
    for folder in (jobs[0].output.parent, jobs[0].running.parent):
        make_folder(folder, "name a writable folder with --runs")
    with ThreadPoolExecutor(workers) if on == "local" else _dask(workers, scheduler) as executor:
        futures = {executor.submit(run, job): job for job in jobs}
        with stopping(futures):
            for future in as_completed(futures):
                try:
                    outcome = future.result()
                except Exception as error:  # a lost worker, a full disk
                    outcome = Outcome(futures[future], "failed", reason=one_line(error))
                yield outcome


@contextlib.contextmanager
def stopping(notebooks: Collection[Future[Any]]) -> Iterator[None]:
    """Left with an error, end the notebooks that wait or run on this machine."""
    try:
        yield
    except BaseException:
        _ending.set()
        for notebook in notebooks:
            notebook.cancel()
        # Between two cells a kernel ignores the first.
        for number in chain([signal.SIGINT] * 2, repeat(signal.SIGKILL)):
            for kernel in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    kernel.send_signal(number)
            if not wait(notebooks, GRACE).not_done:
                raise
    finally:
        _ending.clear()


def usual_workers(jobs: Sequence[Job]) -> int:
    """The number of notebooks to execute at once: one per core if memory allows, because two
    processes with one thread are faster than one with two threads; on a GPU, one."""
    from fedrepro.records.record import pick_device

    if pick_device(jobs[0].parameters["device"]).type != "cpu":
        return 1
    fitting = psutil.virtual_memory().available // ROOM
    return max(1, min(len(jobs), cores(), fitting))


@contextlib.contextmanager
def _dask(workers: int, scheduler: str | None) -> Iterator[Executor]:
    lacking = "dask.distributed is not installed"
    need(find_spec("distributed"), f"{lacking}: pip install 'fedrepro[cluster]', or use --on local")
    dask = import_module("distributed")
    one_each = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = dask.Client(scheduler, timeout=10, **(one_each if scheduler is None else {}))
    except (OSError, ValueError) as error:
        told = f"no dask scheduler at {scheduler or 'this machine'} ({one_line(error)})"
        raise FedReproError(f"{told}; start one or correct --scheduler") from None
    with client:
        yield client.get_executor(pure=False)


def cores() -> int:
    """The number of cores this process may use, in a container too."""
    from joblib import cpu_count

    return int(cpu_count())


def execute(job: Job, carried: Mapping[str, str], resume: bool, threads: int) -> Outcome:
    """Execute one notebook and move it to its place. carried: environment variables from where the
    sweep began, which may be another machine."""
    from fedrepro.report.results import finished, outdated

    started = time.monotonic()
    given = os.environ.get("OMP_NUM_THREADS", "")
    asked = int(given) if given.isdigit() and int(given) else threads
    os.environ |= {**carried, "OMP_NUM_THREADS": str(min(threads, asked))}  # the kernel's, too
    code = loaded_code()  # now: a file may be edited before the notebook ends
    if resume and finished(job.output) and not outdated(job.output):
        executed = nbformat.read(job.output, as_version=4).metadata.papermill
        if executed.get("code", "") == code:
            return Outcome(job, "kept", path=job.output)
    try:
        with FileLock(job.running.with_suffix(".lock"), timeout=0):
            job.running.unlink(missing_ok=True)
            reason = papermill_complaint(job.source, job.running, job.parameters)
            if reason and _ending.is_set():  # however its kernel took the signals
                reason = INTERRUPTED
            if reason == INTERRUPTED:  # then there is nothing to look at
                job.running.unlink(missing_ok=True)
            elif not reason and not finished(job.running):
                reason = "it ended before its last cell, where the results are glued"
            outcome = _keep(job, reason, code)
    except Timeout:
        outcome = Outcome(job, "failed", reason="another sweep is executing it; wait for its end")
    return replace(outcome, seconds=time.monotonic() - started)


def papermill_complaint(
    source: Path, output: Path, given: Mapping[str, Any], cwd: Path | None = None
) -> str:
    """Execute a notebook. Returns one line on what went wrong, empty if nothing did. The output is
    written after each cell; only at the end if it is the source."""
    import papermill
    from nbclient.exceptions import DeadKernelError

    logging.getLogger("papermill").disabled = True  # it raises what it logs
    try:
        papermill.execute_notebook(
            source,
            output,
            dict(given),
            kernel_name="python3",
            progress_bar=False,
            extra_arguments=SILENT,
            request_save_on_cell_execute=source != output,
            resources={"metadata": {"path": str(cwd or Path.cwd())}},  # the kernel's
        )
    except DeadKernelError:
        return "the kernel died, perhaps for lack of memory"
    except papermill.PapermillExecutionError as error:
        if error.ename in ("KeyboardInterrupt", "Stopped"):
            return INTERRUPTED
        kind = "" if error.ename == "FedReproError" else f"{error.ename}: "
        return f"{kind}{(error.evalue.splitlines() or [''])[0]}"
    except Exception as error:  # nbclient and zmq raise many kinds
        return f"{type(error).__name__}: {one_line(error)}"
    return ""


def _keep(job: Job, reason: str, code: str) -> Outcome:
    """Rename the notebook to finished or failed. The folders of this machine are removed from a
    finished one: they are not results, and would be wrong on other machines."""
    if reason:
        if there := job.running.exists():
            os.replace(job.running, job.failed)
        return Outcome(job, "failed", reason=reason, path=job.failed if there else None)
    from papermill.translators import translate_parameters

    given = {key: value for key, value in job.parameters.items() if key not in PLACES}
    given["dataset"] = job.dataset  # a folder by its name, not by its path
    notebook = nbformat.read(job.running, as_version=4)
    facts = notebook.metadata.papermill
    facts.parameters, facts.code = given, code
    for key in ("input_path", "output_path"):
        facts[key] = Path(facts[key]).name
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.source = translate_parameters("python3", "python", given, "Parameters").strip()
    nbformat.write(notebook, job.running)
    os.replace(job.running, job.output)
    job.failed.unlink(missing_ok=True)
    return Outcome(job, "done", path=job.output)


def summary(outcomes: Sequence[Outcome]) -> str:
    """One row per notebook, then one line per failed notebook."""
    header = ("paper", "dataset", "seed", "state", "seconds", "notebook")
    jobs = ((o.job.paper, o.job.dataset, str(o.job.seed)) for o in outcomes)
    ends = ((o.state, f"{o.seconds:.1f}", str(o.path or "-")) for o in outcomes)
    rows = [(*job, *end) for job, end in zip(jobs, ends, strict=True)]
    failed = [f"failed: {o.job.output.stem}: {o.reason}" for o in outcomes if o.state == "failed"]
    return "\n".join([aligned(header, rows), *failed])
