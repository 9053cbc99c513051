"""Claims against cells made by hand, where scipy's own tests give the same numbers; their views."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedrepro import papers
from fedrepro.papers import Claim, Comparison, Paper
from fedrepro.quantities.base import get
from fedrepro.report import claim_views, comparison, views
from fedrepro.report.claims import Answer, Part, answers, of_recorded
from fedrepro.report.comparison import Difference
from fedrepro.report.results import recorded

ADCOL = papers.load("adcol")
OTHERS = [spec.label for spec in ADCOL.arm_specs("table-4") if spec.label != "ADCOL"]
NOISE = np.array([-1.0, 0.0, 1.0])


def _cells(
    values: Mapping[str, Sequence[float]], table: str = "table-4", scale: str = "paper"
) -> pd.DataFrame:
    where = {"table": table, "dataset": "office10", "scale": scale, "column": "avg"}
    every = ((name, *one) for name, row in values.items() for one in enumerate(row))
    return pd.DataFrame(where | {"method": m, "seed": s, "value": v} for m, s, v in every)


def _answer(cells: pd.DataFrame, *tests: Comparison, paper: Paper = ADCOL, **how: Any) -> Answer:
    claim = Claim(id="made", claim="made", where="here", tests=tests)
    return answers(paper.model_copy(update={"claims": (claim,)}), cells, **how)[0]


def _than(*others: str, **more: Any) -> Comparison:
    return Comparison(experiment="table-4", better="ADCOL", than=others or "all", **more)


SOLO = _than("SOLO")


def test_one_comparison_is_the_paired_t_test():
    ours, theirs = np.array([61.0, 63.5, 62.0]), np.array([60.0, 60.5, 61.5])
    cells = _cells({"ADCOL": ours, "SOLO": theirs})
    (part,) = _answer(cells, _than("SOLO", margin=0.25)).parts
    (difference,), (plain,) = part.differences, _answer(cells, SOLO).parts[0].differences
    assert difference.least_seen == pytest.approx(0.25 + plain.least_seen)
    p = stats.ttest_rel(ours - 0.25, theirs, alternative="greater").pvalue
    assert (difference.p, difference.reverse) == (pytest.approx(p), pytest.approx(1 - p))
    two_sided = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert difference.interval == pytest.approx(tuple(two_sided))
    assert difference.printed == pytest.approx(62.6 - 58.8)


def test_the_draw_of_test_images_widens_the_interval():
    """Five points with no spread over seeds hold; with an error of four points they are open."""
    cells = _cells({"ADCOL": [65.0] * 3, "SOLO": [60.0] * 3})
    for error, word in ((0.0, "holds"), (4.0, "open")):
        answer = _answer(cells, SOLO, images=lambda *_, e=error: e**2)
        (difference,) = answer.parts[0].differences
        assert answer.verdict == word and difference.error == pytest.approx(error)
    assert difference.interval == pytest.approx((5 - 1.959964 * 4, 5 + 1.959964 * 4))


def test_a_mean_with_a_stand_in_is_also_given_without_it():
    ours = {"mnist": 90.0, "usps": 80.0, "made-up": 10.0}
    rows = [
        {"table": "table-4", "dataset": "office10", "scale": "paper", "method": method}
        | {"column": column, "seed": seed, "value": value, "standin": column in ("made-up", "avg")}
        for method, values in (("ADCOL", ours), ("SOLO", dict.fromkeys(ours, 75.0)))
        for column, value in {**values, "avg": sum(values.values()) / 3}.items()
        for seed in range(3)
    ]
    (part,) = _answer(frame := pd.DataFrame(rows), SOLO, images=lambda *_: 1.0).parts
    (difference,) = part.differences
    assert (difference.mean, difference.rest, claim_views._seeds(part)) == (-15.0, 10.0, "0-2")
    (none,) = _answer(frame.replace("made-up", "syn-standin"), _than("SOLO", by="syn")).parts
    assert none.result == "table-4: syn is a stand-in there, which answers nothing"
    assert part.why.endswith("printed +3.8, outside, without the stand-in +10")


def test_an_open_claim_says_what_would_settle_it():
    """ADCOL's printed lead over SOLO is 3.8; the paired differences scatter by 4."""
    cells = _cells({"ADCOL": [56.0, 60.0, 64.0], "SOLO": [60.0] * 3})
    needed = next(
        n for n in range(2, 99)
        if (stats.t.ppf(0.95, n - 1) + stats.t.ppf(0.8, n - 1)) * 4 / n**0.5 <= 62.6 - 58.8
    )  # fmt: skip
    answer = _answer(cells, SOLO, spent=lambda *_: 0.5)  # of each of the two rows
    said = f"needs {needed} seeds: another {needed - 3:.0f} hours of one core"
    assert said in answer.parts[0].why and answer.parts[0].outside is False
    answer = _answer(cells, SOLO, images=lambda *_: 4.0)  # 2 points: 2.5 times that are too many
    assert "more seeds cannot detect the printed one" in answer.parts[0].why
    narrow = _answer(_cells({"ADCOL": [60.0, 60.1, 60.2], "SOLO": [60.0] * 3}), SOLO).parts[0]
    assert narrow.outside and narrow.why.endswith("would likely have shown the printed one")


