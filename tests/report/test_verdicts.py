"""The verdict rules, on numbers worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedrepro import papers
from fedrepro.federated.metrics import interval
from fedrepro.report.comparison import Compared, compared
from fedrepro.report.verdicts import BESIDE_STANDIN, build_table
from tests.report.test_tables import rows as made

ADCOL, FEDPALL = papers.load("adcol"), papers.load("fedpall")


@pytest.mark.parametrize(
    ("ours", "std"), [([84.0, 85.0, 86.0], 1.0), ([3.0, 5.0], 3.0), ([81.5, 80.0, 80.5], 0.2)]
)
def test_with_a_printed_spread_it_is_welchs_test(ours, std):
    found = compared(80.0, std, 3, ours)
    theirs = 80.0 + std * np.array([-1.0, 0.0, 1.0])  # three trials of that mean and deviation
    test = stats.ttest_ind(ours, theirs, equal_var=False)
    assert found.p == pytest.approx(test.pvalue)
    assert found.between() == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_fewer_than_three_seeds_borrow_the_spread_of_others():
    assert compared(70.0, None, 3, [72.0]) is None is compared(70.0, None, 3, [72.0, 72.0])
    assert np.isnan(interval([72.0, 72.0])).all()
    found = compared(70.0, None, 1, [72.0], pooled=(2.0, 8.0))
    assert (found.error, found.freedom, found.one_run) == (2.0, 8.0, True)
    assert found.word(found.p)[1].startswith("one run")
    ours = [72.0, 76.0, 74.0]
    two, three = (compared(70.0, None, 2, ours[:n], pooled=(2.0, 8.0)) for n in (2, 3))
    assert (two.error, two.freedom, two.one_run) == (2**0.5, 8.0, False)
    assert three.error == pytest.approx((4 * (1 / 3 + 1 / 2)) ** 0.5) and three.freedom == 2


WORDS = [  # the 90 % bound is 1.724718 errors away; other units have no tolerance
    (1.0, 0.579, 2.0, "agrees"), (1.0, 0.581, 2.0, "close"), (2.0, 0.0, 2.0, "agrees"),
    (2.0, 0.1, 2.0, "close"), (-1.9, 5.0, 2.0, "close"), (2.1, 0.01, 2.0, "higher"),
    (-2.1, 0.01, 2.0, "lower"), (9.0, 9.0, 2.0, "open"), (1.0, 0.0, 0.0, "higher"),
    (0.0, 1.0, 0.0, "open"),
]  # fmt: skip


@pytest.mark.parametrize(("difference", "error", "tolerance", "word"), WORDS)
def test_each_word_has_its_place(difference, error, tolerance, word):
    found = Compared(difference, error, 20.0, tolerance)
    assert found.word(found.p)[0] == word


def rows(method: str, values: dict[str, list[float]], **extra: Any) -> list[dict[str, Any]]:
    return made({(method, column): seeds for column, seeds in values.items()}, **extra)


def cell_of(paper: Any, table: str, given: list[dict[str, Any]]) -> Any:
    """The one cell with numbers of ours."""
    built = build_table(paper, table, given)
    (cell,) = built[built.seeds > 0].itertuples()
    return cell


REFUSED = [
    ({"given": True}, "input"), ({"subset": True}, "subset"), ({"past": True}, "earlier settings"),
    ({"dataset": "folder:x"}, "your own"), ({"scale": "reduced"}, "only the order"),
    ({"scale": "smoke"}, "only tests"),
]  # fmt: skip


@pytest.mark.parametrize(("fact", "why"), REFUSED)
def test_what_is_put_in_cut_or_of_another_scale_has_no_verdict(fact, why):
    cell = cell_of(ADCOL, "table-1", rows("ADCOL", {"mnist": [95.0] * 3}, **fact))
    assert cell.verdict == "no verdict" and why in cell.why


def test_seeds_without_a_value_leave_the_cell_open():
    for lost in (1, 3):
        seeds = {"mnist": [11.0] * (3 - lost) + [math.nan] * lost}
        cell = cell_of(ADCOL, "table-2-rounds", rows("FedAvg", seeds))
        assert cell.verdict == "open" and f"{lost} of 3" in cell.why


def test_standin_column_its_average_and_its_neighbours():
    values = {"mnist": [94.7] * 3, "synthdigits-standin": [76.0] * 3, "avg": [80.2] * 3}
    mine = rows("ADCOL", values, dataset="digits5-standin", caveats=("subset",))
    mine += rows("SOLO", values, dataset="digits5-standin", alone=True)
    table = build_table(ADCOL, "table-1", mine).set_index(["method", "column"])
    assert table.verdict["ADCOL", "MNIST"] == "agrees"
    for method in ("ADCOL", "SOLO"):
        assert set(table.verdict[method][["SynthDigit", "avg"]]) == {"no verdict"}
    assert table.caveats["ADCOL", "MNIST"] == ("subset", BESIDE_STANDIN)
    assert table.caveats["ADCOL", "SynthDigit"] == ("subset",)
    assert table.caveats["SOLO", "MNIST"] == (), "a client that trains alone"
    assert {column for (_, column), flag in table.standin.items() if flag} == {"SynthDigit", "avg"}


COUNTED = [  # printed: 1.33
    (1.3249, {}, "counted unequal"), (1.3251, {}, "counted equal"),
    (1.3349, {}, "counted equal"), (1.3351, {}, "counted unequal"),
    (1.33, {"counted": False}, "open"), (1.33, {"scale": "reduced"}, "no verdict"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "changed", "word"), COUNTED)
def test_what_is_counted_needs_one_seed_and_the_printed_digits(value, changed, word):
    given = {"dataset": "office10", "counted": True} | changed
    mine = rows("amplifier parameters (millions)", {"value": [value]}, **given)
    cell = cell_of(FEDPALL, "prose-cost", mine)
    assert cell.verdict == word and cell.low is None and cell.difference is not None


def test_a_run_that_was_repeated_replaces_the_older_one():
    old, new = (rows("ADCOL", {"mnist": [95.0] * 3}, past=past) for past in (True, False))
    assert cell_of(ADCOL, "table-1", [*old, *new]) == cell_of(ADCOL, "table-1", new)


def test_average_over_domains_the_paper_does_not_print_has_no_verdict():
    mine = rows("ADCOL", {"mini-font": [90.0] * 3, "avg": [80.2] * 3}, dataset="minidigits")
    table = build_table(ADCOL, "table-1", mine)
    found = table[table.dataset == "minidigits"].set_index("column")
    assert "other domains" in found.loc["avg", "why"]
    assert found.loc["mini-font", "verdict"] == "no verdict"
