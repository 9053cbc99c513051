"""The common protocol's page: from glued cells to ranks, agreement and choices."""

import pandas as pd
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.report import standings
from fedrepro.report.picture import Picture
from fedrepro.report.recorded import NOTHING
from fedrepro.report.scraps import Collected

MEANS = {"FedAvg": 50.0, "FedBN": 60.0, "ADCOL": 70.0, "FedProx": 40.0}


def book(seed: int, dataset: str = "office10") -> dict:
    cells = [
        {"table": "methods", "method": m, "seed": seed, "column": c, "value": v + (c == "dslr")}
        for m, v in MEANS.items()
        for c in ("amazon", "dslr", "avg")
    ]
    runs = [
        {"used": [["methods", m]], "seed": seed, "tries": {"0.01": v / 2, "0.03": v / 4}}
        for m, v in MEANS.items()
    ]
    study = {"paper": "common", "dataset": dataset, "scale": "reduced", "seed": seed}
    return {"study": study, "cells": cells, "runs": runs}


@pytest.fixture
def found() -> Collected:
    return Collected([book(seed, name) for seed in (0, 1, 2) for name in ("office10", "pacs")])


def test_the_table_leaves_the_average_out_of_the_domains(found):
    table = standings.table(found, "methods", "office10")
    assert list(table.index) == ["ADCOL", "FedBN", "FedAvg", "FedProx"]
    assert table.loc["ADCOL", "mean"] == 70.5 and table.loc["ADCOL", "std over seeds"] == 0
    assert list(table.columns[-2:]) == ["amazon", "dslr"]
    assert table.loc["FedBN", "95 % of draws"] == "2 to 2"


def test_ranks_of_all_data_sets_side_by_side(found):
    table = standings.overall(found, "methods")
    assert list(table.columns) == ["mean rank", "office10", "pacs"]
    assert table.loc["FedProx"].tolist() == [4, 4, 4]


def test_agreement_stands_beside_every_paper_of_the_data_set(found):
    """ADCOL prints on Office: ADCOL first, FedBN 60.0 above FedAvg 55.3 above FedProx ..."""
    table = standings.agreement(found, "methods")
    assert {"ADCOL", "FedPall", "I2PFL", "FedAPC"} == set(table.loc["office10"].index.levels[0])
    assert table.loc[("office10", "ADCOL", "table-4"), "methods"] == 4


def test_the_choice_is_the_value_of_the_best_validation_accuracy(found):
    table = standings.chosen(found, "methods")
    assert table.loc["ADCOL", ("office10", "chosen")] == "0.01"
    assert table.loc["ADCOL", ("pacs", "0.03")] == 17.5


def test_a_method_of_which_a_seed_diverged_stands_last_without_a_rank(found):
    for row in found.where(dataset="pacs").notebooks[1]["cells"]:
        row["value"] = None if row["method"] == "ADCOL" else row["value"]
    table = standings.table(found, "methods", "pacs")
    assert list(table.index) == ["FedBN", "FedAvg", "FedProx", "ADCOL"]
    assert table.loc["ADCOL"].dropna().to_dict() == {"95 % of draws": "diverged"}
    assert table.loc["FedBN", "rank"] == 1
    assert standings.overall(found, "methods").loc["ADCOL", "office10"] == 1


def test_the_figure_has_a_line_a_method(found):
    figure = standings.figure(found, "methods", "office10")
    assert isinstance(figure, Picture)
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == ["ADCOL", "FedBN", "FedAvg", "FedProx"]


def test_nothing_recorded_is_said_and_an_unknown_experiment_is_an_error(found, capsys):
    for view in (standings.overall, standings.agreement, standings.chosen):
        assert NOTHING in view(Collected([]), "methods").html
    with pytest.raises(FedReproError, match="holds frozen on pacs"):
        standings.scores(found, "frozen", "pacs")
    assert isinstance(standings.scores(found, "methods", "pacs"), pd.DataFrame)
