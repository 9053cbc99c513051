"""What the pages of the common protocol say of the runs."""

from fedrepro.report import standings
from tests.book.findings import check, found, order

DATASETS = ("digits5-standin", "office10", "pacs")
OWN = {"SOLO", "FedProto", "Ditto", "PartialFed", "FedBN", "ADCOL", "FedPall"}
PAPERS_OWN = {"ADCOL", "FedPall", "I2PFL", "FedAPC"}


@check("common", "Where domains are pictures, keeping something of one's own comes first")
def _():
    for dataset in ("office10", "pacs"):
        assert set(order(dataset).index[:7]) == OWN


@check("common", "On Digits it is the other way round")
def _():
    assert list(order("digits5-standin").index[:2]) == ["FPL", "FedAPC"]
    assert order("digits5-standin").loc["I2PFL", "rank"] <= 5


@check("common", "No paper's own method is first on all three")
def _():
    winners = [order(dataset).index[0] for dataset in DATASETS]
    assert all(winners.count(method) < 3 for method in PAPERS_OWN)
    for dataset in ("office10", "pacs"):
        best = min(order(dataset).loc[method, "rank"] for method in PAPERS_OWN)
        assert order(dataset).loc["SOLO", "low"] <= best


@check("common", "The papers' orders carry over in part")
def _():
    table = standings.agreement(found("common"), "methods")
    assert len(table) == 10 and (table.tau > 0).sum() == 9 and (table.p < 0.05).sum() == 1


@check("common", "What this scale cannot say")
def _():
    chosen = standings.chosen(found("common"), "methods").xs("chosen", axis=1, level=1)
    assert 0.8 < (chosen == "0.03").to_numpy().mean() < 0.9
    assert order("pacs")["mean"].max() < 45
    runs = standings.scores(found("common"), "methods", "digits5-standin")
    runs = runs[runs.column == "synthdigits-standin"]
    assert runs.groupby("method").value.mean().max() < 35


@check("common", "On frozen features training alone is first,")
def _():
    places = {}
    for dataset in DATASETS:
        ranks = order(f"{dataset}-frozen", "frozen")
        assert list(ranks.index[:2]) == ["SOLO", "FedProto"] and len(ranks) == 8
        places[dataset] = ranks.loc["MPFT", "rank"]
    assert places == {"digits5-standin": 3, "office10": 4, "pacs": 8}
    assert (
        order("pacs-frozen", "frozen")["mean"].nlargest(7).iloc[-1] - ranks.loc["MPFT", "mean"] > 9
    )


@check("common", "Privacy leaves nothing, and missing labels cost much")
def _():
    lost = []
    for dataset in DATASETS:
        mean, classes = order(dataset, "apart")["mean"], 7 if dataset == "pacs" else 10
        assert abs(mean["DP-FedBN"] - 100 / classes) < 4
        lost.append(mean["SOLO"] - mean["FADA"])
    assert [round(min(lost)), round(max(lost))] == [18, 26]
