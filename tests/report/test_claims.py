"""Claims against cells made by hand, where scipy's own tests give the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedrepro import papers
from fedrepro.papers import Claim, Comparison
from fedrepro.quantities.base import get
from fedrepro.report.claims import Answer, answers
from fedrepro.report.results import recorded

ADCOL = papers.load("adcol")
OTHERS = [spec.label for spec in ADCOL.arm_specs("table-4") if spec.label != "ADCOL"]
NOISE = np.array([-1.0, 0.0, 1.0])


def _cells(
    values: Mapping[str, Sequence[float]], table: str = "table-4", scale: str = "paper"
) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"table": table, "dataset": "office10", "scale": scale, "method": name}
            | {"column": "avg", "seed": seed, "value": value}
            for name, row in values.items()
            for seed, value in enumerate(row)
        ]
    )


def _answer(cells: pd.DataFrame, *tests: Comparison, **late: float) -> Answer:
    claim = Claim(id="made", claim="made", where="here", tests=tests)
    gains = {
        (table, "office10", "reduced", name): gain
        for table in set(cells.get("table", ()))
        for name, gain in late.items()
    }
    return answers(ADCOL.model_copy(update={"claims": (claim,)}), cells, gains)[0]


def _lead(points: float, noise: float = 1.0) -> pd.DataFrame:
    rows = {name: 50 + noise * NOISE for name in OTHERS}
    return _cells({**rows, "ADCOL": 50 + points + noise * np.array([0.0, 1.0, -1.0])})


BEST = Comparison(experiment="table-4", better="ADCOL")


@pytest.mark.parametrize(
    ("points", "word"), [(10.0, "holds"), (-10.0, "contradicted"), (0.5, "open")]
)
def test_the_word_follows_the_differences(points: float, word: str) -> None:
    assert _answer(_lead(points), BEST).verdict == word


def test_one_comparison_is_the_paired_t_test() -> None:
    ours, theirs = np.array([61.0, 63.5, 62.0]), np.array([60.0, 60.5, 61.5])
    test = Comparison(experiment="table-4", better="ADCOL", than=("SOLO",), margin=0.25)
    (part,) = _answer(_cells({"ADCOL": ours, "SOLO": theirs}), test).parts
    (difference,) = part.differences
    expected = stats.ttest_rel(ours - 0.25, theirs, alternative="greater")
    assert difference.p == pytest.approx(expected.pvalue)
    assert difference.reverse == pytest.approx(1 - expected.pvalue)
    two_sided = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert difference.interval == pytest.approx(tuple(two_sided))
    assert difference.printed == pytest.approx(62.6 - 58.8)


def test_the_draw_of_test_images_widens_the_interval() -> None:
    """Five points with no spread over seeds hold; with an error of four points they are open."""
    cells = _cells({"ADCOL": [65.0] * 3, "SOLO": [60.0] * 3})
    claim = Claim(id="made", claim="made", where="here", tests=(_than_solo(),))
    paper = ADCOL.model_copy(update={"claims": (claim,)})
    for error, word in ((0.0, "holds"), (4.0, "open")):
        (answer,) = answers(paper, cells, images=lambda *_, e=error: e**2)
        (difference,) = answer.parts[0].differences
        assert answer.verdict == word and difference.error == pytest.approx(error)
    low, high = difference.interval or (0.0, 0.0)
    assert (low, high) == pytest.approx((5 - 1.959964 * 4, 5 + 1.959964 * 4))


def test_an_open_claim_says_what_would_settle_it() -> None:
    """ADCOL's printed lead over SOLO is 3.8; the paired differences scatter by 4."""
    cells = _cells({"ADCOL": [56.0, 60.0, 64.0], "SOLO": [60.0] * 3})
    claim = Claim(id="made", claim="made", where="here", tests=(_than_solo(),))
    paper = ADCOL.model_copy(update={"claims": (claim,)})
    needed = next(
        n for n in range(2, 99)
        if (stats.t.ppf(0.95, n - 1) + stats.t.ppf(0.8, n - 1)) * 4 / n**0.5 <= 62.6 - 58.8
    )  # fmt: skip
    (answer,) = answers(paper, cells, hours=lambda *_: 0.5)  # of each of the two rows
    said = f"which needs {needed} seeds: {needed - 3:.1g} more hours of one core"
    assert said in answer.parts[0].why
    (answer,) = answers(
        paper, cells, images=lambda *_: 4.0
    )  # 2 points: 2.5 times that are too many
    assert "no number of seeds can detect it, because of the few test images" in answer.parts[0].why


def test_the_spread_is_pooled_over_comparisons() -> None:
    ours = np.array([60.0, 61.0, 62.0])
    rows = {"ADCOL": ours, "SOLO": ours - [3, 4, 5], "FedAvg": ours - [2, 2, 2]}
    test = Comparison(experiment="table-4", better="ADCOL", than=("SOLO", "FedAvg"))
    (part,) = _answer(_cells(rows), test).parts
    assert [d.freedom for d in part.differences] == [4, 4]
    assert part.differences[0].error == pytest.approx(np.sqrt((2 * 1 + 2 * 0) / 4 / 3))


