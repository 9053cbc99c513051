"""What the result pages say of the recorded runs in words, computed again from those runs.

Every point under "What these runs say" has a check here; a point without one fails, and so does a
check whose point is gone.
"""

import re
from functools import cache

import nbformat
import pandas as pd
import pytest

from fedrepro import papers, ranking
from fedrepro.views import recorded, standings

PAGES = recorded.FOLDER.parent / "results"
COMMON = ("digits5-standin", "office10", "pacs")
CHECKS = {}


def check(page, point):
    """The function holds the point of that page which begins with these words."""

    def keep(function):
        CHECKS[page, point] = function
        return function

    return keep


def told():
    """(page, text) of every list of findings on the result pages."""
    for path in sorted(PAGES.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown" and "What these runs say" in cell.source:
                yield path.stem, cell.source


def points():
    """(page, bold words) of every finding."""
    for page, text in told():
        for words in re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE | re.DOTALL):
            yield page, " ".join(words.split()).rstrip(".:")


@pytest.mark.parametrize(("page", "text"), list(told()), ids=[page for page, _ in told()])
def test_every_finding_has_words_in_bold_to_be_known_by(page, text):
    assert re.findall(r"^- (?!\*\*).*", text, re.MULTILINE) == []


@pytest.mark.parametrize(("page", "point"), sorted(set(points()) | set(CHECKS)))
def test_a_finding_on_a_page_is_in_the_records(page, point):
    assert (page, point) in set(points()), "the page no longer says so; remove the check"
    assert (page, point) in CHECKS, "no check holds this point"
    CHECKS[page, point]()


# The numbers.


@cache
def found(paper):
    return recorded.notebooks(paper)


@cache
def cells(paper, experiment, dataset, column="avg"):
    """Accuracy in percent (or what the table holds) by arm and seed."""
    frame = found(paper).where(dataset=dataset).cells
    frame = frame[(frame.table == experiment) & (frame.column == column)]
    return frame.pivot(index="method", columns="seed", values="value")


def means(*of):
    return cells(*of).mean(axis=1)


@cache
def by_rule(paper, experiment, dataset, rule):
    """Mean accuracy by arm and seed under a score rule."""
    rows = [
        {"method": label, "seed": run["seed"], "value": run["scores"][rule]["avg"]}
        for run in found(paper).where(dataset=dataset).runs
        for used, label in run["used"]
        if used == experiment
    ]
    return pd.DataFrame(rows).pivot(index="method", columns="seed", values="value")


@cache
def order(dataset, experiment="methods"):
    """The methods of the common protocol, best first."""
    return ranking.ranks(standings.scores(found("common"), experiment, dataset))


def first(series, count=1):
    return set(series.sort_values(ascending=False).index[:count])


# The common protocol.

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
    winners = [order(dataset).index[0] for dataset in COMMON]
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
    assert all(order(dataset)["mean"].min() < 30 for dataset in COMMON)
    assert all(order(dataset).loc["Per-FedAvg", "rank"] == 19 for dataset in COMMON)


# ADCOL.

D5 = "digits5-standin"


@check("adcol_results", "The order of the methods is not the paper's")
def _():
    for table, dataset, place in (("table-1", "digits5-standin", 3), ("table-4", "office10", 4)):
        values = means("adcol", table, dataset)
        assert first(values, 2) == {"FedBN", "PartialFed"}
        assert values.rank(ascending=False)["ADCOL"] == place


@check("adcol_results", "ADCOL against training alone")
def _():
    digits, office = (means("adcol", *t) for t in (("table-1", D5), ("table-4", "office10")))
    gain = digits["ADCOL"] - digits["SOLO"]
    one = cells("adcol", "table-1", D5, "synthdigits-standin").mean(axis=1)
    assert gain > 0 and (one["ADCOL"] - one["SOLO"]) / 5 > gain / 2
    assert office["ADCOL"] < office["SOLO"]
    real = [
        cells("adcol", "figure-2c", D5, domain).mean(axis=1)
        for domain in ("mnist", "svhn", "usps", "mnistm")
    ]
    assert sum(real)["mu=0"] > sum(real)["mu=1"]


