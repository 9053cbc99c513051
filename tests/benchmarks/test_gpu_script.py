"""The script for a GPU, its whole path on the CPU; and what keeps a failure small."""

import json
from typing import Any

import pytest

from fedrepro.engine import StackedEngine
from tests import toys
from tests.benchmarks.conftest import script

gpu = script("gpu")


@pytest.mark.slow
def test_the_whole_path_on_the_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "AT_ONCE", 1)
    monkeypatch.setattr(gpu, "apart", lambda case, _: json.loads(json.dumps(gpu.work(case))))
    path, runs = tmp_path / "gpu.json", tmp_path / "runs"
    words = ["--dry-run", "--json", str(path), "--runs", str(runs)]
    gpu.main(words)
    stored = json.loads(path.read_text())
    assert [a["error"] for s in gpu.STEPS for a in stored[s].values() if "error" in a] == []
    assert all(answer["ok"] for answer in stored["checks"].values())
    assert {*gpu.TIMED, "augmentation", "small-cnn"} == set(stored["checks"])
    assert {f"adcol-digits/FedAvg/{e}" for e in ("reference", "fused", "field")} <= set(
        stored["timing"]
    )
    records = {record.run_id: record for record in toys.records(runs)}
    assert len(records) == len(stored["runs"]) == 3
    for answer in stored["runs"].values():
        assert answer["state"] == "done"
        config = records[answer["run_id"]].config
        proven = config["method"]["name"] in gpu.TIMED  # the others were not checked here
        assert config["engine"] == answer["engine"] == ("fused" if proven else "reference")
    assert "wrong: none" in capsys.readouterr().out
    # a second call goes on with what the first has proven: nothing is done again
    gpu.main([*words, "--only", "timing"])
    again = json.loads(path.read_text())
    assert len(again["calls"]) == 2 and again["timing"] == stored["timing"]


def test_a_wrong_engine_is_found_and_not_used(monkeypatch):
    train = StackedEngine.train

    def nearly(self: Any, method: Any, jobs: Any) -> Any:
        for position, trained in train(self, method, jobs):
            if position == 0:
                trained.state["predictor.bias"] += 1e-6
            yield position, trained

    good = gpu.check("FedAvg", "cpu", "method")
    assert good["ok"] and good["same_bits"] and good["gap"] < 1e-12
    monkeypatch.setattr(StackedEngine, "train", nearly)
    bad = gpu.check("FedAvg", "cpu", "method")
    assert not bad["ok"] and 1e-8 < bad["gap"] < 1e-3 and bad["same_bits"]
    stored: dict[str, Any] = {"checks": {"FedAvg": bad}, "timing": {}}
    protocol = gpu.SHAPES["digit-cnn"].protocol()
    assert gpu.engine_for(stored, "FedAvg", protocol) == "reference"
    stored["checks"]["FedAvg"] = good
    assert gpu.engine_for(stored, "FedAvg", protocol) == "fused"
    turned = protocol.changed(**{"data.rotate": 30.0})  # was never compared
    assert gpu.engine_for(stored, "FedAvg", turned) == "reference"