def test_the_spread_is_pooled_over_the_tests_of_a_claim() -> None:
    ours = np.array([60.0, 61.0, 62.0])
    rows = {"ADCOL": ours, "SOLO": ours - [3, 4, 5], "FedAvg": ours - [2, 2, 2]}
    fedavg = Comparison(experiment="table-4", better="ADCOL", than=("FedAvg",))
    answer = _answer(_cells(rows), _than_solo(), fedavg)
    for part in answer.parts:
        (difference,) = part.differences
        assert (difference.freedom, difference.pairs) == (4, 2)
        assert difference.error == pytest.approx(np.sqrt((2 * 1 + 2 * 0) / 4 / 3))
    other = _cells({"ADCOL": [1.0, 3.0, 9.0], "SOLO": [1.0, 1.0, 1.0]}, scale="reduced")
    both = pd.concat([_cells(rows), other])  # another scale has a spread of its own
    assert _answer(both, _than_solo(), fedavg).parts[0].differences == answer.parts[0].differences


def test_holm_protects_a_claim_of_many_comparisons() -> None:
    """One reverse p of 0.03 beside six near a half contradicts nothing; one of 0.003 does."""
    theirs = {name: 50 + NOISE for name in OTHERS}
    for p, word in ((0.03, "open"), (0.003, "contradicted")):
        gap = 2.0 / np.sqrt(3) * stats.t.ppf(1 - p, 2 * len(OTHERS))
        cells = _cells({**theirs, "SOLO": theirs["SOLO"] + gap, "ADCOL": 50 + NOISE[::-1]})
        answer = _answer(cells, BEST)
        assert min(d.reverse for d in answer.parts[0].differences) == pytest.approx(p)
        assert answer.verdict == word


def test_one_seed_or_no_run_is_open_and_says_so() -> None:
    one = _answer(_cells({"ADCOL": [90.0], "SOLO": [10.0]}), _than_solo())
    assert one.verdict == "open" and "one seed has no interval" in one.parts[0].why
    none = _answer(_cells({"SOLO": [10.0, 11.0]}), _than_solo())
    assert none.verdict == "open" and "not run; what is missing: runs" in none.parts[0].why
    assert _answer(pd.DataFrame(), _than_solo()).row()["p"] is None


def _than_solo(**more: float | bool) -> Comparison:
    return Comparison(experiment="table-4", better="ADCOL", than=("SOLO",), **more)


def test_curves_that_still_rise_answer_nothing_at_reduced() -> None:
    values = {"ADCOL": [60.0, 61.0, 62.0], "SOLO": [50.0, 51.1, 52.0]}
    reduced = _cells(values, scale="reduced")
    assert _answer(reduced, _than_solo(), ADCOL=0.5).verdict == "holds"
    rising = _answer(reduced, _than_solo(), ADCOL=1.5)
    row = rising.row()
    said = f"can detect a lead of {row['least_seen']:.3g} or more (80 % power), printed +3.8"
    assert said in row["evidence"][0] and "what is missing: longer runs" in row["evidence"][0]
    assert row["printed"] == pytest.approx(3.8)
    assert rising.verdict == "open" and "still rising: ADCOL" in rising.parts[0].why
    assert _answer(_cells(values), _than_solo(), ADCOL=1.5).verdict == "holds"


def test_less_may_be_better_and_a_threshold_stands_for_a_row() -> None:
    values = {"ADCOL": [1.0, 1.1, 0.9], "SOLO": [9.0, 9.0, 9.1]}
    assert _answer(_cells(values), _than_solo()).verdict == "contradicted"
    assert _answer(_cells(values), _than_solo(lower=True)).verdict == "holds"
    assert _answer(_cells(values), _than_solo(above=0.5)).verdict == "holds"
    assert _answer(_cells(values), _than_solo(above=2.0)).verdict == "contradicted"


def test_what_is_counted_needs_no_second_seed() -> None:
    fedpall = papers.load("fedpall")
    test = Comparison(
        experiment="prose-cost", better="share", above=15, lower=True, paper_only=True, by="value"
    )
    claim = Claim(id="made", claim="made", where="here", tests=(test,))
    for value, word in ((10.6, "holds, counted"), (20.0, "contradicted, counted")):
        cells = _cells({"share": [value]}, "prose-cost").assign(column="value")
        (answer,) = answers(fedpall.model_copy(update={"claims": (claim,)}), cells)
        assert answer.answer == word and answer.row()["interval"] is None


def test_paper_scale_is_taken_once_it_holds_the_rows() -> None:
    full = _cells({"ADCOL": [60.0, 61.0], "SOLO": [50.0, 52.0]})
    part = _cells({"ADCOL": [1.0, 2.0], "SOLO": [5.0, 6.0]}, scale="reduced")
    assert _answer(pd.concat([full, part]), _than_solo()).parts[0].scale == "paper"
    assert "not run" in _answer(part, _than_solo(paper_only=True)).parts[0].why
    lone = full[full.method == "ADCOL"]
    assert _answer(pd.concat([lone, part]), _than_solo()).parts[0].scale == "reduced"


@pytest.mark.parametrize("paper", papers.list())
def test_every_claim_has_tests_of_rows_that_exist_or_says_why_not(paper: str) -> None:
    loaded = papers.load(paper)
    assert len({claim.id for claim in loaded.claims}) == len(loaded.claims)
    for claim in loaded.claims:
        assert bool(claim.tests) != bool(claim.untested), claim.id
        for test in claim.tests:
            if get(loaded.experiment(test.experiment).kind).counted:
                counted = {row["method"] for row in recorded(paper).cells(test.experiment)}
                assert {test.better, *(test.than if test.above is None else ())} <= counted
                continue
            if test.above is not None:
                table = loaded.experiment(test.experiment).table
                assert table and test.better in loaded.table(table).methods
                continue
            labels = {spec.label for spec in loaded.arm_specs(test.experiment)}
            others = {spec.label for spec in loaded.arm_specs(test.against or test.experiment)}
            assert test.better in labels
            assert test.than == "all" or set(test.than) <= others
