"""The performance page's views: slopes, figures and tables hold what the stored files hold."""

import json

import pytest

from tests.benchmarks.conftest import script

report, growth = script("report"), script("report_growth")


def test_a_slope_is_the_power_of_the_larger_half():
    x = [1, 2, 3, 10, 20, 40]
    y = [7.0, 7.0, 7.0, *(3 * v**1.5 for v in x[3:])]
    found = growth.slope(x, y)
    assert found is not None
    assert found.value == pytest.approx(1.5) and (found.start, found.end) == (10, 40)
    assert found.low == pytest.approx(found.high) == pytest.approx(1.5)


def test_a_narrow_precision_beside_float32(tmp_path):
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t of two degrees 4.303."""
    asked = {"precision": "bf16", "paper": "adcol", "experiment": "table-1", "rule": "last5"}
    asked |= {"dataset": "digits5", "scale": "reduced", "seeds": [0, 1, 2]}
    one = {"float32": [80.0, 80.0, 83.0], "bf16": [81.0, 82.0, 86.0]}
    place = {"device": "a <processor>", "threads": 2, "date": "2026-01-02T03:04:05+00:00"}
    place |= {"python": "3.11.1", "packages": {"torch": "2"}, "commit": "abc", "dirty": True}
    file = {"settings": asked, "results": {"FedAvg": one}, "environment": place}
    file["load_average"] = {"before": 0.1, "after": 1.0}
    (tmp_path / "precision-x.json").write_text(json.dumps(file))
    html = report.precision(tmp_path).html
    shown = "81.00", "83.00", "+2.00 (-0.48 to +4.48)", "1.73", "<td>no</td>", "digits5"
    assert all(part in html for part in shown)


def test_every_view_shows_the_measurements_that_are_stored(tmp_path):
    """The project's own files, not made ones; where there is none a view says so."""
    for view in (report.rounds, report.phase_table, report.cross_device):
        assert report.NOTHING not in view().html and report.NOTHING in view(tmp_path).html
    assert "pfl-torchrun (float32)" in report.cross_device().html
    assert report.NOTHING in growth.growth("clients", tmp_path).html
