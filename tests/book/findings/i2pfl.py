"""What the pages of I2PFL say of the runs."""

import pytest
from scipy import stats

from fedrepro import papers
from tests.book.findings import cells, check, means

I2PFL_TASKS = (("digits", "digits4-standin"), ("office10", "office10"))


def i2pfl(table):
    """Of one of its tables on Digits and on Office-10, the mean by arm."""
    return [means("i2pfl", f"{table}-{task}", dataset) for task, dataset in I2PFL_TASKS]


@check("i2pfl_results", "Whether I2PFL gains on FedAvg is not settled")
def _():
    for digits, office in (i2pfl("table-3"), i2pfl("table-8")):
        assert office.idxmax() == "I2PFL"
        assert list(digits.sort_values(ascending=False).index[:2]) == ["FPL", "I2PFL"]
    gains = [
        values["I2PFL"] - values["FedAvg"] for values in (*i2pfl("table-3"), *i2pfl("table-8"))
    ]
    assert [gains[k] for k in (0, 1, 3)] == pytest.approx([2, 2, 2], abs=0.6)
    assert 0 < gains[2] < 1.5
    for (task, dataset), bounds in zip(I2PFL_TASKS, ((-0.4, 4.0), (-1.7, 5.5)), strict=True):
        runs = cells("i2pfl", f"table-3-{task}", dataset).astype(float)
        lead = runs.loc["I2PFL"] - runs.loc["FedAvg"]
        half = stats.t.ppf(0.975, len(lead) - 1) * lead.sem()
        assert (lead.mean() - half, lead.mean() + half) == pytest.approx(bounds, abs=0.05)
    for table in ("table-3", "table-8"):
        for task, _ in I2PFL_TASKS:
            printed = papers.load("i2pfl").table(f"{table}-{task}")
            theirs = {row.method: printed.cell(row.method, "avg").value for row in printed.rows}
            assert max(theirs, key=theirs.get) == "I2PFL"


@check("i2pfl_results", "The contrast with generalised prototypes carries the gain")
def _():
    for task, values in zip(I2PFL_TASKS, i2pfl("table-5"), strict=True):
        neither, contrast, alignment, both = (
            f"GPCL={gpcl}, APA={apa}" for apa in ("off", "on") for gpcl in ("off", "on")
        )
        assert values[contrast] > values[neither] and abs(values[alignment] - values[neither]) < 1
        if task[0] == "digits":
            assert abs(values[contrast] - values[both]) < 0.2
        printed = papers.load("i2pfl").table(f"table-5-{task[0]}")
        assert printed.cell(alignment, "avg").value > printed.cell(contrast, "avg").value


@check("i2pfl_results", "Re-weighting does not beat clustering")
def _():
    for values in i2pfl("table-6"):
        assert 0 < values["Clustering"] - values["Reweighting"] < 1.2


@check("i2pfl_results", "The moving average helps")
def _():
    for values in i2pfl("table-10"):
        assert values["Ours"] - values["Ours w/o EMA"] == pytest.approx(2, abs=0.4)


@check("i2pfl_results", "MOON and FedProc fall below FedAvg")
def _():
    below = 0
    for table in ("table-3", "table-8"):
        for (task, _), values in zip(I2PFL_TASKS, i2pfl(table), strict=True):
            for method in ("MOON", "FedProc"):
                assert values[method] < values["FedAvg"]
                printed = papers.load("i2pfl").table(f"{table}-{task}")
                gap = printed.cell("FedAvg", "avg").value - printed.cell(method, "avg").value
                below += gap > 0
                assert gap < 6
            if task == "digits":
                assert values["FedAvg"] - values["FedProc"] > 10
    assert below >= 6


@check("i2pfl_results", "The networks are far from done,")
def _():
    for (task, _), values, gap in zip(I2PFL_TASKS, i2pfl("table-3"), (40, 20), strict=True):
        printed = papers.load("i2pfl").table(f"table-3-{task}")
        assert printed.cell("FedAvg", "avg").value - values["FedAvg"] > gap


@check("i2pfl_results", "The lists as they are flatter seven of eight,")
def _():
    leaky, clean = (means("i2pfl", "table-4", dataset) for dataset in ("pacs-leaky", "pacs"))
    gain = (leaky - clean).round(1)
    assert len(gain) == 8 and gain.between(0, 2.2).all() and list(gain.index[gain == 0]) == ["MOON"]
    assert means("i2pfl", "table-4", "pacs", "art_painting").max() < 18


@check("i2pfl_results", "The order is not the paper's")
def _():
    printed = papers.load("i2pfl").table("table-4")
    theirs = {row: printed.cell(row, "avg").value for row in printed.methods}
    assert max(theirs, key=theirs.get) == "I2PFL"
    for dataset in ("pacs-leaky", "pacs"):
        values = means("i2pfl", "table-4", dataset)
        assert list(values.sort_values(ascending=False).index[:2]) == ["FedProto", "FPL"]
        assert values["I2PFL"] < values["FedAvg"]


@check("i2pfl_results", "FedDyn is FedAvg,")
def _():
    for dataset in ("pacs-leaky", "pacs"):
        runs = cells("i2pfl", "table-4", dataset)
        assert list(runs.loc["FedDyn"]) == list(runs.loc["FedAvg"])
