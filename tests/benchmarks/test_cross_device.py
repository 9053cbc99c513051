"""The comparison with many small users: every side trains the same network, and it is checked."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import seeded_modules
from fedrepro.models import build_model

SCRIPT = "cross_device"


@pytest.fixture
def shared(bench: ModuleType) -> ModuleType:
    return importlib.import_module("peers.shared")


@pytest.fixture
def tiny(bench: ModuleType, tmp_path: Path) -> Any:
    """20 users of 12 images, 5 a round, 2 steps each."""
    work = bench.Work(
        str(tmp_path), users=20, cohort=5, images=12, size=8, batch=6, rounds=2, threads=1
    )
    bench.made_images(work)
    return work


def answer(**changes: Any) -> dict[str, Any]:
    sound = {"seconds": [1.0, 1.0], "steps": 30, "loss_before": 2.3, "loss_after": 2.2, "moved": 1}
    return {**sound, **changes}


@pytest.mark.parametrize("form", ["public", "tuned"])
def test_peers_network_gives_the_librarys_values(shared: ModuleType, tiny: Any, form: str) -> None:
    work = replace(tiny, size=32, network=form)
    with seeded_modules(0):
        ours = build_model("pfl-cnn", shared.CLASSES, 32)
    theirs = shared.network(work)
    assert [p.shape for p in theirs.parameters()] == [p.shape for p in ours.parameters()]
    with torch.no_grad():
        for mine, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
            yours.copy_(mine)
        x = torch.randn(4, 3, 32, 32)
        torch.testing.assert_close(theirs(x), ours(x).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["library"])
def test_a_side_does_the_work_asked_for(bench: ModuleType, tiny: Any, side: str) -> None:
    found = bench.once(side, tiny, bench.Place("reference", {}))
    assert found["steps"] == 5 * 2 * 3  # a round warms up
    assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
    assert found["loss_after"] < found["loss_before"] and "torch" in found["versions"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 29}, "29 local steps in 2 rounds, not 30"),
        ({"seconds": [1.0]}, "in 1 rounds"),
        ({"loss_after": 2.3}, "its loss does not fall"),
        ({"loss_after": float("nan")}, "its loss does not fall"),
        ({"moved": 0.0}, "its loss does not fall"),
    ],
)
def test_idle_sides_are_found_out(bench: ModuleType, tiny: Any, changes: Any, says: str) -> None:
    bench.check(answer(), tiny)
    with pytest.raises(FedReproError, match=says):
        bench.check(answer(**changes), tiny)


def test_sides_take_turns_and_a_ratio_above_one_is_the_librarys_gain(
    bench: ModuleType, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    seconds = {"library": [1.0, 2.0], "field": [3.0, 3.0]}

    def once(side: str, work: Any, place: Any) -> dict[str, Any]:
        order.append(side)
        return answer(seconds=[seconds[side][order.count(side) - 1]])

    monkeypatch.setattr(bench, "once", once)
    sides = bench.measure(tiny, 2, ["field"], bench.Place("reference", {}))
    assert order == ["library", "field"] * 2
    assert bench.ratios(sides) == {"field": {"median": 2.25, "min": 1.5, "max": 3.0}}


def test_what_is_stored_fills_the_readme(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"library": 2.0, "field": 5.0}
    monkeypatch.setattr(bench, "made_images", lambda work: None)
    monkeypatch.setattr(bench, "once", lambda side, *_: answer(seconds=[seconds[side]] * 2))
    path = tmp_path / "results" / "cross-device-one.json"
    words = "--rounds 2 --repeat 3 --threads 1 --peers field"
    bench.main([*words.split(), "--json", str(path)])
    held = json.loads(path.read_text())
    (call,) = held["calls"]
    assert call["command"].startswith(f"python benchmarks/cross_device.py {words}")
    assert {"device", "packages", "commit"} <= set(call["environment"])
    assert "folder" not in held["settings"] and held["settings"]["rounds"] == 2
    assert held["ratios"] == {"field": {"median": 2.5, "min": 2.5, "max": 2.5}}
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{bench.MARKS[0]}\nold\n{bench.MARKS[1]}\nafter\n")
    text = bench.fill_readme(readme, path.parent)
    assert readme.read_text() == f"before\n{bench.MARKS[0]}\n{text}\n{bench.MARKS[1]}\nafter\n"
    assert "| library (reference, float32) | 2.00 | 2, 3 |" in text
    assert "| field | 5.00 | 2, 3 | 2.50 (2.50 to 2.50) |" in text


def test_readme_shows_the_stored_measurements(bench: ModuleType) -> None:
    shown = bench.README.read_text(encoding="utf-8").split(bench.MARKS[0])[1]
    stored = bench.table(list(bench.RESULTS.glob("cross-device-*.json")))
    assert shown.split(bench.MARKS[1])[0].strip() == stored
