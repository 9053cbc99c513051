"""A sweep killed in the middle of a training run, the real notebook in it, then --resume."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from fedrepro.base.progress import Silent
from fedrepro.quantities.paper_run import study
from fedrepro.report.results import finished
from tests.toys import numbers

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["sweep", "adcol", "--experiment", "table-1", "--methods", "ADCOL,FedAvg", "--seeds", "3"]


def command(runs, *more):
    return [sys.executable, "-m", "fedrepro.cli", *WORDS, "--runs", str(runs), *more]


@pytest.mark.slow
def test_killed_mid_run_then_resumed_gives_the_records_of_an_uninterrupted_sweep(tmp_path):
    place = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    cut = tmp_path / "cut"
    child = subprocess.Popen(command(cut), env=place, stderr=subprocess.DEVNULL, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not (begun := list(cut.glob("*/config.json"))):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (begun[0].parent / "done").exists(), "killed too late to prove anything"
    assert not list(cut.glob("notebooks/*.ipynb")), "half a notebook passes as a whole one"

    resumed = subprocess.run(command(cut, "--resume"), env=place, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert [finished(path) for path in cut.glob("notebooks/*.ipynb")] == [True]
    whole = study("adcol", "minidigits", "smoke", 3, runs_dir=tmp_path / "whole", device="cpu",
                  only=["ADCOL", "FedAvg"], progress=Silent())  # fmt: skip
    for result in whole.results("table-1"):
        again = pd.read_parquet(cut / result.record.run_id / "curve.parquet")
        pd.testing.assert_frame_equal(
            numbers(again), numbers(result.record.curve), check_exact=True
        )
