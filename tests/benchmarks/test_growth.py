"""The growth measurement: what varies, what is timed and counted, and what it writes."""

from __future__ import annotations

import importlib
import json
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent

FOLDER = Path(__file__).parents[2] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("growth")


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


def test_clients_are_equal_and_dealt_to_few_domains(bench: ModuleType, tiny: Any) -> None:
    federation = replace(tiny, clients=12).federation()
    assert {len(c.train) for c in federation.clients} == {tiny.images}
    assert [c.domain for c in federation.clients[:6]] == [*federation.domains, "domain0"]
    assert {len(test) for test in federation.tests.values()} == {tiny.tests}
    first, second = federation.clients[:2]
    assert not torch.equal(first.train.images, second.train.images)


def test_every_round_is_timed_whole_and_by_phase(bench: ModuleType, tiny: Any) -> None:
    found = bench.train(tiny, CPU)
    assert len(found["seconds"]) == 1 + tiny.rounds and min(found["seconds"]) > 0
    assert {"train", "messages", "server", "evaluate"} <= set(found["phases"])
    for number, whole in enumerate(found["seconds"]):
        assert 0 < sum(values[number] for values in found["phases"].values()) <= whole
    assert bench.operations(tiny, CPU) == bench.operations(replace(tiny, rounds=5), CPU) > 0


@pytest.mark.parametrize("method", ["FedAvg", "ADCOL"])
def test_operations_of_many_clients_are_reckoned_from_few(
    bench: ModuleType, tiny: Any, method: str
) -> None:
    """As if all had been counted. FedAvg's are proportional to its clients but for the tests of
    five domains; ADCOL's discriminator has an output a client."""
    sizes = [replace(tiny, method=method, clients=n) for n in (15, 22, 40)]
    reckoned = [bench.operations(point, CPU) for point in sizes]
    counted = []
    for point in sizes:
        with FlopCounterMode(display=False) as counter:
            bench.training(replace(point, rounds=0), CPU).run(Silent())
        counted.append(counter.get_total_flops())
    assert reckoned == counted
    each = [(b - a) / n for a, b, n in zip(counted, counted[1:], (7, 18), strict=False)]
    assert each[0] == each[1] if method == "FedAvg" else each[0] < each[1]


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


def test_a_killed_process_is_one_line(
    bench: ModuleType, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed:
        def __init__(self, *_: Any) -> None: ...

        def __enter__(self) -> Killed:
            return self

        def __exit__(self, *_: Any) -> None: ...

        def submit(self, *_: Any) -> Any:
            raise BrokenProcessPool("terminated abruptly")

    monkeypatch.setattr(bench, "ProcessPoolExecutor", Killed)
    with pytest.raises(FedReproError, match=r"FedAvg with 3 clients was killed.*--values"):
        bench.apart(tiny, False)


@pytest.mark.slow
def test_processes_of_their_own_fill_the_file(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The memory is of the fresh process, not of this one, which holds more."""
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
