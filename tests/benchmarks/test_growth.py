"""The growth measurement: what varies, what is timed and counted, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedrepro.base.errors import FedReproError

SCRIPT = "growth"
CPU = torch.device("cpu")


@pytest.fixture
def tiny(bench: ModuleType) -> Any:
    return bench.Point("FedAvg", clients=3, images=6, tests=4, batch=4, rounds=2)


def test_an_axis_varies_one_thing(bench: ModuleType, tiny: Any) -> None:
    for axis, values in bench.AXES.items():
        points = [bench.at(axis, value, tiny) for value in values]
        places = [bench.place(axis, point) for point in points]
        assert places == sorted(set(places)) and len(places) >= 6
        assert places[-1] >= 30 * places[0]
        same = {(p.images, p.batch, p.rounds, p.method) for p in points}
        assert len(same) == 1
        assert len({p.clients for p in points}) == (len(values) if axis == "clients" else 1)
    assert bench.place("pixels", bench.at("pixels", 24, tiny)) == 24 * 24


def test_values_are_checked_before_anything_runs(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "stored", lambda *_: pytest.fail("measured"))
    for words, message in (
        ("--values 3 5", "belong to one axis"),
        ("--axis clients --values 7", "two or more"),
        ("--axis clients --values 0 5", "from 1 on"),
        ("--images 1", "2 or more"),
    ):
        with pytest.raises(FedReproError, match=message) as caught:
            bench.main(words.split())
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_processes_of_their_own_fill_the_file(
    bench: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory is of the fresh process, not of this one, which holds more."""
    monkeypatch.setattr(bench, "METHODS", ("ADCOL",))
    ballast = torch.ones(96, 1024, 1024)  # 384 MiB
    words = "--axis clients --values 4 2 --images 6 --batch 4 --rounds 1 --repeat 2 --threads 1"
    bench.main([*words.split(), "--results", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    assert path.name == "growth-clients-reference-cpu.json"
    file = json.loads(path.read_text())
    assert file["command"] == f"python benchmarks/growth.py {words}"
    assert file["environment"]["threads"] == file["settings"]["threads"] == 1
    for method, points in file["results"].items():
        assert [point["x"] for point in points] == [2, 4]
        for point in points:
            assert point["point"]["method"] == method
            first, second = point["processes"]
            assert first["operations"] > 0 and second["operations"] is None
            assert len(first["seconds"]) == 2
            assert 0 < first["before"] <= first["peak"] < bench.peak_mib(CPU)
    assert "slope" in capsys.readouterr().out
    assert ballast.shape == (96, 1024, 1024)
