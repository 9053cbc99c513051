"""Every method against the golden numbers of its official code, case by case."""

import math

import pytest
import torch

from tests.benchmarks.conftest import script
from tests.parity import cases, far
from tests.parity.checks import CHECKS, difference

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.name}")
def test_a_case(case):
    found = difference(case)
    if case.differs:
        assert found > case.tolerance, f"agrees now; say under which reading ({case.differs})"
    else:
        assert found <= case.tolerance


def test_no_case_is_lost_or_loosened():
    assert len(CASES) == 148 and len({case.method for case in CASES}) == 17
    assert {case.check for case in CASES} == set(CHECKS)
    for case in CASES:
        assert case.tolerance == (1e-9 if "AdamW" in case.reading.get("note", "") else 1e-10)
        assert case.expected


def rows(*values):
    return [torch.tensor(values).double()[:, None]]


GAPS = [
    ({}, 0), ({"a": [[1.5, 200.0]]}, 0.5), ({"a": [[1.0, 202.0]]}, 0.01),
    ({"a": [[1.0, math.nan]]}, math.inf), ({"a": [1.0, 200.0]}, math.inf),
    ({"b": [{"c": [0.25]}]}, 0.25), ({"prototypes_by_class": rows(2.0, 1.25)}, 0.25),
    ({"prototypes_by_class": rows(1.0)}, math.inf),
]  # fmt: skip


@pytest.mark.parametrize(("found", "gap"), GAPS)
def test_a_difference_is_seen(found, gap):
    expected = {"a": [[1.0, 200.0]], "b": [{"c": [0.5]}], "prototypes_by_class": [[[1.0], [2.0]]]}
    agreeing = {**expected, "prototypes_by_class": rows(2.0, 1.0), "not asked for": 1}
    assert far({**agreeing, **found}, expected) == pytest.approx(gap)
    with pytest.raises(KeyError):
        far({**found, "not asked for": 1}, {**expected, "missing": 1.0})


def test_the_page_shows_what_was_measured():
    page = script("report_parity")
    agreeing, others = page.by_method().html, page.differing().html
    for case, gap in page.measured():
        if case.differs:
            assert f">{gap:.1e}</td>" in others and page.reason(case) in others
    for name in {case.trained for case in CASES}:
        worst = max(gap for c, gap in page.measured() if c.trained == name and not c.differs)
        row = agreeing.split(f">{name}</th>")[1].split("</tr>")[0]
        assert f">{worst:.1e}</td>" in row