@check("adcol_results", "What does appear")
def _():
    for table, dataset in (("table-1", D5), ("table-4", "office10")):
        values = means("adcol", table, dataset)
        assert values["Per-FedAvg"] < values["SOLO"]
    weights = means("adcol", "figure-2c", D5)
    assert weights.idxmax() == "mu=1" and weights.drop("mu=10").min() - weights["mu=10"] > 25
    share = means("adcol", "table-15", D5, "accuracy")
    assert all(
        abs(share["sampling ratio 100%"] - share[f"sampling ratio {n}%"]) < 1.5
        for n in (40, 60, 80)
    )
    assert 2.5 < share["sampling ratio 100%"] - share["sampling ratio 20%"] < 4


@check("adcol_ablations", "DP-ADCOL is as good as training alone")
def _():
    private = means("adcol", "table-17", D5).filter(like="DP-ADCOL")
    alone = means("adcol", "figure-2c", D5)["mu=0"]
    assert len(private) == 3 and all(abs(private - alone) < 1.5)
    assert means("adcol", "table-17", D5)["non-private ADCOL"] - private.max() > 2


@check("adcol_ablations", "DP-FedBN learns nothing")
def _():
    curious = means("adcol", "table-17", D5).filter(like="DP-FedBN")
    trusted = means("adcol", "prose-dp-fedbn", D5, "value")
    assert len(curious) == 6 and curious.max() < 13 and trusted["DP-FedBN"] < 13


@check("adcol_ablations", "FADA lies below training alone")
def _():
    domains = ["mnist", "svhn", "usps", "synthdigits-standin", "mnistm", "avg"]
    rows = {d: means("adcol", "table-21", D5, d) for d in domains}
    assert rows["avg"]["SOLO"] - rows["avg"]["FADA"] > 10
    assert all(row["FADA"] <= row["SOLO"] + 0.05 for row in rows.values())


# FedAPC.


@check("fedapc_results", "No gain shows at that size")
def _():
    runs = cells("fedapc", "table-1-office10", "office10")
    values = runs.mean(axis=1)
    assert values["MOON"] < min(values["FedAPC"], values["FedProto"])
    assert max(values["FedAPC"], values["FedProto"]) < values["FedAvg"]
    assert 3.5 < runs.loc["FedAPC"].max() - runs.loc["FedAPC"].min() < 4.5


@check("fedapc_results", "With and without augmented prototypes")
def _():
    runs = cells("fedapc", "table-2-office10", "office10")
    assert abs(runs.mean(axis=1).diff().iloc[-1]) < runs.std(axis=1).min()


@check("fedapc_results", "The networks are far from done")
def _():
    printed = papers.load("fedapc").table("table-1-office10")
    values = means("fedapc", "table-1-office10", "office10")
    assert all(printed.cell(row, "avg").value - value > 20 for row, value in values.items())
    for dataset in ("digits5-standin", "office10"):
        assert order(dataset)["mean"]["FedAPC"] > order(dataset)["mean"]["FedAvg"]


# FedPall.

AVERAGING = ["FedAvg", "FedProx", "PerfedAvg", "FedRep", "FedBN", "MOON", "RUCR"]
PRINTED = "FedPall, equations as printed"


@check("fedpall_results", "The paper's picture appears")
def _():
    values = means("fedpall", "table-1-office10", "office10").drop(PRINTED)
    assert values.idxmax() == "FedPall"
    assert first(values, 4) == {"FedPall", "FedProto", "SingleSet", "ADCOL"}
    assert values["SingleSet"] - values[AVERAGING].max() > 20


