"""What a claim on the page of all claims leads to, and the table and picture of main claims."""

import math
import re

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.papers import Claim
from fedrepro.report import claim_views, views
from fedrepro.report.claims import Answer, Part, of_recorded
from fedrepro.report.comparison import Difference
from fedrepro.report.results import recorded

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
    office.larger = part("office10", -0.01)
    found = [
        Answer("mpft", ROUND, (part("pacs", 0.05), office)),
        Answer("mpft", COST, (part("pacs", 126, 0, COST),)),
    ]
    monkeypatch.setattr(claim_views, "main", lambda: [(PAPER, one) for one in found])


@pytest.mark.usefixtures("claims")
def test_a_main_claim_is_one_row_of_its_least_support():
    rows = claim_views.main_claims("here", "folder").splitlines()
    assert re.match(r"\d+ claims: \*\*holds \d+.*, \*\*contradicted \d+.*, \*\*open \d+", rows[0])
    assert rows[4:6] == [
        '| MPFT | one round is better than many of averaging | <a href="here#mpft-one-round">open'
        "</a> | reduced | Office-Caltech-10 |  | −2.0 [−4.8, +0.8] over FedAvg; scale reduced, "
        "3 seeds: −1.0 over FedAvg |",
        f'| MPFT | {COST.main} | <a href="here#mpft-cost">open</a> | reduced, counted '
        "| PACS |  | 126.0 MB less than FedAvg |",
    ]
    assert rows[-3].startswith("![Main claims") and rows[-3].endswith("(folder/main-claims.png)")


@pytest.mark.usefixtures("claims")
def test_the_picture_has_every_lead_that_has_an_interval(monkeypatch):
    drawn = claim_views.drawn()
    names = [tick.get_text() for tick in drawn.axes[0].get_yticklabels()]
    assert names == ["PACS", "Office-Caltech-10"]
    said = "above 0 in 1, below 0 in 0, not told from 0 in 1; in 0 the curves still rise"
    assert said in drawn.caption and len(drawn.png()) > 5000
    monkeypatch.setattr(claim_views, "main", lambda: [(PAPER, Answer("mpft", ROUND))])
    assert ", 0 rows" in claim_views.drawn().caption
    assert "| not run |" in claim_views.main_claims("here", "folder")
