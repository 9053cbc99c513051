"""What the pages of FedAPC say of the runs."""

import pytest

from fedrepro import papers
from tests.book.findings import cells, check, means, order

TASKS = (("digits", "digits4-standin"), ("office10", "office10"))


@check("fedapc_results", "No gain shows at that size")
def _():
    for (task, dataset), gap in zip(TASKS, (4.4, 2.4), strict=True):
        values = means("fedapc", f"table-1-{task}", dataset)
        assert values["FedAvg"] - values["FedAPC"] == pytest.approx(gap, abs=0.3)
        assert values["FedAPC"] < values["FedProto"] < values["FedAvg"]
        assert values.idxmin() == "MOON"


@check("fedapc_results", "With and without augmented prototypes")
def _():
    for task, dataset in TASKS:
        runs = cells("fedapc", f"table-2-{task}", dataset)
        assert abs(runs.mean(axis=1).diff().iloc[-1]) < runs.std(axis=1).min()


@check("fedapc_results", "The temperature matters, the number of views hardly")
def _():
    for (task, dataset), gain in zip(TASKS, (1.9, 0.5), strict=True):
        temperatures = means("fedapc", "sweep-temperature", dataset).sort_values()
        assert len(temperatures) == 5 and temperatures.index[0] == "tau=0.02"
        assert temperatures.diff().iloc[1] > gain
        lead = temperatures.max() - means("fedapc", f"table-1-{task}", dataset)["FedAvg"]
        assert lead < 0 if task == "digits" else abs(lead) < 0.6
        views = means("fedapc", "sweep-views", dataset)
        assert len(views) == 4 and views.max() - views.min() < 2
    assert means("fedapc", "sweep-temperature", "office10").idxmax() == "tau=0.05"


@check("fedapc_results", "The networks are far from done")
def _():
    for task, dataset in TASKS:
        printed = papers.load("fedapc").table(f"table-1-{task}")
        values = means("fedapc", f"table-1-{task}", dataset)
        assert all(printed.cell(row, "avg").value - value > 20 for row, value in values.items())
    for dataset in ("digits5-standin", "office10"):
        assert order(dataset)["mean"]["FedAPC"] > order(dataset)["mean"]["FedAvg"]
