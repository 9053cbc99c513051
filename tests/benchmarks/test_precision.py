"""A narrow precision beside float32: the same runs in both, and only sensible questions."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.federated import metrics
from fedrepro.records import Store

SCRIPT = "precision"


@pytest.mark.slow
def test_the_stored_accuracies_are_those_of_the_runs(bench: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "precision.json"
    words = f"--dataset minidigits --scale smoke --methods FedAvg --seeds 0,1 --json {path}"
    bench.main([*words.split(), "--runs", str(tmp_path / "runs")])
    stored = json.loads(path.read_text())
    assert stored["settings"]["seeds"] == [0, 1] and str(tmp_path) not in stored["command"]
    found = stored["results"]["FedAvg"]
    runs = {(r.config["protocol"]["precision"], r.config["seed"]): r for r in
            Store(tmp_path / "runs").records()}  # fmt: skip
    assert sorted(runs) == [("bf16", 0), ("bf16", 1), ("float32", 0), ("float32", 1)]
    for (precision, seed), record in runs.items():
        assert found[precision][seed] == metrics.scores(record.curve, "last5")["avg"]


def test_what_makes_no_comparison_is_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FedReproError, match="a CPU has no tf32"):
        bench.main(["--precision", "tf32"])
    for seeds in ("0", "0,0", "0,x"):
        with pytest.raises(SystemExit):
            bench.main(["--seeds", seeds])
        assert "different seeds" in capsys.readouterr().err
