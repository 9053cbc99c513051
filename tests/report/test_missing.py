"""What a test without runs needs."""

import re

import pytest

from fedrepro import papers
from fedrepro.quantities import work
from fedrepro.report import missing
from fedrepro.report.claims import of_recorded


@pytest.mark.parametrize(
    ("paper", "experiment", "runs"),
    [
        ("fedpall", "figure-5", 3 * 16),
        ("adcol", "table-6-speedup", 3 * 7 + 2 * 5),  # two rows are tuned over five values
    ],
)
def test_hours_are_the_work_of_all_rows_seeds_and_trials(monkeypatch, paper, experiment, runs):
    monkeypatch.setattr(work, "unread", lambda *_: 4.0)
    monkeypatch.setattr(missing, "_speed", lambda *_: 2.0)
    loaded = papers.load(paper)
    tests = [test for claim in loaded.claims for test in claim.tests]
    test = next(test for test in tests if test.experiment == experiment)
    said = missing.needed(loaded, test, ["paper"], {})
    assert f"--scale paper (about {runs * 4 / 2:.0f} hours of one core at 2 PFLOP per hour)" in said


def test_every_test_without_a_run_names_its_command_and_cost():
    found = [one for name in papers.list() for one in of_recorded(name)]
    lacking = [part for one in found for part in one.parts if not part.differences]
    for part in lacking:
        assert re.search(rf"fedrepro sweep \w+ --experiment {part.test.experiment} ", part.why)
        assert re.search(r"hours of one core at|not known before the images are read", part.why)
