"""Growth, phases of a round, clients at once, precisions: what is timed and counted and written."""

import json

import pandas as pd
import pytest

from fedrepro.federated import metrics
from tests import toys
from tests.benchmarks.conftest import FOLDER, script

growth, phases, precision = map(script, ("growth", "phases", "precision"))


@pytest.mark.slow
def test_growth_in_processes_of_their_own_fills_the_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(growth, "METHODS", ("ADCOL",))
    words = "--axis clients --values 4 2 --images 6 --batch 4 --rounds 1 --repeat 2 --threads 1"
    growth.main([*words.split(), "--results", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    assert path.name == "growth-clients-reference-cpu.json"
    file = json.loads(path.read_text())
    assert file["command"] == f"python benchmarks/growth.py {words}"
    assert file["environment"]["threads"] == file["settings"]["threads"] == 1
    ((method, points),) = file["results"].items()
    assert [point["x"] for point in points] == [2, 4]
    for point in points:
        assert point["point"]["method"] == method == "ADCOL"
        first, second = point["processes"]
        assert first["operations"] > 0 and second["operations"] is None
        assert len(first["seconds"]) == 2 and 0 < first["before"] <= first["peak"]
    assert "slope" in capsys.readouterr().out


def test_a_slope_is_the_power_of_the_larger_half():
    y = [7.0, 7.0, 7.0, *(3 * x**1.5 for x in (10, 20, 40))]
    found = script("report_growth").slope([1, 2, 3, 10, 20, 40], y)
    assert found.value == pytest.approx(1.5) and (found.start, found.end) == (10, 40)
    assert found.low == pytest.approx(found.high) == pytest.approx(1.5)


def test_the_file_of_phases_is_what_the_page_draws(tmp_path, capsys):
    words = "--model tiny-cnn --clients 2 --images 18 --size 16 --batch 8 --repeat 2 --threads 1"
    path = tmp_path / "phases-cpu.json"
    phases.main([*words.split(), "--json", str(path)])
    file = json.loads(path.read_text())
    for found in file["results"]["tiny-cnn"].values():
        assert len(found["watched"]) == len(found["plain"]) == 2 and min(found["plain"]) > 0
        for row in found["watched"]:
            assert set(row) == set(phases.report.PARTS)
            # the parts are no more than the library's own clock says
            assert all(row[part] > 0 for part in ("reading", "forward", "backward", "step", "rest"))
    assert "tiny-cnn, ADCOL" in capsys.readouterr().out
    assert "tiny-cnn, FedAvg" in phases.report.phase_table(tmp_path).html
    bars = phases.report.phases_picture(file).axes[0].patches  # shares of two methods' rounds
    assert sum(bar.get_width() for bar in bars) == pytest.approx(200)


@pytest.mark.slow
def test_the_stored_accuracies_of_precisions_are_those_of_the_runs(tmp_path):
    path, folder = tmp_path / "precision.json", tmp_path / "runs"
    words = f"--dataset minidigits --scale smoke --methods FedAvg --seeds 0,1 --json {path}"
    precision.main([*words.split(), "--runs", str(folder)])
    stored = json.loads(path.read_text())
    assert stored["settings"]["seeds"] == [0, 1] and str(tmp_path) not in stored["command"]
    runs = {(r.protocol.precision, r.config["seed"]): r for r in toys.records(folder)}
    assert sorted(runs) == [("bf16", 0), ("bf16", 1), ("float32", 0), ("float32", 1)]
    for (name, seed), record in runs.items():
        accuracy = metrics.scores(record.curve, "last5")["avg"]
        assert stored["results"]["FedAvg"][name][seed] == accuracy


def test_fedbn_is_its_authors_code_until_rounding_errors_grow():
    """What the page of the papers' own protocol says of the stored rounds."""
    stored = pd.read_json(FOLDER.parent / "book" / "records" / "end-to-end-fedbn.json", dtype=False)
    theirs, moved = (stored[f"{what} - ours"].astype(float) for what in ("theirs", "ours moved"))
    assert theirs[0] == 0 and theirs[1] < 1e-4 < 1 < moved[0]