HOLM = [(0.03, "", "open"), (0.003, "", "contradicted"), (0.003, "SOLO", "open")]
HOLM += [(0.0077, "", "open"), (0.0077, "FedAvg", "contradicted"), (0.003, "ADCOL", "open")]


@pytest.mark.parametrize(("p", "rising", "word"), HOLM)
def test_holm_protects_a_claim_of_many_comparisons_that_can_answer(p, rising, word):
    """One reverse p beside six near a half. What still rises keeps its own comparisons open."""
    theirs = {name: 50 + NOISE for name in OTHERS}
    gap = 2.0 / np.sqrt(3) * stats.t.ppf(1 - p, 14 / (1 + 6 / 4))
    values = {**theirs, "SOLO": theirs["SOLO"] + gap, "ADCOL": 50 + NOISE[::-1]}
    values["FedAvg"] = theirs["FedAvg"] + 9.0 * (rising == "FedAvg")
    gains = {("table-4", "office10", "reduced", rising): 5.0}
    (part,) = _answer(_cells(values, scale="reduced"), _than(), gains=gains).parts
    (solo,) = (d for d in part.differences if d.other == "SOLO")
    assert (part.verdict, part.weakest.other, solo.reverse) == (word, "SOLO", pytest.approx(p))


def test_one_seed_or_no_run_is_open_and_says_so():
    gains = {("table-4", "office10", "reduced", "SOLO"): 5.0}
    one = _answer(_cells({"ADCOL": [90.0], "SOLO": [10.0]}, scale="reduced"), SOLO, gains=gains)
    assert one.verdict == "open" and "rising: SOLO; one seed has no interval" in one.parts[0].why
    two = _cells({"ADCOL": [6.0], "SOLO": [5.0], "FedBN": [7.0]})
    assert _answer(two, _than("SOLO", "FedBN")).row()["effect"] == -1  # of the rival that is best
    lost = _answer(_cells({"ADCOL": [9.0, 9.1, np.nan], "SOLO": [1.0, 1.1, 1.2]}), SOLO)
    assert lost.verdict == "open" and "for some seeds: ADCOL" in lost.parts[0].why
    none = _answer(_cells({"ADCOL": [9.0]}, scale="reduced"), _than("SOLO", paper_only=True))
    assert [*claim_views._brief(ADCOL, none)] == ["table-4: not run at scale paper"]
    assert _answer(pd.DataFrame(), SOLO).row()["p"] is None
    assert none.verdict == "open" and none.parts[0].why.endswith(" paper; what is missing: runs")
    more = _cells({"ADCOL": [6.0, 7.1, 8.0], "SOLO": [1.0], "FedBN": [5.0, 6.0, 7.1]})
    parts = _answer(more, SOLO, _than("FedBN")).parts  # the spread of three seeds is at hand
    assert [part.verdict for part in parts] == ["open", "holds"]
    assert "one seed is no answer" in parts[0].why
    (part,) = _answer(more, _than("FedBN", "SOLO")).parts
    assert "; one seed: SOLO; " in part.why and part.missing.endswith("more seeds of SOLO")


