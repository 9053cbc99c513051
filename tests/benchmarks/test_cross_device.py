"""The comparison with many small users: every side trains the same network, and it is checked."""

import importlib
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedrepro.base.rng import seeded_modules
from fedrepro.models import build_model
from tests.benchmarks.conftest import script
from tests.data.made import one_line

bench = script("cross_device")


@pytest.fixture
def tiny(tmp_path):
    """20 users of 12 images, 5 a round, 2 steps each."""
    asked = {"users": 20, "cohort": 5, "images": 12, "size": 8, "batch": 6, "rounds": 2}
    work = bench.Work(str(tmp_path), threads=1, **asked)
    bench.made_images(work)
    return work


@pytest.mark.parametrize("form", ["public", "tuned"])
def test_peers_network_gives_the_librarys_values(tiny, form):
    shared = importlib.import_module("peers.shared")
    with seeded_modules(0):
        ours = build_model("pfl-cnn", shared.CLASSES, 32)
    theirs = shared.network(replace(tiny, size=32, network=form))
    assert [p.shape for p in theirs.parameters()] == [p.shape for p in ours.parameters()]
    with torch.no_grad():
        for mine, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
            yours.copy_(mine)
        x = torch.randn(4, 3, 32, 32)
        torch.testing.assert_close(theirs(x), ours(x).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_side_does_the_work_asked_for_and_an_idle_one_is_found_out(tiny):
    found = bench.once("library", tiny, bench.Place("reference", {}))
    assert found["steps"] == 5 * 2 * 3  # a round warms up
    assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
    bench.check(found, tiny)
    for changes, says in (
        ({"steps": 29}, "29 local steps in 2 rounds, not 30"),
        ({"seconds": [1.0]}, "in 1 rounds"),
        ({"loss_after": found["loss_before"]}, "its loss does not fall"),
        ({"loss_after": float("nan")}, "its loss does not fall"),
        ({"moved": 0.0}, "its loss does not fall"),
    ):
        with one_line(says):
            bench.check({**found, **changes}, tiny)


def test_sides_take_turns_and_what_is_stored_is_shown(tmp_path, monkeypatch, capsys):
    order: list[str] = []
    seconds = {"library": [1.0, 2.0, 4.0], "field": [3.0, 3.0, 3.0]}

    def once(side: str, work: Any, place: Any) -> dict[str, Any]:
        order.append(side)
        spent = [seconds[side][order.count(side) - 1]] * 2
        sound = {"steps": 30, "loss_before": 2.3, "loss_after": 2.2, "moved": 1}
        return {"seconds": spent, **sound}

    monkeypatch.setattr(bench, "made_images", lambda work: None)
    monkeypatch.setattr(bench, "once", once)
    path = tmp_path / "results" / "cross-device-one.json"
    words = "--rounds 2 --repeat 3 --threads 1 --peers field"
    bench.main([*words.split(), "--json", str(path)])
    assert order == ["library", "field"] * 3
    held = json.loads(path.read_text())
    assert held["ratios"] == {"field": {"median": 1.5, "min": 0.75, "max": 3.0}}  # the gain
    library, field = capsys.readouterr().out.splitlines()
    assert library.startswith("side: library (reference, float32), seconds a round: 2.000 (")
    assert "1.50 (0.75 to 3.00)" in field
