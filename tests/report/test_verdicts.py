"""The verdict rules, on numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedrepro import papers
from fedrepro.report.verdicts import (
    BESIDE_STANDIN,
    COLUMNS,
    build_table,
    order,
)
from fedrepro.report.verdicts import interval as interval_of
from fedrepro.report.verdicts import verdict as judge

ADCOL = papers.load("adcol")


def test_welch_interval_by_hand() -> None:
    # ours 84, 85, 86: mean 85, s 1; theirs 80 +- 1, n 3. Both variances of the mean are 1/3, so
    # the spread is sqrt(2/3) and Satterthwaite gives 4 degrees of freedom; t(.975, 4) = 2.776445.
    low, high = interval_of(80.0, 1.0, 3, [84.0, 85.0, 86.0]) or (0.0, 0.0)
    half = 2.776445 * math.sqrt(2 / 3)
    assert low == pytest.approx(5 - half, abs=1e-5)
    assert high == pytest.approx(5 + half, abs=1e-5)


def test_welch_freedom_with_unequal_spreads() -> None:
    # ours 3, 5: variance 2 over n 2 = 1; theirs std 3, n 3: 9 / 3 = 3. Spread 2,
    # freedom (1 + 3)^2 / (1 / 1 + 9 / 2) = 2.909091; t(.975, 2.909091) = 3.23843.
    low, high = interval_of(4.0, 3.0, 3, [3.0, 5.0]) or (0.0, 0.0)
    assert high == pytest.approx(-low)
    assert high == pytest.approx(2 * 3.238, abs=5e-3)


def test_prediction_interval_by_hand() -> None:
    # ours 70, 72, 74: mean 72, s 2, n 3; t(.975, 2) = 4.302653, half = t * 2 * sqrt(4/3).
    half = 4.302653 * 2 * math.sqrt(4 / 3)
    for std, trials in ((None, 3), (0.5, None), (0.5, 1)):
        low, high = interval_of(70.0, std, trials, [70.0, 72.0, 74.0]) or (0.0, 0.0)
        assert low == pytest.approx(2 - half, abs=1e-5)
        assert high == pytest.approx(2 + half, abs=1e-5)


def test_no_spread_gives_an_interval_of_no_width() -> None:
    assert interval_of(70.0, None, None, [75.0] * 3) == (5.0, 5.0)
    assert interval_of(70.0, 0.0, 3, [75.0] * 3) == (5.0, 5.0)
    assert judge(70.0, None, 3, [75.0] * 3, scale="paper").verdict == "higher"
    assert judge(70.0, None, 3, [65.0] * 3, scale="paper").verdict == "lower"


@pytest.mark.parametrize(
    ("published", "ours", "expected"),
    [
        (78.2, 80.2, "reproduced"),  # 80.2 - 78.2 is above 2 in binary
        (80.2, 78.2, "reproduced"),
        (78.2, 80.21, "higher"),
        (80.2, 78.19, "lower"),
        (80.2, 80.2, "reproduced"),
    ],
)
def test_two_points_are_the_boundary(published: float, ours: float, expected: str) -> None:
    assert judge(published, None, None, [ours] * 3, scale="paper").verdict == expected


def test_reproduced_goes_before_the_interval() -> None:
    tight = judge(80.0, 0.01, 3, [81.0, 81.01, 80.99], scale="paper")
    assert tight.verdict == "reproduced"
    assert tight.interval is not None and tight.interval[0] > 0


def test_within_noise() -> None:
    wide = judge(80.0, None, None, [80.0, 84.0, 88.0], scale="paper")
    assert wide.verdict == "within noise"
    assert wide.difference == pytest.approx(4.0)
    assert wide.interval is not None and wide.interval[0] < 0 < wide.interval[1]


def test_a_seed_that_missed_the_target_is_inconclusive() -> None:
    missed = judge(11.0, None, 3, [11.0, 12.0, math.nan], scale="paper", unit="rounds")
    assert missed.verdict == "inconclusive" and "1 of 3" in missed.why
    assert missed.difference == pytest.approx(0.5)
    none = judge(11.0, None, 3, [math.nan] * 3, scale="paper", unit="rounds")
    assert (none.verdict, none.difference, none.interval) == ("inconclusive", None, None)


def test_not_comparable_goes_before_the_number_of_seeds() -> None:
    standin = judge(80.0, 1.0, 3, [80.0], scale="paper", standin=True)
    assert standin.verdict == "not comparable" and "stand-in" in standin.why
    reduced = judge(80.0, 1.0, 3, [80.0, 80.5, 81.0], scale="reduced")
    assert reduced.verdict == "not comparable" and "order" in reduced.why
    assert reduced.interval is not None


def test_smoke_shows_no_comparison_at_all() -> None:
    smoke = judge(80.0, 1.0, 3, [80.0, 80.5, 81.0], scale="smoke", marks=["m"])
    assert (smoke.verdict, smoke.difference, smoke.interval) == ("no verdict", None, None)


def test_other_units_have_no_tolerance() -> None:
    rounds = judge(20.0, None, 3, [21.0, 21.0, 21.0], scale="paper", unit="rounds")
    assert rounds.verdict == "higher"
    fraction = judge(0.80, None, 3, [0.815, 0.815, 0.815], scale="paper", unit="fraction")
    assert fraction.verdict == "reproduced"
    assert judge(0.80, None, 3, [0.83] * 3, scale="paper", unit="fraction").verdict == "higher"


def rows(method: str, values: dict[str, list[float | None]], **extra: Any) -> list[dict[str, Any]]:
    """Rows as a run gives them: one a column and seed."""
    base = {"dataset": "digits5", "scale": "paper", "standin": False, "marks": ()} | extra
    return [
        {**base, "method": method, "column": column, "seed": seed, "value": value}
        | {"standin": column == "synthdigits-standin"}
        for column, seeds in values.items()
        for seed, value in enumerate(seeds)
    ]


def test_table_follows_the_contract_and_lists_what_was_not_run() -> None:
    table = build_table(ADCOL, "table-1", rows("ADCOL", {"mnist": [94.7, 95.7, 96.7]}))
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 8 * 6
    ran = table[table.verdict != "not run"]
    assert len(ran) == 1 and len(table[table.verdict == "not run"]) == 47
    cell = ran.iloc[0]
    assert (cell.column, cell.published, cell.published_std) == ("MNIST", 94.7, 0.6)
    assert (cell.seeds, cell.ours, cell.ours_std) == (3, pytest.approx(95.7), pytest.approx(1.0))
    assert cell.difference == pytest.approx(1.0) and cell.verdict == "reproduced"
    assert table[table.verdict == "not run"].scale.isna().all()


def test_standin_column_its_average_and_its_neighbours() -> None:
    values: dict[str, list[float | None]] = {
        "mnist": [94.7] * 3,
        "synthdigits-standin": [76.0] * 3,
        "avg": [80.2] * 3,
    }
    mine = rows("ADCOL", values, dataset="digits5-standin", marks=("subset",))
    table = build_table(ADCOL, "table-1", mine).set_index(["method", "column"])
    assert table.loc[("ADCOL", "SynthDigit"), "verdict"] == "not comparable"
    assert table.loc[("ADCOL", "avg"), "verdict"] == "not comparable"
    assert table.loc[("ADCOL", "MNIST"), "verdict"] == "reproduced"
    assert table.loc[("ADCOL", "MNIST"), "marks"] == ("subset", BESIDE_STANDIN)
    assert table.loc[("ADCOL", "SynthDigit"), "marks"] == ("subset",)
    assert {column for (_, column), flag in table.standin.items() if flag} == {"SynthDigit", "avg"}


@pytest.mark.parametrize(
    ("value", "changed", "word"),
    [
        (1.3249, {}, "lower"),  # printed 1.33
        (1.3251, {}, "reproduced"),
        (1.3349, {}, "reproduced"),
        (1.3351, {}, "higher"),
        (1.33, {"counted": False}, "inconclusive"),
        (1.33, {"scale": "reduced"}, "not comparable"),
        (1.33, {"scale": "smoke"}, "no verdict"),
    ],
)
def test_what_is_counted_needs_one_seed_and_the_printed_digits(value, changed, word) -> None:
    fedpall, row = papers.load("fedpall"), "amplifier parameters (millions)"
    given = {"dataset": "office10", "counted": True} | changed
    table = build_table(fedpall, "prose-cost", rows(row, {"value": [value]}, **given))
    (cell,) = table[table.ours.notna()].to_dict("records")
    assert cell["verdict"] == word and cell["low"] is None


def test_average_over_domains_the_paper_does_not_print_is_not_comparable() -> None:
    mine = rows("ADCOL", {"mini-font": [90.0] * 3, "avg": [80.2] * 3}, dataset="minidigits")
    table = build_table(ADCOL, "table-1", mine)
    found = table[table.dataset == "minidigits"].set_index("column")
    assert found.loc["avg", "verdict"] == "not comparable"
    assert found.loc["mini-font", "verdict"] == "no verdict"


def test_scales_and_data_sets_are_never_pooled() -> None:
    mixed = rows("ADCOL", {"mnist": [94.0] * 3}) + rows(
        "ADCOL", {"mnist": [80.0] * 3}, scale="reduced"
    )
    table = build_table(ADCOL, "table-1", mixed)
    ran = table[table.seeds > 0].set_index("scale")
    assert ran.loc["paper", "ours"] == pytest.approx(94.0)
    assert ran.loc["reduced", "verdict"] == "not comparable"


def test_order_ranks_and_kendalls_tau() -> None:
    # Published MNIST: ADCOL 94.7, FedBN 94.1, SOLO 87.9. Ours swaps the first two: of three pairs
    # two agree and one does not, tau = (2 - 1) / 3.
    mine = [
        row
        for method, value in {"ADCOL": 70.0, "FedBN": 75.0, "SOLO": 60.0}.items()
        for row in rows(method, {"mnist": [value] * 3}, scale="reduced")
    ]
    ranked = order(build_table(ADCOL, "table-1", mine)).set_index("method")
    assert ranked.loc["FedBN", ["rank_ours", "rank_published"]].tolist() == [1.0, 2.0]
    assert ranked.loc["SOLO", ["rank_ours", "rank_published"]].tolist() == [3.0, 3.0]
    assert ranked.tau.tolist() == pytest.approx([1 / 3] * 3)


def test_a_client_that_trains_alone_is_not_marked_beside_a_standin() -> None:
    rows = [
        {
            "dataset": "digits5-standin", "method": method, "column": column, "seed": 0,
            "value": 50.0, "scale": "paper", "standin": column == "synthdigits-standin",
            "marks": (), "alone": method == "SOLO",
        }
        for method in ("SOLO", "FedAvg")
        for column in ("mnist", "synthdigits-standin", "avg")
    ]  # fmt: skip
    table = build_table(papers.load("adcol"), "table-1", rows)
    marks = table[table.seeds > 0].set_index(["method", "column"]).marks
    assert marks["SOLO", "MNIST"] == () and marks["FedAvg", "MNIST"] == (BESIDE_STANDIN,)
    words = table[table.seeds > 0].set_index(["method", "column"]).verdict
    assert words["SOLO", "avg"] == words["SOLO", "SynthDigit"] == "not comparable"