def test_one_seed_of_a_larger_scale_stands_beside_the_answer():
    reduced = _cells({"ADCOL": [60.0, 61.0, 62.0], "SOLO": [50.0, 52.0, 51.0]}, scale="reduced")
    single = _cells({"ADCOL": [40.0], "SOLO": [45.0, 46.0]})
    answer = _answer(pd.concat([reduced, single]), SOLO)
    said = "scale paper, 1 seed: ADCOL minus SOLO (avg) -5 [-9.3, -0.697]"  # t(.975, 2) = 4.303
    assert answer.answer == "holds at scale reduced" and said in answer.parts[0].why
    other = _cells({"FedBN": [10.0, 12.0, 11.0]}, scale="reduced")
    partly = _answer(pd.concat([reduced, other, single]), _than("SOLO", "FedBN"))
    assert partly.verdict == "holds" and "1 seed without FedBN: ADCOL minus" in partly.parts[0].why
    double = _cells({"ADCOL": [40.0, 41.1], "SOLO": [45.0, 46.0]})
    assert _answer(pd.concat([reduced, double]), SOLO).answer == "contradicted at scale paper"


def test_curves_that_still_rise_answer_nothing_at_reduced():
    values = {"ADCOL": [60.0, 61.0, 62.0], "SOLO": [50.0, 51.1, 52.0]}
    reduced = _cells(values, scale="reduced")

    def rising(cells: pd.DataFrame, gain: float) -> Answer:
        gains = {("table-4", "office10", s, "ADCOL"): gain for s in ("paper", "reduced")}
        return _answer(cells, SOLO, gains=gains)

    assert rising(reduced, 0.5).verdict == rising(_cells(values), 1.5).verdict == "holds"
    both = (rising(pd.concat([_cells(values), reduced]), gain).parts[0] for gain in (0.5, 1.5))
    assert ["; at scale reduced, 3 seeds: " in part.result for part in both] == [True, False]
    answer = rising(reduced, 1.5)
    row, (why,) = answer.row(), answer.row()["evidence"]
    assert f"can detect a lead of {row['least_seen']:.3g} or more (80 % power)" in why
    assert "printed +3.8; still rising: ADCOL" in why and "what is missing: longer runs" in why
    assert (answer.verdict, answer.parts[0].outside) == ("open", None)


def test_the_scale_is_of_the_comparisons_that_give_the_answer():
    values = {"ADCOL": [1.0, 1.1, 0.9], "SOLO": [9.0, 9.0, 9.1], "FedBN": [1.0, 1.2, 0.9]}
    paper = _cells({n: v for n, v in values.items() if n != "SOLO"})
    reduced = _cells({n: v for n, v in values.items() if n != "FedBN"}, scale="reduced")
    answer = _answer(pd.concat([paper, reduced]), _than("FedBN"), SOLO)
    assert answer.answer == "contradicted at scale reduced"
    assert "p 0.00012 of the opposite" in answer.parts[1].why
    both, diverged = _than("SOLO", "FedBN"), _cells({"FedBN": [np.nan] * 3}, scale="reduced")
    (partly,) = _answer(reduced, both).parts  # one rival is enough to contradict
    assert partly.verdict == "contradicted" and partly.why.endswith("; not run: FedBN")
    (partly,) = _answer(pd.concat([reduced, diverged]), _than("FedBN", "SOLO", lower=True)).parts
    assert partly.verdict == "open" and partly.why.endswith("for some seeds: FedBN")
    equal = _answer(_cells({"ADCOL": [5.0] * 3, "SOLO": [5.0] * 3}), _than("SOLO", margin=-1))
    assert equal.answer == "holds at scale paper"  # it was trained, not counted
    two = _cells({"ADCOL": [9.0] * 2, "SOLO": [5.0] * 2})
    assert _answer(two, SOLO, images=lambda *_: 0.1).answer == "open"


