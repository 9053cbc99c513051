"""The common protocol's page: ranks, their intervals, agreement with printed orders, choices."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedrepro import papers
from fedrepro.data.folders import TAKEN
from fedrepro.report import leaderboard
from fedrepro.report.picture import Picture
from fedrepro.report.results import Results, recorded
from tests.data.made import one_line
from tests.report.made import Made
from tests.report.test_tables import row_of


def scores(values: dict[str, list[list[float]]]) -> pd.DataFrame:
    """By method: seeds, and in each the accuracy on domains a, b, ..."""
    rows = [
        (name, seed, "abcd"[d], value)
        for name, table in values.items()
        for seed, row in enumerate(table)
        for d, value in enumerate(row)
    ]
    return pd.DataFrame(rows, columns=["method", "seed", "column", "value"])


def test_methods_apart_by_more_than_tukeys_range_are_told_apart():
    """By hand: what is left of the rows without means of rows and columns is +-0.1 twice each, of 4
    degrees of freedom; a textbook's range of 3 means at 4 degrees is 5.04."""
    rows = np.array([[1.1, 1.9, 3.0], [0.9, 2.1, 3.0], [3.0, 4.0, 5.0]])
    assert leaderboard.apart(rows) == pytest.approx(5.04 * np.sqrt(4 * 0.01 / 4 / 3), rel=1e-3)
    frame = scores({n: [[v, v] for v in row] for n, row in zip("xyz", rows, strict=True)})
    found = leaderboard.ranks(frame)
    assert found.loc["z", ["low", "high"]].tolist() == [1, 1]
    assert found.loc["x", ["low", "high"]].tolist() == [2, 3]


def test_all_true_ranks_lie_in_their_intervals_as_often_as_is_said():
    """True means with near ties, seeds that move all methods alike and each by itself; then domains
    that do. Of 150 cases 95 % is 142 give or take 3."""
    rng, true = np.random.default_rng(0), np.array([50.0, 50.5, 51, 54, 54.1, 60])
    order, held = stats.rankdata(-true), np.zeros(2)
    for _ in range(150):
        seeds, domains = rng.normal(0, 1, (6, 3, 1)), rng.normal(0, 2, (6, 1, 4))
        noise = rng.normal(0, 1, (6, 3, 4)) + rng.normal(0, 5, (1, 3, 4))
        for case, moved in enumerate((seeds, seeds + domains)):
            values = true[:, None, None] + moved + noise
            frame = scores({str(n): v.tolist() for n, v in enumerate(values)}).sort_values("method")
            found = leaderboard.ranks(frame).sort_index()
            low, high = (("low", "high"), ("lowest", "highest"))[case]
            held[case] += ((found[low] <= order) & (order <= found[high])).all()
    assert (held >= 136).all()


def test_missing_seed_is_one_line():
    frame = scores({"a": [[1, 2], [3, 4]], "b": [[1, 2]]})
    with one_line("b have no value for a seed"):
        leaderboard.ranks(frame)


def test_agreement_by_hand():
    """FedAPC's Office: FedAPC 66.39 > FedProto 64.41 > ... ; ours reversed gives tau -1."""
    common = papers.load("common").experiment("methods")
    theirs = leaderboard.printed(papers.load("fedapc"), "table-1-office10")
    assert theirs["FedAPC"] == 66.39 and set(theirs) == {"FedAvg", "MOON", "FedProto", "FedAPC"}

    def beside(ours: dict[str, float]) -> Any:
        return leaderboard.compared(common, "office10", ours).set_index("paper").loc["FedAPC"]

    assert beside(theirs).tau == pytest.approx(1) and beside(theirs).methods == 4
    other = beside({method: -value for method, value in theirs.items()})
    assert other.tau == pytest.approx(-1)
    assert other["best there"] == "FedAPC" != other["best here"]


MEANS = {"FedAvg": 50.0, "FedBN": 60.0, "ADCOL": 70.0, "FedProx": 40.0}
RATES = ("0.01", "0.03", "0.1", "0.3")
OFFICE, PACS = "Office-Caltech-10", "PACS"


def study(seed: int, dataset: str, diverged: str = "") -> Made:
    cells = {
        (m, c): None if m == diverged else v + (c == "dslr")
        for m, v in MEANS.items()
        for c in ("amazon", "dslr", "avg")
    }
    tries = {m: {"0.01": v / 2, "0.03": v / 4} for m, v in MEANS.items()}
    if dataset == "office10":  # each rate's, then with the best one two values of an own constant
        tries = {m: dict(zip(RATES, (30.0, 35.0, 50.0, 40.0), strict=True)) for m in MEANS}
        tries["FedBN"]["0.3"] = 60.04
        tries["ADCOL"] |= {"0.1, mu 0.1": 49.0, "0.1, mu 10.0": 51.26}
        tries["FedProx"] |= {"0.1, mu 0.001": 49.0, "0.1, mu 0.1": 48.0}
    return Made("common", dataset, "reduced", seed, {"methods": cells}, tries)


