"""The script for a GPU, its whole path on the CPU; and what keeps a failure small."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedrepro import papers
from fedrepro.engine import ENGINES, FusedEngine
from fedrepro.runs import Store

FOLDER = Path(__file__).parents[2] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu")


@pytest.mark.slow
def test_the_whole_path_on_the_cpu(
    gpu: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "CHECKED_AT_ONCE", 2)
    path, runs = tmp_path / "gpu.json", tmp_path / "runs"
    words = ["--dry-run", "--json", str(path), "--runs", str(runs)]
    gpu.main(words)
    stored = json.loads(path.read_text())
    parts = (stored["checks"], stored["rates"], stored["floors"], stored["timing"], stored["runs"])
    assert [a["error"] for part in parts for a in part.values() if "error" in a] == []
    assert stored["failed"] == []
    for name in gpu.TIMED:
        assert stored["checks"][f"{name}/captured"]["recorded"] > 0
        assert stored["checks"][f"{name}/eager"]["recorded"] == 0
        assert all(
            stored["checks"][f"{name}/{m}"]["ok"] for m in ("reference", "eager", "captured")
        )
    for shape in gpu.timing.SHAPES:
        for mode in (*gpu.agreement.MODES, "field"):
            seconds = stored["timing"][f"{shape}/FedAvg/{mode}"]["seconds"]
            assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
    assert stored["timing"]["digit-cnn/three seeds"]["ratio"]["median"] > 1
    call = stored["calls"][0]
    assert call["command"].startswith("python benchmarks/gpu.py --dry-run")
    assert {"date", "device", "driver", "packages", "commit"} <= set(call["environment"])
    records = {record.run_id: record for record in Store(runs).records()}
    assert len(records) == 3
    for answer in stored["runs"].values():
        assert answer["state"] == "done"
        config = records[answer["run_id"]].config
        proven = config["method"]["name"] in gpu.TIMED  # the others were not checked here
        assert config["engine"] == answer["engine"] == ("fused" if proven else "reference")
    printed = capsys.readouterr().out
    assert "failed: none" in printed and "runs: 3 done" in printed
    # a second call goes on with what the first has proven: nothing is done again
    gpu.main([*words, "--only", "timing"])
    again = json.loads(path.read_text())
    assert len(again["calls"]) == 2 and again["timing"] == stored["timing"]


def test_every_listed_run_is_a_table_of_its_paper(gpu: ModuleType) -> None:
    for paper, experiment, datasets in gpu.paper_runs.ORDER:
        assert papers.load(paper).experiment(experiment).kind == "accuracy"
        assert set(papers.load(paper).experiment(experiment).dataset.split(", ")) <= set(datasets)


# Correctness.


def test_a_wrong_engine_is_found_and_not_used(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = FusedEngine.train

    def nearly(self: Any, method: Any, jobs: Any) -> Any:
        for position, trained in train(self, method, jobs):
            if position == 0:
                trained.state["predictor.bias"] += 1e-6
            yield position, trained

    good = gpu.agreement.check("FedAvg", "captured", "cpu")
    assert good["ok"] and good["same_bits"] and good["gap"] < 1e-12
    monkeypatch.setattr(FusedEngine, "train", nearly)
    bad = gpu.agreement.check("FedAvg", "captured", "cpu")
    assert not bad["ok"] and 1e-8 < bad["gap"] < 1e-3 and bad["same_bits"]
    found = {"FedAvg/captured": bad, "FedAvg/eager": good, "FedAvg/reference": good}
    stored = {"checks": found, "timing": {}}
    protocol = gpu.timing.SHAPES["digit-cnn"].protocol()
    assert gpu.fastest(stored, "FedAvg", protocol) == "eager"
    assert gpu.fastest(stored, "ADCOL", protocol) == "reference"  # nothing is proven for it
    # turned images were never compared
    assert gpu.fastest(stored, "FedAvg", protocol.changed(data__rotate=30.0)) == "reference"
    # another network was, and failed
    found["digit-cnn/eager"] = bad
    assert gpu.fastest(stored, "FedAvg", protocol) == "reference"


def test_bits_that_differ_count_only_where_the_plain_loop_has_equal_ones(gpu: ModuleType) -> None:
    loose = {"ok": True, "same_bits": False}
    exact = {"ok": True, "same_bits": True}
    assert not gpu.is_right({"A/eager": loose, "A/reference": exact}, "A", "eager")
    assert gpu.is_right({"A/eager": loose, "A/reference": loose}, "A", "eager")
    assert not gpu.is_right({"A/eager": {"error": "gone"}, "A/reference": loose}, "A", "eager")


def test_the_measured_order_decides_among_the_proven(gpu: ModuleType) -> None:
    good = {"ok": True, "same_bits": True}
    checks = {f"FedAvg/{mode}": good for mode in gpu.agreement.MODES}
    times = {"captured": 3.0, "eager": 1.0, "reference": 2.0}
    timing = {f"digit-cnn/FedAvg/{m}": {"seconds": {"median": s}} for m, s in times.items()}
    protocol = gpu.timing.SHAPES["digit-cnn"].protocol()
    assert gpu.fastest({"checks": checks, "timing": timing}, "FedAvg", protocol) == "eager"
    assert gpu.fastest({"checks": checks, "timing": {}}, "FedAvg", protocol) == "captured"


def test_differences_of_every_kind_are_seen(gpu: ModuleType) -> None:
    shape, protocol = gpu.agreement.UNEQUAL, gpu.agreement.UNEQUAL.protocol(rounds=1)
    one, two = (
        gpu.agreement.play("SOLO", "reference", "cpu", shape, protocol.changed(precision="float64"))
        for _ in range(2)
    )
    assert gpu.agreement.gap(one, two) == 0
    name = next(iter(two.tensors))
    two.tensors[name] = two.tensors[name] + 1e-3
    assert 1e-5 < gpu.agreement.gap(one, two) <= 1e-3
    two.tensors[name] = two.tensors[name] * math.nan
    assert gpu.agreement.gap(one, two) == math.inf
    del two.tensors[name]
    assert gpu.agreement.gap(one, two) == math.inf


def test_an_engine_is_swapped_only_inside(gpu: ModuleType) -> None:
    with gpu.agreement.engine("eager", max_stack=2) as name:
        built = gpu.timing.training(gpu.timing.TINY["digit-cnn"], "SOLO", name, CPU).engine
        assert (built._lanes[0].record, built.max_stack) == (None, 2)
    assert ENGINES["fused"] is FusedEngine


# Timing.


def test_rounds_of_many_epochs_follow_from_short_ones(gpu: ModuleType) -> None:
    assert gpu.timing.from_short(1.5, 2.5, 10) == 10.5  # half a second a round, one an epoch
    assert gpu.timing.warm_rounds(10, True) == 2  # the fourth step of a kind is recorded
    assert gpu.timing.warm_rounds(1, True) == 5
    assert gpu.timing.warm_rounds(1, False) == 1


def test_floor_in_closed_form(gpu: ModuleType) -> None:
    """tiny-cnn at 16 pixels: products of 1 convolution and 3 linear layers, thrice but for the
    first layer's, whose input needs no gradient."""
    shape = gpu.timing.Shape("tiny-cnn", 16, (16, 8), batch=8, epochs=2)
    rates = {"float32_flops": 1e3, "tf32_flops": 1e4, "copy_bytes": 1e9}
    found = gpu.timing.floor(shape, rates)
    convolution, linear = 2 * 8 * 8 * 8 * 75, 2 * (32 * 32 + 32 * 16 + 16 * 10)
    assert found["flops"] == 2 * 24 * (2 * convolution + 3 * linear)
    assert found["client_steps"] == 2 * 3
    outputs = 8 * 8 * 8 + 32 + 16 + 10
    assert found["bytes"] == 4 * (5 * found["parameters"] * 6 + 2 * outputs * 48)
    assert found["seconds"] == found["flops"] / 1e3
    assert found["seconds_tf32"] == found["flops"] / 1e4


