"""The watch on a round: it sees all of training, nothing of the server, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.engine import LoopEngine
from fedrepro.federated.rounds import Training
from fedrepro.methods.server import Server

SCRIPT = "phases"
CPU = torch.device("cpu")
PARTS = {"reading", "forward", "backward", "step"}


@pytest.fixture
def tiny(bench: ModuleType) -> Any:
    return bench.Settings(model="tiny-cnn", clients=2, images=18, size=16, batch=8, repeat=2)


@pytest.mark.parametrize("method", ["FedAvg", "ADCOL"])
def test_rounds_are_watched_in_turn(bench: ModuleType, tiny: Any, method: str) -> None:
    found = bench.measure(method, tiny)
    assert len(found["watched"]) == len(found["plain"]) == tiny.repeat
    for row in found["watched"]:
        assert set(row) == set(bench.report.PARTS)
        assert all(row[part] > 0 for part in PARTS)
        assert row["rest"] > 0  # the parts are no more than the library's own clock says
    assert min(found["plain"]) > 0


def test_watching_changes_nothing_and_ends(bench: ModuleType, tiny: Any) -> None:
    method = methods.create("ADCOL")
    torch.optim.SGD([torch.zeros(1)])  # with the first one torch wraps every SGD's step
    owners = [LoopEngine, type(method), torch.Tensor, torch.optim.SGD, Server]
    names = ["_batch", "client_loss", "backward", "step", "fit"]
    before = [getattr(owner, name) for owner, name in zip(owners, names, strict=True)]
    runs = [Training(method, tiny.protocol(2), bench.made_federation(tiny), 0, CPU) for _ in "ab"]
    watch = bench.Watch(CPU)
    watch.on = True
    with watch.around(type(method)):
        runs[0].run(Silent())
    assert set(watch.seconds) == PARTS
    seen = dict(watch.seconds)
    runs[1].run(Silent())
    assert watch.seconds == seen
    assert [getattr(o, n) for o, n in zip(owners, names, strict=True)] == before
    for one, other in zip(*(run.clients for run in runs), strict=True):
        assert all(torch.equal(one.kept[name], other.kept[name]) for name in one.kept)


def test_the_file_is_what_the_page_draws(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--model tiny-cnn --clients 2 --images 18 --size 16 --batch 8 --repeat 2 --threads 1"
    path = tmp_path / "phases-cpu.json"
    bench.main([*words.split(), "--json", str(path)])
    file = json.loads(path.read_text())
    assert set(file) == {"command", "settings", "environment", "load_average", "results"}
    assert file["command"] == f"python benchmarks/phases.py {words}"
    assert "tiny-cnn, ADCOL" in capsys.readouterr().out
    assert "tiny-cnn, FedAvg" in bench.report.phase_table(tmp_path).html
    assert len(bench.report.phases_picture(file).axes[0].get_yticklabels()) == 2
