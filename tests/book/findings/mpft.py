"""What the pages of MPFT say of the runs."""

from fedrepro import papers
from tests.book.findings import cells, check, first, means

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
