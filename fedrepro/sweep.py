"""Many notebooks: one papermill execution for each paper, data set and seed, side by side here or
on a dask cluster."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from fedrepro.base.errors import FedReproError, one_line
from fedrepro.base.files import make_folder
from fedrepro.execute import Job, Outcome, allow, execute, stop
from fedrepro.papers import Paper, load

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
SMOKE_DATASET = "minidigits"
ROOM = 4 << 30  # bytes of free memory a notebook is given; ADCOL with digit CNNs holds 1.8 GiB


def default_datasets(paper: Paper, experiment: str, scale: str) -> list[str]:
    """The data sets meant where none is named: the embedded one at scale smoke, else those of the
    experiment, or of all that run."""
    if experiment != "all" and not paper.experiment(experiment).can_run:
        paper.arms(experiment)  # raises the line that says why
    if scale == "smoke":
        return [SMOKE_DATASET]
    runs = [
        e
        for e in paper.experiments
        if e.id == experiment
        or (experiment == "all" and e.state == "runs" and scale not in e.named_only)
    ]
    if not runs:
        raise FedReproError(
            f"nothing of {paper.short} runs yet; `fedrepro experiments --paper {paper.name}` says "
            "what is missing"
        )
    return list(dict.fromkeys(name for e in runs for name in e.datasets))


def plan(
    papers: Sequence[str],
    seeds: Sequence[int],
    *,
    scale: str = "smoke",
    datasets: Sequence[str] = (),
    methods: Sequence[str] | None = None,
    experiment: str = "all",
    device: str = "auto",
    data_root: Path | None = None,
    runs: Path = Path("runs"),
    notebooks: Path | None = None,
) -> list[Job]:
    """The jobs of a sweep, every value checked before the first kernel starts.

    notebooks: the folder of `<paper>.ipynb`; default the checkout's.
    """
    folder = runs.expanduser().resolve()
    common = {
        "experiment": experiment,
        "methods": list(methods) if methods is not None else None,
        "scale": scale,
        "device": device,
        "data_root": str(data_root.expanduser().resolve()) if data_root else None,
        "runs_dir": str(folder),
    }
    jobs = []
    for name in dict.fromkeys(papers):
        paper, source = load(name), (notebooks or NOTEBOOKS) / f"{name}.ipynb"
        for dataset in datasets or default_datasets(paper, experiment, scale):
            for seed in dict.fromkeys(seeds):
                _check(name, dataset, scale, seed, methods, experiment, runs)
                given = {**common, "dataset": dataset, "seed": seed}
                output = folder / "notebooks" / file_name(name, given)
                jobs.append(Job(name, dataset, seed, source, output, given))
        check_parameters(source, jobs[-1].parameters)
    return jobs


def _check(
    paper: str,
    dataset: str,
    scale: str,
    seed: int,
    methods: Sequence[str] | None,
    experiment: str,
    runs: Path,
) -> None:
    """Raise the one line a notebook would fail with: wrong names, or nothing left to run."""
    from fedrepro.quantities.paper_run import study  # torch comes with it

    asked = study(paper, dataset, scale, seed, only=methods, runs_dir=runs)
    if not any(asked.has_work(name) for name in asked.chosen(experiment)):
        raise FedReproError(
            f"{asked.paper.short}: nothing to run for {experiment} on {dataset} with these "
            f"methods; see `fedrepro experiments --paper {paper}`"
        )


def file_name(paper: str, parameters: Mapping[str, Any]) -> str:
    """`<paper>-<dataset>-<scale>-seed<N>.ipynb`; the experiment comes in where it is not all, the
    methods where they are chosen: a part must not be taken for the whole."""
    parts = [paper]
    if parameters["experiment"] != "all":
        parts.append(parameters["experiment"])
    parts += [parameters["dataset"], parameters["scale"]]
    if parameters["methods"] is not None:
        parts += ["only", *parameters["methods"]]
    parts.append(f"seed{parameters['seed']}")
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)) + ".ipynb"


def check_parameters(notebook: Path, given: Mapping[str, Any]) -> None:
    """FedReproError where the notebook is missing or lacks a parameter: papermill would only
    warn, and run with the defaults."""
    import papermill  # costs a second, needed only here

    if not notebook.is_file():
        raise FedReproError(
            f"no notebook {notebook}: clone the repository and install it with `pip install -e .`"
        )
    try:
        known = papermill.inspect_notebook(str(notebook))
    except Exception as error:  # papermill and nbformat raise many kinds
        raise FedReproError(f"{notebook} cannot be read ({one_line(error)}); restore it") from None
    unknown = [name for name in given if name not in known]
    if unknown:
        raise FedReproError(
            f"{notebook} has no parameter {', '.join(unknown)} (it has {', '.join(known) or 'none'}"
            "); add it to the cell tagged `parameters`"
        )


def sweep(
    jobs: Sequence[Job],
    *,
    workers: int | None = None,
    resume: bool = False,
    on: str = "local",
    scheduler: str | None = None,
    report: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Execute the jobs, `workers` at a time, and return how they ended, in their order.

    workers: None for `usual_workers`, or one where a scheduler has others. resume: leave
    notebooks that are whole. on: `local`, or `dask` with a scheduler's address or a cluster in
    this process. report is called as each ends. KeyboardInterrupt stops the running notebooks (not
    those on other machines) and is raised again; finished rounds stay in the store.
    """
    if on not in ("local", "dask"):
        raise FedReproError(f"cannot run on {on!r}; choose from local, dask")
    if scheduler is not None and on != "dask":
        raise FedReproError("a scheduler is used with dask only; add --on dask")
    workers = workers or (usual_workers(jobs) if scheduler is None else 1)
    run = partial(execute, resume=resume, threads=max(1, cores() // workers))
    ended: dict[int, Outcome] = {}
    _make_folders(jobs)
    allow()
    with _executor(on, workers, scheduler) as executor:
        futures = {executor.submit(run, job): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                index, error = futures[future], future.exception()
                if error is None:
                    ended[index] = future.result()
                else:  # a lost worker, a full disk
                    ended[index] = Outcome(jobs[index], "failed", 0.0, one_line(error))
                if report is not None:
                    report(ended[index])
        except BaseException:
            for future in futures:
                future.cancel()
            stop()
            raise
    return [ended[index] for index in range(len(jobs))]


def usual_workers(jobs: Sequence[Job]) -> int:
    """How many notebooks to execute at once: one a core, as far as memory goes, since two
    processes of one thread do more than one of two threads; on a GPU, one."""
    from fedrepro.records.environment import pick_device

    devices = {pick_device(job.parameters.get("device", "auto")).type for job in jobs}
    if devices != {"cpu"}:
        return 1
    fitting = psutil.virtual_memory().available // ROOM
    return max(1, min(len(jobs), cores(), fitting))


def _make_folders(jobs: Sequence[Job]) -> None:
    for folder in {f for job in jobs for f in (job.output.parent, job.running.parent)}:
        make_folder(folder, "name a writable folder with --runs")


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def _executor(on: str, workers: int, scheduler: str | None) -> Iterator[Executor]:
    if on == "local":
        with ThreadPoolExecutor(workers) as pool:
            yield pool
        return
    try:
        dask = import_module("distributed")
    except ImportError:
        raise FedReproError(
            "dask.distributed is not installed: pip install 'fedrepro[cluster]', or use --on local"
        ) from None
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            # Threads do: each notebook has a process of its own anyway.
            local = dask.LocalCluster(
                n_workers=1, threads_per_worker=workers, processes=False, dashboard_address=None
            )
            scheduler = stack.enter_context(local)
        try:
            client = stack.enter_context(dask.Client(scheduler, timeout=10))
        except (OSError, ValueError) as error:
            raise FedReproError(
                f"no dask scheduler at {scheduler} ({one_line(error)}); start one or mend "
                "--scheduler"
            ) from None
        yield client.get_executor(pure=False)