def test_less_may_be_better_and_a_threshold_stands_for_a_row():
    cells = _cells({"ADCOL": [1.0, 1.1, 0.9], "SOLO": [9.0, 9.0, 9.1]})
    assert _answer(cells, SOLO).verdict == "contradicted"
    assert _answer(cells, _than("SOLO", lower=True)).verdict == "holds"
    assert _answer(cells, _than(above=0.5)).verdict == "holds"
    assert _answer(cells, _than(above=2.0)).verdict == "contradicted"


@pytest.mark.parametrize(("value", "word"), [(10.6, "holds"), (20.0, "contradicted")])
def test_what_is_counted_needs_no_second_seed(value, word):
    test = Comparison(experiment="prose-cost", better="share", by="value", above=15, lower=True)
    cells = _cells({"share": [value]}, "prose-cost").assign(column="value")
    answer = _answer(cells, test, paper=papers.load("fedpall"))
    assert answer.answer == f"{word}, counted" and answer.row()["interval"] is None


def test_a_value_below_a_bound_has_its_interval_from_low_to_high():
    below = Comparison(experiment="table-4", better="ADCOL", above=80, lower=True)
    one = _answer(_cells({"ADCOL": [74.0, 75.0, 76.0]}), below)
    assert claim_views._words(ADCOL, one, *one.parts)[1] == "75 [72.52, 77.48]; claimed: below 80"
    one = _answer(_cells({"ADCOL": [9, 9, 8], "SOLO": [1, 2, 1]}), _than("SOLO", lower=True))
    assert claim_views._words(ADCOL, one, *one.parts)[1] == "7.3 [5.9, 8.8] more than SOLO"


def test_an_answer_that_rests_on_the_pooled_spread_says_so():
    for word, solo in (("holds", [3.0, 4.0, 5.0]), ("contradicted", [6.1, 7.1, 8.1])):
        cells = _cells({"ADCOL": [5.0] * 3, "SOLO": solo, "FedBN": [1.0, 1.0, 1.1]})
        (part,) = _answer(cells, _than("SOLO", "FedBN")).parts
        assert part.verdict == word and part.result.count("which would leave it open") == 1


@pytest.mark.parametrize("paper", papers.names())
def test_every_claim_has_tests_of_rows_that_exist_or_says_why_not(paper):
    loaded = papers.load(paper)
    assert len({claim.id for claim in loaded.claims}) == len(loaded.claims)
    for claim in loaded.claims:
        assert bool(claim.tests) != bool(claim.untested), claim.id
        for test in claim.tests:
            if get(loaded.experiment(test.experiment).kind).counted:
                counted = {row["method"] for row in recorded(paper).cells(test.experiment)}
                assert {test.better, *(test.than if test.above is None else ())} <= counted
                continue
            table = loaded.experiment(test.experiment).table
            if test.above is not None and table:
                assert test.better in loaded.table(table).rows
                continue
            labels = {spec.row or spec.label for spec in loaded.arm_specs(test.experiment)}
            theirs = loaded.arm_specs(test.against or test.experiment)
            others = {spec.row or spec.label for spec in theirs}
            assert test.better in labels and (test.than == "all" or set(test.than) <= others)


def test_hours_are_the_work_of_all_rows_seeds_and_trials(monkeypatch):
    monkeypatch.setattr(comparison, "pflop_unread", lambda *_: 4.0)
    monkeypatch.setattr(comparison, "_speed", lambda *_: 2.0)
    test = Comparison(experiment="table-6-speedup", better="ADCOL vs FedAvg", above=10)
    said = comparison.needed(ADCOL, test, "", ["paper"], {})
    assert 'table-4 --methods "SOLO;ADCOL"' in comparison.needed(ADCOL, SOLO, "", [], {})
    runs = 3 * 7 + 2 * 5  # two rows are tuned over five values
    assert f"--scale paper (about {runs * 4 / 2:.0f} hours of one core at 2 PFLOP per hour)" in said