@check("fedpall_results", "The lead over training alone")
def _():
    best, last5 = (
        by_rule("fedpall", "table-1-office10", "office10", r) for r in ("best-test", "last5")
    )
    lead = [runs.mean(axis=1)["FedPall"] - runs.mean(axis=1)["SingleSet"] for runs in (best, last5)]
    assert lead == pytest.approx([4, 5], abs=0.5)
    others = last5.std(axis=1)[["FedProto", "SingleSet", "ADCOL"]]
    assert last5.std(axis=1)["FedPall"] < others.min()


@check("fedpall_results", "The equations as printed")
def _():
    runs = cells("fedpall", "table-1-office10", "office10")
    values, spread = runs.mean(axis=1), runs.std(axis=1)
    assert abs(values["FedPall"] - values[PRINTED]) < spread[["FedPall", PRINTED]].min()


@check("fedpall_results", "FedBN")
def _():
    here = means("fedpall", "table-1-office10", "office10")
    assert here["SingleSet"] - here["FedBN"] > 20
    assert means("adcol", "table-4", "office10").idxmax() == "FedBN"


@check("fedpall_results", "Those that average")
def _():
    values = means("fedpall", "table-1-office10", "office10")[AVERAGING]
    printed = papers.load("fedpall").table("table-1-office10")
    theirs = pd.Series({row: printed.cell(row, "avg").value for row in AVERAGING})
    assert values.max() - values.min() < 7
    assert list(values.sort_values().index) != list(theirs.sort_values().index)


# MPFT.

MPFT_AVERAGES = ["FedAvg", "FedProx", "Ditto", "MOON", "DBE"]


@check("mpft_results", "The order of the main claim holds")
def _():
    out, inside = (means("mpft", "table-1-pacs", "pacs", c) for c in ("ood_acc", "ind_acc"))
    for row in ("MPFT (Cluster, rate=0.1)", "MPFT (Cluster, rate=0.3)", "MPFT (Random, rate=0.3)"):
        assert out[row] > out[MPFT_AVERAGES].max()
    printed = inside.drop(["FedProx, AdamW", "FedProto, no penalty"])
    assert first(printed, 2) == {"local", "Ditto"}
    sent = means("mpft", "table-3-communication", "pacs", "PACS")
    assert sent[MPFT_AVERAGES].min() > 200 and 12 < sent.filter(like="MPFT").max() < 25


@check("mpft_results", "Part of that lead is the early stop's")
def _():
    rounds = cells("mpft", "table-1-pacs", "pacs", "rounds").mean(axis=1)
    assert rounds[["FedAvg", "MOON", "DBE"]].between(9, 11).all()
    assert rounds["FedProx, AdamW"] == 200
    out = means("mpft", "table-1-pacs", "pacs", "ood_acc")
    assert abs(out["FedProx, AdamW"] - out.filter(like="MPFT").max()) < 0.005


@check("mpft_results", "Class means alone are not enough")
def _():
    printed = papers.load("mpft").table("table-1-pacs")
    for column in ("ood_acc", "ind_acc"):
        values = means("mpft", "table-1-pacs", "pacs", column)
        theirs = [printed.cell(row, column).value for row in ("FedAvg", "MPFT (Average)")]
        assert values["FedAvg"] - values["MPFT (Average)"] > theirs[0] - theirs[1] > 0


@check("mpft_results", "Centres beat drawn images")
def _():
    out = means("mpft", "table-1-pacs", "pacs", "ood_acc")
    for rate in (0.1, 0.3):
        assert out[f"MPFT (Cluster, rate={rate})"] > out[f"MPFT (Random, rate={rate})"]


@check("mpft_results", "FedProto")
def _():
    out = means("mpft", "table-1-pacs", "pacs", "ood_acc")
    assert out["FedAvg"] - out["FedProto"] > 0.2


@check("mpft_results", "On Office-Caltech-10")
def _():
    out = means("mpft", "table-1-pacs", "office10", "out of domain")
    out = out.drop(["local", "FedProto, no penalty"])
    assert out.max() - out.min() < 0.0105
