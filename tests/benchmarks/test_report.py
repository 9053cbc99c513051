"""The performance page's views: slopes, figures and tables hold what the stored files hold."""

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


def test_every_view_shows_the_measurements_that_are_stored(tmp_path):
    """The project's own files, not made ones; where there is none a view says so."""
    for view in (report.rounds, report.phase_table, report.cross_device):
        assert report.NOTHING not in view().html and report.NOTHING in view(tmp_path).html
    assert report.NOTHING in growth.growth("clients", tmp_path).html
