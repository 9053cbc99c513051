"""The speed comparison: both sides train alike, and what it writes can be read."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.benchmarks.conftest import script
from tests.data.made import one_line

bench = script("rounds")
TINY = bench.Settings(model="tiny-cnn", clients=3, images=39, size=16, batch=8, repeat=2)


@pytest.mark.parametrize("method", ["FedAvg", "ADCOL"])
def test_both_sides_train_alike(method):
    """Same start, same batches: two local epochs and two rounds agree to rounding, and learn."""
    settings = replace(TINY, epochs=2)
    federation = bench.made_federation(settings)
    library, seconds = bench.library_rounds(method, settings, federation, 2)
    field, _ = bench.field_rounds(method, settings, federation, 2, same_order=True)
    assert len(seconds) == 2 and min(seconds) > 0
    assert field[1]["ce"] < field[0]["ce"]
    assert set(field[0]) == ({"ce"} if method == "FedAvg" else {"ce", "kl"})
    for ours, theirs in zip(library, field, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    other, _ = bench.field_rounds(method, settings, federation, 1)
    assert other[0]["ce"] != pytest.approx(field[0]["ce"], rel=1e-6)  # shuffled for itself


def test_a_wrong_loss_stops_the_measurement(monkeypatch):
    federation = bench.made_federation(TINY)
    found = bench.check("FedAvg", TINY, federation)
    assert found["largest_gap"] <= found["tolerance"]
    wrong = [{name: 1.02 * value for name, value in row.items()} for row in found["field"]]
    for rows, message in ((wrong, "differ"), (wrong[::-1], "does not fall")):
        monkeypatch.setattr(bench, "field_rounds", lambda *_, rows=rows, **__: (rows, [1.0]))
        with one_line(message):
            bench.check("FedAvg", TINY, federation)


def test_what_is_stored_is_what_the_page_shows(tmp_path, monkeypatch, capsys):
    peak = {"library": iter((90, 90, 100, 100)), "field": iter((200, 200, 150, 150))}

    def measured(side: str, *_: Any) -> dict[str, Any]:
        memory = {"before": 1.0, "peak": next(peak[side]), "device_peak": None}
        return {"seconds": [1.0, 3.0] if side == "library" else [4.0], "memory_mib": memory}

    monkeypatch.setattr(bench, "measured_apart", measured)
    words = "--model tiny-cnn --clients 2 --images 30 --size 16 --batch 8 --repeat 2 --threads 1"
    path = tmp_path / "results" / "rounds-one.json"
    bench.main([*words.split(), "--json", str(path)])
    stored = json.loads(path.read_text())
    assert stored["command"].startswith(f"python benchmarks/rounds.py {words}")
    facts = {"date", "device", "cores", "threads", "packages", "commit"}
    assert facts <= set(stored["environment"])
    for found in stored["results"].values():
        assert found["seconds"] == {"library": [2.0, 2.0], "field": [4.0, 4.0]}
        assert found["seconds_ratio"] == {"median": 0.5, "min": 0.5, "max": 0.5}
        assert found["memory_ratio"] == 0.5
    page, shown = script("report").rounds(path.parent).html, capsys.readouterr().out
    for part in ("2.00", "4.00", "0.50", "100", "200", "30 images", "tiny-cnn, float32", "ADCOL"):
        assert part in page and part in shown
