"""What the pages of FedPall say of the runs."""

import pandas as pd
import pytest

from fedrepro import papers
from tests.book.findings import by_rule, cells, check, first, means

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


@check("fedpall_results", "The picture is that of Office-10")
def _():
    values = means("fedpall", "table-1-pacs", "pacs")
    assert first(values, 1) == {"FedPall"}
    assert first(values, 4) == {"FedPall", "FedProto", "SingleSet", "ADCOL"}
    assert values["FedPall"] - values["SingleSet"] == pytest.approx(2, abs=0.5)
    assert values["ADCOL"] - values[AVERAGING].max() > 10
    printed = papers.load("fedpall").table("table-1-pacs")
    lead = printed.cell("FedPall", "avg").value - printed.cell("SingleSet", "avg").value
    assert lead == pytest.approx(1.9, abs=0.05)


@check("fedpall_results", "FedBN is among those that average")
def _():
    for dataset, gain in (("pacs", 17), ("office10", -7)):
        values = means("fedpall", f"table-1-{dataset}", dataset)
        assert values["SingleSet"] - values["FedBN"] > 10
        printed = papers.load("fedpall").table(f"table-1-{dataset}")
        theirs = {row: printed.cell(row, "avg").value for row in ("FedAvg", "FedBN")}
        assert theirs["FedBN"] - theirs["FedAvg"] == pytest.approx(gain, abs=0.5)


DIGITS = "fedpall", "table-1-digits", "digits5-standin"
OWN = ["FedPall", "ADCOL", "FedProto", "SingleSet"]


def on_digits():
    """Accuracy by arm and domain, mean of the seeds."""
    domains = ["mnist", "svhn", "usps", "synthdigits-standin", "mnistm"]
    return pd.DataFrame({domain: means(*DIGITS, domain) for domain in domains})


@check("fedpall_results", "The picture of Office-10 is not seen")
def _():
    values, runs = means(*DIGITS), cells(*DIGITS)
    level = ["FedBN", "RUCR", "MOON", "FedProx", "FedPall", "FedAvg"]
    assert first(values, 6) == set(level)
    apart = values[level].max() - values[level].min()
    assert apart < 2.2 < (runs.max(axis=1) - runs.min(axis=1)).drop("FedPall").min()
    assert values["FedAvg"] - values["SingleSet"] == pytest.approx(3, abs=0.5)
    printed = papers.load("fedpall").table("table-1-digits")
    theirs = pd.Series({row: printed.cell(row, "avg").value for row in printed.methods})
    assert theirs.idxmax() == "FedPall"
    assert theirs.max() - theirs["FedBN"] == pytest.approx(1.1, abs=0.05)


@check("fedpall_results", "FedPall's seeds agree")
def _():
    runs = cells(*DIGITS)
    spread = runs.max(axis=1) - runs.min(axis=1)
    assert spread["FedPall"] < 2 and spread.drop("FedPall").min() > 4.9


@check("fedpall_results", "A network of one's own gains on MNIST and loses on SVHN")
def _():
    gain = on_digits() - on_digits().loc["FedAvg"]
    assert gain.mnist[OWN].between(12, 17).all() and gain.svhn[OWN].between(-25, -17).all()
    stand_in = gain["synthdigits-standin"]
    assert stand_in["FedPall"] == pytest.approx(9, abs=0.5)
    assert stand_in.drop("FedPall").max() < 2.5


@check("fedpall_results", "ADCOL loses the stand-in")
def _():
    column = cells(*DIGITS, "synthdigits-standin").loc["ADCOL"]
    assert len(column) == 3 and column.max() < 12
    lost = cells(*DIGITS).loc["ADCOL"].mean() - means(*DIGITS)["SingleSet"]
    assert lost == pytest.approx(-9, abs=0.5)


@check("fedpall_results", "The weights as printed")
def _():
    gain = on_digits().loc["FedPall, weights as printed"] - on_digits().loc["FedPall"]
    assert gain.mean() == pytest.approx(-10, abs=0.5)
    assert gain.svhn == pytest.approx(-12, abs=0.5) and gain[["mnist", "mnistm", "usps"]].min() > 0
    assert on_digits().loc["FedPall, weights as printed", "synthdigits-standin"] < 11


@check("fedpall_results", "The server's classifier carries FedPall")
def _():
    lead = {}
    for dataset in ("office10", "pacs"):
        parts = means("fedpall", "figure-6", dataset)
        lead[dataset] = parts - means("fedpall", f"table-1-{dataset}", dataset)["SingleSet"]
    assert lead["office10"]["without"] == pytest.approx(-3, abs=0.5)
    assert lead["pacs"]["without"] == pytest.approx(0, abs=0.5)
    assert lead["office10"]["with"] == pytest.approx(4, abs=0.5)
    assert lead["pacs"]["with"] == pytest.approx(2, abs=0.5)
    gains = {}
    for dataset, domains in (
        ("office10", ("amazon", "caltech", "dslr", "webcam")),
        ("pacs", ("photo", "art_painting", "cartoon", "sketch")),
    ):
        for domain in domains:
            parts = means("fedpall", "figure-6", dataset, domain)
            gains[domain] = parts["with"] - parts["without"]
    printed = papers.load("fedpall").table("prose-global-classifier")
    caltech = printed.cell("caltech gain over no global classifier", "value").value
    most = printed.cell("PACS largest gain (up to)", "value").value
    assert gains["caltech"] == pytest.approx(caltech, abs=0.6)
    assert gains["dslr"] == pytest.approx(11, abs=0.5)
    assert max(gains["photo"], gains["sketch"]) == pytest.approx(most, abs=0.5)
    assert max(gains["art_painting"], gains["cartoon"]) < 3


@check("fedpall_results", "The added losses do not, on Office-10")
def _():
    values = means("fedpall", "figure-3", "office10")
    lost = values["CE"] - values
    assert lost["CE + KL + InfoNCE"] == pytest.approx(5, abs=0.5)
    assert lost[["CE + KL", "CE + InfoNCE"]].between(3, 3.6).all()
    runs = cells("fedpall", "figure-3", "pacs")
    gain = runs.mean(axis=1)["CE + KL + InfoNCE"] - runs.mean(axis=1)["CE"]
    assert gain == pytest.approx(1.5, abs=0.3) and gain < runs.std(axis=1).max()