PAPER = papers.load("mpft")
ROUND = next(claim for claim in PAPER.claims if claim.id == "one-round")
COST = next(claim for claim in PAPER.claims if claim.id == "cost")


def test_a_claim_leads_to_its_tables_and_runs():
    claim = next(one for one in of_recorded("fedapc") if one.claim.id == "best-mean")
    found, links = recorded("fedapc"), re.findall(r'href="([^"]+)"', claim_views.links(claim))
    for experiment in ("table-1-digits", "table-1-office10"):
        (place,) = views.anchors(found, experiment)
        assert f"fedapc_results.html#{place}" in links
        assert f'<span id="{place}">' in views.table(found, experiment).html
    assert sum(link.startswith("../../run.html#run-") for link in links) == 4
    row = claim_views.shown("fedapc").html.partition('"fedapc-best-mean"')[2].partition("<details")
    assert row[0].count(", reduced: ") == 2  # one line for Digits, one for Office


def part(dataset: str, lead: float, error: float = 0.01, claim: Claim = ROUND) -> Part:
    test = next(test for test in claim.tests if "subset" not in test.experiment)
    freedom = 4.0 if error else math.inf
    gaps = pd.Series([lead] * 3)
    whole = float(claim is ROUND)  # an accuracy from 0 to 1
    least = Difference(lead, error, freedom, "FedAvg", "x", whole, gaps, 0.0, None, exact=not error)
    return Part(test, dataset, "reduced", (least,))


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two main claims: one on two data sets, one that is counted."""
    office = part("office10", -0.02)
    (other,) = (larger := part("office10", -0.01)).differences
    other = replace(other, other="MOON", printed=0.015)
    office.beside = replace(larger, differences=(other,))
    found = [
        Answer("mpft", ROUND, (part("pacs", 0.05), office)),
        Answer("mpft", COST, (part("pacs", 126, 0, COST),)),
    ]
    monkeypatch.setattr(claim_views, "every", lambda: [(PAPER, one) for one in found])


@pytest.mark.usefixtures("claims")
def test_a_main_claim_is_one_row_of_its_least_support():
    rows = claim_views.main_claims("here", "folder").splitlines()
    assert rows[0] == "2 main claims: **open 2**."
    assert rows[2].startswith("All 2 claims: **holds 0**, **contradicted 0**, **open 2**. ")
    assert rows[4] == "**Main claims that are open**" and "**Decided**" not in rows
    assert rows[8:10] == [
        '| <a href="here#mpft-one-round">open</a> | MPFT | one round is better than many '
        "rounds of averaging | reduced | Office-Caltech-10 |  | −2.0 [−4.8, +0.8] over FedAvg; "
        "scale reduced, 3 seeds: −1.0 [−3.8, +1.8] over MOON, where +1.5 is printed |",
        f'| <a href="here#mpft-cost">open</a> | MPFT | {COST.main} | reduced, counted '
        "| PACS |  | 126.0 MB less than FedAvg |",
    ]
    assert rows[-3].startswith("![Main claims") and rows[-3].endswith("(folder/main-claims.png)")


@pytest.mark.usefixtures("claims")
def test_the_picture_has_every_lead_that_has_an_interval(monkeypatch):
    drawn = claim_views.drawn()
    names = [tick.get_text() for tick in drawn.axes[0].get_yticklabels()]
    assert names == ["PACS", "Office-Caltech-10"]
    said = "above 0 in 1 rows, below 0 in 0, and contains 0 in 1; the 0 rows with hollow"
    assert said in drawn.caption and len(drawn.png()) > 5000
    monkeypatch.setattr(claim_views, "every", lambda: [(PAPER, Answer("mpft", ROUND))])
    assert ", 0 rows" in claim_views.drawn().caption
    assert "| not run |" in claim_views.main_claims("here", "folder")