def found(diverged: str = "") -> Results:
    made = [study(n, d, diverged * (n == 1)) for n in (0, 1, 2) for d in ("office10", "pacs")]
    return Results([(one, ["methods"]) for one in made], "common")


def test_the_tables_of_one_and_of_all_data_sets():
    table = leaderboard.table(found(), "methods", "office10")
    assert list(table.index) == ["ADCOL", "FedBN", "FedAvg", "FedProx"]
    assert table.loc["ADCOL", "mean"] == 70.5 and table.loc["ADCOL", "std over seeds"] == 0
    assert [name for name in table if name not in TAKEN] == ["amazon", "dslr"]
    assert table.loc["FedBN", "other seeds"] == "2 to 2"
    overall = leaderboard.overall(found(), "methods")
    assert list(overall.columns) == ["mean rank", OFFICE, PACS]
    assert overall.loc["FedProx"].tolist() == [4, 4, 4]
    short = leaderboard.in_short(found(), "methods", "page")
    assert "FedAvg: ADCOL 1.0, FedAvg 3.0 (FedAPC, FedPall, I2PFL, MPFT: not in" in short
    agreement = leaderboard.agreement(found(), "methods")
    assert {"ADCOL", "FedPall", "I2PFL", "FedAPC"} == set(agreement.loc[OFFICE].index.levels[0])
    frozen = leaderboard.agreement(recorded("common"), "frozen")  # two data sets are not printed
    assert frozen.methods.dtype == int
    figure = leaderboard.figure(found(), "methods", "office10")
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert isinstance(figure, Picture) and labels == ["ADCOL", "FedBN", "FedAvg", "FedProx"]


def test_what_was_chosen_and_which_choices_are_on_the_edge():
    table = leaderboard.chosen(found(), "methods", "office10")
    assert isinstance(table, pd.DataFrame)
    assert list(table.columns) == ["chosen", *RATES, "own constant", "chosen constant"]
    assert table.loc["FedAvg"].tolist() == ["0.1", 30, 35, 50, 40, "", ""]
    assert table.loc["FedBN"].tolist() == ["0.3 (largest)", 30, 35, 50, 60, "", ""]
    assert table.loc["ADCOL", ["chosen", "chosen constant"]].tolist() == ["0.1", "mu 10"]
    assert table.loc["ADCOL", "own constant"] == "mu 0.1: 49.0; mu 10: 51.3"
    assert table.loc["FedProx", "chosen constant"] == "the paper's"
    two = leaderboard.chosen(found(), "methods", "pacs")
    assert two.loc["ADCOL"].tolist() == ["0.01 (smallest)", 35, 17.5]
    cells = {("FedBN", column): 60.0 for column in ("amazon", "avg")}  # other trials of a method
    other = {"own-statistics": cells}, {"FedBN": {"0.1": 1.0, "0.3": 2.0}}
    again = Made("common", "office10", "reduced", 0, *other), ["own-statistics"]
    assert leaderboard.edges(Results([*found().studies, again], "common")).summary == (
        "6 of 9 choices are the smallest or largest rate tried; 5 of these had only two rates, "
        "so that no other was possible"
    )


def test_what_was_asked_and_which_rows_decide_nothing_are_said(monkeypatch):
    html, protocol = leaderboard.budget(found()).html, papers.load("common").protocol
    office, pacs = (row_of(html, name) for name in (OFFICE, PACS))
    assert office[1:3] == ["as asked", str(protocol("office10", "reduced").rounds)]
    assert pacs[2] == str(protocol("pacs", "reduced").rounds)
    assert pacs[1] == "rates: only 0.01, 0.03; no own constant"
    monkeypatch.setattr(Results, "past", lambda *_: {"office10": ["FedAvg", "ADCOL"]})
    differs = row_of(leaderboard.budget(found()).html, OFFICE)[1]
    assert differs.startswith("earlier settings: 2 of ")
    monkeypatch.setattr(Results, "rising", lambda *_: {"office10": ["FedAvg"]})
    html = leaderboard.linked(found(), "methods", "office10").html.partition("<table")[0]
    assert "still rise when their runs end: FedAvg. They decide nothing." in html
    assert "trained with earlier settings: FedAvg; ADCOL. They decide nothing." in html
    assert leaderboard.cautioned(found(), "methods").summary.startswith("2 of 8 rows still rise")


def test_a_method_of_which_a_seed_diverged_stands_last_without_a_rank():
    table = leaderboard.table(found("ADCOL"), "methods", "pacs")
    assert list(table.index) == ["FedBN", "FedAvg", "FedProx", "ADCOL"]
    assert table.loc["ADCOL"].dropna().to_dict() == {"other seeds": "diverged"}
