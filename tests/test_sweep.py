"""Sweeps over notebooks made here: what ends well, what fails, what a kill leaves behind."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
from typer.testing import CliRunner, Result

from fedrepro import cli, sweep
from fedrepro.base.files import CHECKOUT
from fedrepro.report.results import SENTINEL, finished
from fedrepro.sweep import Job
from tests.toys import gone, wait_for

PARAMETERS = """experiment = "all"
dataset = "minidigits"
methods = None
seed = 0
scale = "smoke"
device = "auto"
data_root = None
runs_dir = None
changes = None"""

GLUE = """from IPython.display import display
def glue(name, value):
    kind = "application/scrapbook.scrap.json+json"
    scrap = {"name": name, "data": value, "encoder": "json", "version": 1}
    about = {"name": name, "data": True, "display": False}
    display({kind: scrap}, metadata={"scrapbook": about}, raw=True)"""

ROWS = [[{}, [["FedAvg", "avg", 31.0], ["ADCOL", "mini-font", 1.0], ["ADCOL", "avg", 42.5]]]]
STUDY = {"paper": "adcol", "dataset": "minidigits", "scale": "smoke", "experiments": ["figure-2c"]}
GLUED = {"runs": [], "trials": [], "diverged": [], "counted": {"figure-2c": ROWS}, SENTINEL: True}
END = f"glue('study', {{**{STUDY!r}, 'seed': seed}})\n" + "\n".join(
    f"glue({name!r}, {value!r})" for name, value in GLUED.items()
)


def write_notebook(folder: Path, *cells: str, parameters: str = PARAMETERS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    new = nbformat.v4.new_code_cell
    first = new(parameters, metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[first, *(new(cell) for cell in cells)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    nbformat.write(notebook, folder / "adcol.ipynb")


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "NOTEBOOKS", tmp_path / "sources")
    return tmp_path / "sources"


@pytest.fixture
def run(tmp_path):
    def call(*words: str) -> Result:
        line = ["sweep", "adcol", "--runs", str(tmp_path / "runs"), *words]
        return CliRunner().invoke(cli.app, line)

    return call


@pytest.mark.slow
def test_failures_are_kept_and_resume_redoes_only_them(notebooks, run, tmp_path, monkeypatch):
    """Seed 0 is fine, 1 raises, 2's kernel dies, 3 ends before its last cell."""
    facts = "import os\nglue('facts', [seed, methods, runs_dir, os.environ['OMP_NUM_THREADS']])"
    bad = (
        "import os, sys\nif seed == 1: raise ValueError('no such luck')\n"
        "if seed == 2: os._exit(9)\n"
        "assert seed != 3 or 'reached'"
    )
    write_notebook(notebooks, GLUE, facts, bad, f"if seed != 3:\n    {END.replace(chr(10), '; ')}")
    result = run("--seeds", "0,1,2,3", "--jobs", "2", "--methods", "ADCOL,FedAvg")
    assert result.exit_code == 1
    names = [f"adcol-minidigits-smoke-only-ADCOL-FedAvg-seed{seed}" for seed in range(4)]
    folder = tmp_path / "runs" / "notebooks"
    whole, *failed = [folder / f"{name}.ipynb" for name in names]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [whole.name, *(f"{path.stem}.failed.ipynb" for path in failed)]
    )
    assert "done" in result.stdout
    lines = {line.split(": ")[1]: line for line in result.stdout.splitlines() if "failed: " in line}
    assert "ValueError: no such luck" in lines[names[1]]
    assert "kernel died" in lines[names[2]]
    assert "before its last cell" in lines[names[3]]
    traced = (folder / f"{names[1]}.failed.ipynb").read_text()
    assert traced.count('"output_type": "error"') == 1
    kept = read(whole)
    (scrap,) = kept.cells[3].outputs[0].data.values()
    assert scrap["data"] == [0, ["ADCOL", "FedAvg"], str(tmp_path / "runs"), "1"]
    sources = [cell.source for cell in kept.cells]
    assert any("seed = 0" in text for text in sources)
    assert str(tmp_path) not in f"{kept.metadata} {sources}", "a folder of this machine"

    write_notebook(notebooks, GLUE, END)
    before = whole.stat().st_mtime_ns
    again = run("--seeds", "0,1", "--methods", "ADCOL,FedAvg", "--resume")
    assert again.exit_code == 0, again.output
    assert whole.stat().st_mtime_ns == before and finished(folder / f"{names[1]}.ipynb")
    assert not (folder / f"{names[1]}.failed.ipynb").exists()
    assert [line.split()[3] for line in again.stdout.splitlines()[1:]] == ["kept", "done"]
    monkeypatch.setenv(sweep.LOAD, "")
    (own := tmp_path / "own.py").write_text("other = 'code'")
    job = Job("adcol", "minidigits", 0, notebooks / "adcol.ipynb", whole, {"dataset": "x"})
    for state in ("done", "kept"):
        assert sweep.execute(job, {sweep.LOAD: str(own)}, True, 1).state == state


