"""Campaigns: to the end, stopped, killed, and lists that cannot be."""

import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml
from filelock import FileLock
from typer.testing import CliRunner, Result

from fedrepro import campaign, cli
from fedrepro.base.files import CHECKOUT, LIST
from fedrepro.base.progress import Silent
from fedrepro.campaign import table
from fedrepro.quantities.base import study
from fedrepro.records.packed import pack
from tests.toys import gone, numbers, wait_for

PATIENCE = 300.0  # seconds: a worker waits for all other work of the machine
SMOKE = {"paper": "adcol", "experiment": "table-1", "dataset": "minidigits", "scale": "smoke"}
LONG = {**SMOKE, "methods": ["FedAvg"], "changes": {"rounds": 40}}
ENDLESS = {**SMOKE, "methods": ["FedAvg"], "changes": {"rounds": 100_000}}


def write(folder: Path, *entries: dict) -> None:
    (folder / "list.yaml").write_text(yaml.safe_dump(list(entries)))


def words(folder: Path, *more: str) -> list[str]:
    return ["campaign", "--file", str(folder / "list.yaml"), "--runs", str(folder / "runs"), *more]


def call(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(cli.app, words(folder, *more))


def start(folder: Path, rounds: int = 3) -> tuple[subprocess.Popen[str], int]:
    """A campaign of one run in a process of its own, some rounds later, and its worker's id."""
    line = [sys.executable, "-m", "fedrepro.cli", *words(folder)]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    child = subprocess.Popen(line, env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, **how)
    (run,) = campaign.read(folder / "list.yaml")
    said = partial(campaign.status, run, folder / "runs")
    wait_for(lambda: said().get("round", 0) >= rounds or child.poll() is not None)
    assert child.poll() is None, child.communicate()[0]
    return child, said()["process"][0]


def listed(folder: Path) -> str:
    return table(campaign.read(folder / "list.yaml"), folder / "runs", 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    asked = study("adcol", "minidigits", "smoke", only=["FedAvg"], changes=LONG["changes"],
                  runs_dir=tmp_path_factory.mktemp("whole"), device="cpu",
                  progress=Silent())  # fmt: skip
    return asked.results("table-1")[0].record.curve


def test_to_the_end_with_the_ids_of_a_sweep_and_then_all_is_done(tmp_path):
    rows = ["SOLO", "FedAvg"]
    again = {**SMOKE, "experiment": "table-2-rounds", "methods": ["FedAvg"]}  # the same run
    write(tmp_path, {**SMOKE, "methods": rows, "note": "both"}, again)
    assert listed(tmp_path).endswith("2 runs: 2 waiting; PFLOP left: unknown")
    first = call(tmp_path, "--jobs", "2")
    assert first.exit_code == 0, first.output
    done = [line for line in first.output.splitlines() if line.startswith("done: ")]
    assert len(done) == 2 and all("% in the last round" in line for line in done)
    asked = study("adcol", "minidigits", "smoke", only=rows, runs_dir=tmp_path / "runs",
                  device="cpu", progress=Silent())  # fmt: skip
    assert [result.record.environment["threads"] for result in asked.results("table-1")] == [1, 1]
    assert len(list((tmp_path / "runs").glob("*/done"))) == 2, "the study has trained others"
    second = call(tmp_path)
    assert second.output == "2 of 2 runs are done, 0 to do\n" and second.exit_code == 0
    assert "2 runs: 2 done; 0 PFLOP left, 0 hours of 2 processes" in listed(tmp_path)
    assert pack(tmp_path / "runs") == 2  # as a finished run is kept
    assert call(tmp_path).output == second.output


def test_a_method_of_ones_own_is_a_row(tmp_path):
    code = "from fedrepro.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'Mine'\n"
    (own := tmp_path / "my_method.py").write_text(code)
    write(tmp_path, {**SMOKE, "methods": ["Mine", "SOLO"]})
    line = ["-m", "fedrepro.cli", *words(tmp_path, "--load", str(own), "--jobs", "1")]
    done = subprocess.run([sys.executable, *line], capture_output=True, text=True, check=True)
    assert [row.split(", ")[1] for row in done.stdout.splitlines()[1:]] == ["Mine", "SOLO"]


def test_the_trials_of_a_tuned_setting_are_runs_of_their_own(tmp_path):
    rows = {"experiment": "methods", "methods": ["FedAvg"], "seeds": [1, 2]}
    write(tmp_path, {**SMOKE, "paper": "common", **rows})
    names = [run.name for run in campaign.read(tmp_path / "list.yaml")]
    assert names == ["FedAvg, trial 0.01", "FedAvg", "FedAvg"]
    assert call(tmp_path, "--jobs", "2").output.count("done: ") == len(names)
    assert pack(tmp_path / "runs") == len(names)
    shutil.rmtree(tmp_path / "runs" / campaign.FOLDER)  # as in a copy of the book's records
    assert call(tmp_path).output == "3 of 3 runs are done, 0 to do\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_cut_short_it_leaves_no_worker_and_goes_on_to_the_numbers_of_the_uninterrupted_run(
    tmp_path, number, whole
):
    write(tmp_path, LONG)
    child, worker = start(tmp_path)
    assert "under way (round " in listed(tmp_path)
    child.send_signal(number)
    said = child.communicate(timeout=PATIENCE)[0]
    if number != signal.SIGKILL:
        assert child.returncode == 130 and "interrupted: finished rounds are kept" in said
    wait_for(lambda: gone(worker))
    assert len(list((tmp_path / "runs").glob("*/checkpoint.safetensors"))) == 1, "stopped too late?"
    assert "waiting (round " in listed(tmp_path) and "of 40)" in listed(tmp_path)
    assert call(tmp_path).exit_code == 0
    again = pd.read_parquet(next(tmp_path.glob("runs/*/curve.parquet")))
    pd.testing.assert_frame_equal(numbers(again), numbers(whole), check_exact=True)


def test_a_killed_worker_is_named(tmp_path):
    write(tmp_path, LONG)
    child, worker = start(tmp_path, rounds=1)
    os.kill(worker, signal.SIGKILL)
    said = child.communicate(timeout=PATIENCE)[0]
    assert child.returncode == 1
    assert "failed: adcol table-1 minidigits smoke, FedAvg, seed 0: its process ended" in said


def test_it_stops_when_the_minutes_are_over_or_as_a_worker_starts(tmp_path, monkeypatch):
    write(tmp_path, ENDLESS)
    stopped = call(tmp_path, "--minutes", "0.05")
    assert stopped.exit_code == 0 and "the minutes are over" in stopped.output
    begin, me = campaign.SpawnProcess.start, os.getpid()
    # Another thread takes the signal, which is blocked in this one.
    interrupted = lambda one: [begin(one), os.kill(me, signal.SIGINT), time.sleep(0.1)]  # noqa: E731
    monkeypatch.setattr(campaign.SpawnProcess, "start", interrupted)
    assert call(tmp_path).exit_code == 130 and not campaign.multiprocessing.active_children()


def test_what_diverges_or_lacks_data_is_one_line_and_the_rest_goes_on(tmp_path):
    diverging = {**SMOKE, "methods": ["FedAvg"], "changes": {"optimizer.lr": 1e30}}
    missing = {**SMOKE, "dataset": "digits5", "scale": "paper", "methods": ["FedAvg"]}
    write(tmp_path, missing, diverging, {**SMOKE, "methods": ["SOLO"]})
    (tmp_path / "empty").mkdir()
    result = call(tmp_path, "--jobs", "1", "--root", str(tmp_path / "empty"))
    assert result.exit_code == 0  # a row that diverged is a result
    lines = result.output.splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["skipped", "diverged", "done"], lines
    assert "is missing under" in lines[1] and "training diverged" in lines[2]
    assert "1 skipped, 1 diverged, 1 done" in listed(tmp_path)
    again = call(tmp_path, "--jobs", "1", "--root", str(tmp_path / "empty"))
    assert "2 of 3 runs are done, 1 to do" in again.output  # nor is it tried again
    shutil.rmtree(next(tmp_path.glob("runs/*/diverged.json")).parent)  # as its line says
    assert "1 skipped, 1 waiting, 1 done" in listed(tmp_path)


def test_a_worker_is_known_by_its_process_though_the_clock_is_set(monkeypatch):
    born = campaign._born(me := psutil.Process())
    start, own = psutil.boot_time(), me.create_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: start + 15)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: own + 15)
    assert campaign._alive(me.pid, born) and not campaign._alive(me.pid, born + 9)