# Runs.


def test_a_run_that_cannot_end_is_left_and_goes_on_later(gpu: ModuleType, tmp_path: Path) -> None:
    case = {
        "paper": "adcol", "experiment": "table-4", "dataset": "minidigits", "scale": "smoke",
        "label": "FedAvg", "seed": 0, "mode": "captured", "device": "cpu",
        "runs": str(tmp_path), "data_root": None,
    }  # fmt: skip
    answer = gpu.paper_runs.train({**case, "deadline": 0.0})
    assert (answer["state"], answer["reached"]) == ("out of time", 1)
    assert list(Store(tmp_path).records()) == []
    done = gpu.paper_runs.train({**case, "deadline": time.time() + 100})
    assert (done["state"], done["engine"], done["rounds"]) == ("done", "fused", 2)
    assert 0 <= done["accuracy"] <= 100
    assert [record.run_id for record in Store(tmp_path).records()] == [done["run_id"]]


def test_the_gate_looks_once_then_waits_for_the_deadline(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 50.0, 51.0, 52.0])
    monkeypatch.setattr(gpu.paper_runs.time, "time", lambda: next(clock))
    gate = gpu.paper_runs.Gate(deadline=100.0)
    gate.start("a run", 100, 0)
    gate.round(1, "")  # 50 s of setting up do not count into the seconds a round
    gate.round(2, "")
    with pytest.raises(gpu.paper_runs.OutOfTime) as stop:
        gate.round(3, "")  # 97 more of a second each
    assert stop.value.args == (3,) and gate.per_round == 1.0


# Work in a process apart.

HELPER = f"""
import os, sys, time
sys.path.insert(0, {str(FOLDER)!r})
from workshop import serve
def work(case):
    if case["do"] == "die": print("last words", file=sys.stderr); os._exit(3)
    if case["do"] == "sleep": time.sleep(60)
    return {{"answer": 1 / case["do"], "process": os.getpid()}}
serve(work)
"""


def test_a_crash_a_hang_and_an_error_cost_one_piece_of_work(gpu: ModuleType) -> None:
    shop = gpu.Workshop([sys.executable, "-c", HELPER], {})
    first, second = shop.do({"do": 2}, 60), shop.do({"do": 4}, 60)
    assert (first["answer"], second["answer"]) == (0.5, 0.25)
    assert first["process"] == second["process"]
    assert shop.do({"do": 0}, 60) == {"error": "ZeroDivisionError: division by zero"}
    assert shop.do({"do": 1}, 60)["process"] != first["process"]
    assert shop.do({"do": "die"}, 60) == {"error": "the process ended: last words"}
    assert shop.do({"do": 1}, 60)["answer"] == 1
    assert shop.do({"do": "sleep"}, 0.5) == {"error": "no answer within 0 s"}
    assert shop.do({"do": 1}, 60)["answer"] == 1
    shop.close()