LAUNCH = (
    "import sys\nfrom pathlib import Path\nfrom fedrepro import cli, sweep\n"
    "sweep.NOTEBOOKS = Path(sys.argv.pop(1))\ncli.main()"
)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_cut_short_leaves_nothing_half_and_goes_on(number, tmp_path, notebooks, run):
    """Seed 0 ends, seed 1 is in the middle and 2 waits when the sweep is killed or interrupted."""
    mark = tmp_path / "kernel"
    wait = (
        f"import os, time\nfrom pathlib import Path\nmark = Path({str(mark)!r})\n"
        "if seed == 1 and not mark.exists():\n"
        "    mark.write_text(str(os.getpid()))\n    time.sleep(120)"
    )
    write_notebook(notebooks, GLUE, wait, END)
    folder = tmp_path / "runs" / "notebooks"
    names = [f"adcol-minidigits-smoke-seed{seed}.ipynb" for seed in (0, 1)]
    words = ["sweep", "adcol", "--seeds", "0-2", "--jobs", "1", "--runs", str(tmp_path / "runs")]
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]))
    how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    line = [sys.executable, "-c", LAUNCH, str(notebooks), *words]
    child = subprocess.Popen(line, env={**os.environ, "PYTHONPATH": path}, **how)
    wait_for(lambda: mark.exists() and bool(mark.read_text()))
    child.send_signal(number)
    _, errors = child.communicate(timeout=200)
    if number == signal.SIGTERM:  # as after ctrl-C
        assert child.returncode == 130
        last = errors.strip().splitlines()[-1]
        assert last.startswith("interrupted: 1 of 3 notebooks") and "--resume" in last
        assert "Traceback" not in errors
    kernel = int(mark.read_text())
    wait_for(lambda: gone(kernel))
    assert [path.name for path in folder.iterdir()] == names[:1]
    if number == signal.SIGKILL:
        result = run("--seeds", "0,1", "--resume")
        assert [line.split()[3] for line in result.stdout.splitlines()[1:]] == ["kept", "done"]


def test_a_kernel_that_dies_when_its_sweep_is_stopped_leaves_no_failed_notebook(
    tmp_path, monkeypatch
):
    job = Job("adcol", "minidigits", 0, Path("n"), tmp_path / "notebooks" / "n.ipynb", {})
    for folder in (job.output.parent, job.running.parent):
        folder.mkdir()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    died = lambda output: f"the kernel died {output.write_text('{}')}"  # noqa: E731
    monkeypatch.setattr(sweep, "papermill_complaint", lambda _, output, __: died(output))
    assert sweep.execute(job, {}, resume=False, threads=1).path == job.failed
    job.failed.unlink()
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        begun = threading.Event()
        died = lambda *_: f"the kernel died {begun.set()} {sweep._ending.wait(60)}"  # noqa: E731
        notebook = pool.submit(sweep.execute, job, {}, resume=False, threads=1)
        with sweep.stopping([notebook]):
            assert begun.wait(60)
            raise KeyboardInterrupt
    assert notebook.result().reason == sweep.INTERRUPTED and not any(job.output.parent.iterdir())
    assert not sweep._ending.is_set(), "a later notebook may fail"


def test_a_changed_protocol_reaches_the_notebook_and_has_a_file_of_its_own(
    notebooks, run, tmp_path
):
    write_notebook(notebooks, GLUE, "print(changes)", END)
    words = ("--set", "rounds=1", "--set", "data.allocation.per_client=0.5")
    assert run("--seeds", "0", *words).exit_code == 0
    (path,) = (tmp_path / "runs" / "notebooks").glob("*.ipynb")
    assert path.name == "adcol-minidigits-smoke-rounds-1-data.allocation.per-client-0.5-seed0.ipynb"
    shown = read(path).cells[-2].outputs[0]["text"]
    assert shown == "{'rounds': 1, 'data.allocation.per_client': 0.5}\n"
    given = {"experiment": "all", "dataset": "digits5", "scale": "reduced", "seed": 0}
    rows = ["FADA, target=1"], ["FADA, target=-1"], ["Fed-α"], ["Fed-β"], ["long" * 80]
    names = {sweep.file_name("adcol", {**given, "methods": row}) for row in rows}
    assert len(names) == 5 and max(map(len, names)) < 200


def test_what_cannot_begin_is_one_line(notebooks, run, tmp_path):
    def refused(said: str, *words: str) -> None:
        result = run(*words)
        assert result.exit_code == 2 and result.stdout == ""
        assert len(result.stderr.splitlines()) == 1 and said in result.stderr

    refused("adcol.ipynb")
    write_notebook(notebooks, GLUE, END)
    refused("--on dask", "--scheduler", "tcp://127.0.0.1:1")
    refused("data root", "--data-root", str(tmp_path / "absent"))
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").write_text("")
    refused("is a file")


@pytest.mark.slow
def test_dask_runs_the_same_notebooks(notebooks, run, tmp_path):
    pytest.importorskip("distributed")
    write_notebook(notebooks, GLUE, "assert seed == 0, 'not this one'", END)
    result = run("--seeds", "0,1", "--jobs", "2", "--on", "dask")
    assert result.exit_code == 1, result.output
    assert [line.split()[3] for line in result.stdout.splitlines()[1:3]] == ["done", "failed"]
    assert "AssertionError: not this one" in result.stdout
    unreachable = run("--seeds", "0", "--on", "dask", "--scheduler", "tcp://127.0.0.1:9")
    assert unreachable.exit_code == 2 and "no dask scheduler" in unreachable.stderr


def test_a_notebook_a_core_as_far_as_memory_goes(monkeypatch):
    monkeypatch.setattr(sweep, "cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for device, notebooks, gib, workers in (
        ("cpu", 3, 64, 3), ("cpu", 9, 64, 8), ("cpu", 9, 9, 2), ("cpu", 9, 1, 1), ("cuda", 9, 64, 1)
    ):  # fmt: skip
        jobs = [Job("adcol", "d", 0, Path("n"), Path("o"), {"device": device})] * notebooks
        free = SimpleNamespace(available=gib << 30)
        monkeypatch.setattr(sweep.psutil, "virtual_memory", lambda free=free: free)
        assert sweep.usual_workers(jobs) == workers
