"""The comparisons of speed: all sides train alike, what is stored is shown; the GPU's script."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fedrepro.engine import StackedEngine
from tests import toys
from tests.benchmarks.conftest import script
from tests.data.made import one_line

cross, rounds, gpu = map(script, ("cross_device", "rounds", "gpu"))


@pytest.fixture
def tiny(tmp_path):
    asked = {"users": 20, "cohort": 5, "images": 12, "size": 8, "batch": 6, "rounds": 2}
    work = cross.Work(str(tmp_path), threads=1, **asked)
    cross.made_images(work)
    return work


@pytest.mark.slow
def test_a_side_does_the_work_asked_for_and_an_idle_one_is_found_out(tiny):
    found = cross.once("library", tiny, cross.Place("reference", {}))
    assert found["steps"] == 5 * 2 * 3  # a round warms up
    assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
    cross.check(found, tiny)
    for changes, says in (
        ({"steps": 29}, "29 local steps in 2 rounds, not 30"),
        ({"seconds": [1.0]}, "in 1 rounds"),
        ({"loss_after": found["loss_before"]}, "its loss does not fall"),
        ({"loss_after": float("nan")}, "its loss does not fall"),
        ({"moved": 0.0}, "its loss does not fall"),
    ):
        with one_line(says):
            cross.check({**found, **changes}, tiny)


def test_sides_take_turns_and_what_is_stored_is_shown(tmp_path, monkeypatch, capsys):
    order: list[str] = []
    seconds = {"library": [1.0, 2.0, 4.0], "field": [3.0, 3.0, 3.0]}

    def once(side: str, work: Any, place: Any) -> dict[str, Any]:
        order.append(side)
        spent = [seconds[side][order.count(side) - 1]] * 2
        sound = {"steps": 30, "loss_before": 2.3, "loss_after": 2.2, "moved": 1}
        return {"seconds": spent, **sound}

    monkeypatch.setattr(cross, "made_images", lambda work: None)
    monkeypatch.setattr(cross, "once", once)
    path = tmp_path / "results" / "cross-device-one.json"
    words = "--rounds 2 --repeat 3 --threads 1 --peers field"
    cross.main([*words.split(), "--json", str(path)])
    assert order == ["library", "field"] * 3
    held = json.loads(path.read_text())
    assert held["ratios"] == {"field": {"median": 1.5, "min": 0.75, "max": 3.0}}  # the gain
    library, field = capsys.readouterr().out.splitlines()
    assert library.startswith("side: library (reference, float32), seconds per round: 2.000 (")
    assert "1.50 (0.75 to 3.00)" in field


TINY = rounds.Settings(model="tiny-cnn", clients=3, images=39, size=16, batch=8, repeat=2)


@pytest.mark.parametrize("method", ["FedAvg", "ADCOL"])
def test_both_sides_train_alike(method):
    """Same start, same batches: two local epochs and two rounds agree to rounding, and learn."""
    settings = replace(TINY, epochs=2)
    federation = rounds.made_federation(settings)
    library, seconds = rounds.library_rounds(method, settings, federation, 2)
    field, _ = rounds.field_rounds(method, settings, federation, 2, same_order=True)
    assert len(seconds) == 2 and min(seconds) > 0 and field[1]["ce"] < field[0]["ce"]
    assert set(field[0]) == ({"ce"} if method == "FedAvg" else {"ce", "kl"})
    for ours, theirs in zip(library, field, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    other, _ = rounds.field_rounds(method, settings, federation, 1)
    assert other[0]["ce"] != pytest.approx(field[0]["ce"], rel=1e-6)  # shuffled for itself


@pytest.mark.slow
def test_the_whole_path_on_the_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "AT_ONCE", 1)
    monkeypatch.setattr(gpu, "apart", lambda case, _: json.loads(json.dumps(gpu.work(case))))
    path, runs = tmp_path / "gpu.json", tmp_path / "runs"
    words = ["--dry-run", "--jobs", "2", "--json", str(path), "--runs", str(runs)]
    gpu.main(words)
    stored = json.loads(path.read_text())
    assert [a["error"] for s in gpu.STEPS for a in stored[s].values() if "error" in a] == []
    assert all(answer["ok"] for answer in stored["checks"].values())
    assert {*gpu.TIMED, "augmentation", "small-cnn"} == set(stored["checks"])
    assert all(f"adcol-digits/FedAvg/{e}" in stored["timing"] for e in ("fused", "field"))
    assert {answer["state"] for answer in stored["runs"].values()} == {"done"}
    assert len(list(toys.records(runs))) == len(stored["runs"]) == 2
    assert "wrong: none" in capsys.readouterr().out
    gpu.main([*words, "--only", "timing"])
    again = json.loads(path.read_text())
    assert len(again["calls"]) == 2 and again["timing"] == stored["timing"]


def test_a_wrong_engine_is_found(monkeypatch):
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
