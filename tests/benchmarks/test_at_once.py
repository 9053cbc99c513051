"""Clients at once beside one after another: what is timed, and what the page says of it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from fedrepro.base.files import write_json
from fedrepro.federated.rounds import Training

SCRIPT = "at_once"


def test_both_ways_train_alike_in_turn(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Training] = []
    one_round = Training.one_round

    def noted(self: Training) -> None:
        one_round(self)
        done.append(self)

    monkeypatch.setattr(Training, "one_round", noted)
    settings = bench.Settings(model="small-cnn", clients=4, images=12, batch=6, threads=2, repeat=2)
    found = bench.measure(settings)
    in_turn, at_once = done[:2]
    assert done == [in_turn, at_once] * 3
    assert (in_turn.engine.lanes, at_once.engine.lanes) == (1, 2)  # type: ignore[attr-defined]
    one, other = (run.curve().query("measure == 'term'").value for run in (in_turn, at_once))
    assert len(one) == 3 * 4
    # Not to the bit: a client's sums are split among one thread or two.
    assert one.to_numpy() == pytest.approx(other.to_numpy(), rel=0.01)
    assert len(found["in turn"]) == len(found["at once"]) == 2
    assert min(*found["in turn"], *found["at once"]) > 0


def test_the_page_shows_ratios(bench: ModuleType, tmp_path: Path) -> None:
    asked = {"clients": 4, "images": 12, "size": 28, "batch": 6, "precision": "bf16"}
    found = {
        "environment": {"device": "C", "threads": 2},
        "results": [
            {
                "settings": {"model": name, **asked},
                "parameters": n,
                "in turn": turn,
                "at once": once,
            }
            for name, n, turn, once in [
                ("a", 100, [3.0, 2.0, 4.0], [1.0, 2.0, 2.0]),
                ("b", 101, [1.0], [2.0]),
            ]
        ],
    }
    write_json(tmp_path / "at-once-cpu.json", found)
    small, large = bench.report.at_once_rows(found)
    assert small["in turn / at once"] == "2.00 (1.00 to 3.00)"
    assert large["in turn / at once"].startswith("0.50")
    assert "a (bf16)" in str(bench.report.at_once(tmp_path)._repr_html_())