def test_one_campaign_a_folder(tmp_path):
    write(tmp_path, SMOKE)
    (tmp_path / "runs" / campaign.FOLDER).mkdir(parents=True)
    with FileLock(tmp_path / "runs" / campaign.FOLDER / ".lock"):
        result = call(tmp_path)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1
    assert "another campaign trains into" in result.stderr


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"paper": "adcoll"}, "no paper 'adcoll'; choose from adcol"),
        ({"methods": ["FedAVG"]}, "no method or row of ADCOL 'FedAVG'; choose from FedAvg"),
        ({"methods": [""]}, "no method or row of ADCOL ''"),
        ({"methods": ["MPFT"]}, "MPFT works on embeddings"),
        ({"experiment": "figure-7", "methods": ["FedAvg, E=1", "FedAvg, E=2"],
          "changes": {"local_epochs": 3}}, "rows of ADCOL figure-7 would be one run"),
        ({"experiment": "table-3-sizes"}, "table-3-sizes trains nothing"),
        ({"experiment": "table-4", "dataset": "office10", "scale": "paper",
          "changes": {"rounds": 2}}, "scale paper is the paper's own protocol"),
        ({"sedes": [1]}, "sedes: there is no such name"),
    ],
)  # fmt: skip
def test_a_wrong_list_is_one_line_before_anything_starts(tmp_path, change, complaint):
    write(tmp_path, SMOKE, {**SMOKE, **change})
    result = call(tmp_path)
    assert result.exit_code == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and complaint in result.stderr, result.stderr
    assert "list.yaml, entry 2" in result.stderr and not (tmp_path / "runs").exists()
    (tmp_path / "list.yaml").write_text("[]")
    assert "has no list" in call(tmp_path).stderr


def test_the_books_list_holds():
    assert campaign.read(LIST)
