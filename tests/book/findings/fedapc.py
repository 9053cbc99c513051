"""What the pages of FedAPC say of the runs."""

from fedrepro import papers
from tests.book.findings import cells, check, means, order


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
