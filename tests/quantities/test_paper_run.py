"""A paper's experiments from the store: arms, cells, curves, wrong parameters."""

import copy
import math
import shutil
from dataclasses import replace
from typing import get_args

import pandas as pd
import pytest

from fedrepro.base.errors import Diverged, FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Status
from fedrepro.federated import rounds
from fedrepro.quantities.paper_run import study
from fedrepro.report import notebook, results
from fedrepro.report.verdicts import beside


def few(place, only=None):
    given = {"only": only, "runs_dir": place, "progress": Silent(), "device": "cpu"}
    return study("adcol", "minidigits", "smoke", 0, **given)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    return few(tmp_path_factory.mktemp("runs"))


def test_everything_runnable_runs_and_every_kind_has_numbers(smoke):
    some = "table-1 table-4 figure-2c table-13 table-15 table-19 figure-4"
    assert set(some.split()) <= set(smoke.chosen("all"))
    for name in smoke.chosen("all"):
        rows = smoke.cells(name)
        assert rows and all(row["table"] == name and row["seed"] == 0 for row in rows), name


def test_departures_are_read_from_flags(smoke, monkeypatch):
    caveats = {"subsets": ("a",), "deviations": {"a": ("x",), "b": ("a subset",)}}
    federation = replace(smoke.federation(), **caveats)
    monkeypatch.setattr(type(smoke), "federation", lambda self: federation)
    sources = smoke.paper.sources(smoke.dataset, smoke.scale)
    words = "not stated, a project decision, inferred"  # they decide nothing
    shown = [("data.split", status, status, words, "") for status in get_args(Status)]
    sources = pd.DataFrame(shown, columns=sources.columns)
    monkeypatch.setattr(type(smoke.paper), "sources", lambda self, *_: sources)
    rows = notebook.departures(smoke)
    assert rows.loc["data: a", "value"] == "subset" and rows.loc["data: b", "value"] == "deviation"
    assert list(rows.value["data.split"]) == ["inferred", "decided"]


def test_targets_are_the_lowest_final_accuracy_of_our_own_runs(smoke):
    final = pd.DataFrame(smoke.cells("table-1")).set_index(["method", "column"]).value.unstack()
    lowest = final.loc[["FedAvg", "FedBN", "PartialFed", "FedProx", "ADCOL"]].min()
    for row in smoke.cells("table-2-rounds"):
        curve = next(r for r in smoke.results("table-1") if r.label == row["method"]).curve()
        reached = curve.index[curve[row["column"]] >= lowest[row["column"]]]
        assert row["value"] == (reached[0] if len(reached) else None)


def test_some_arms_alone_and_changes_in_every_arm(smoke):
    some = study("adcol", "minidigits", "smoke", 0, only=["FedAvg"], runs_dir=smoke.store.root)
    assert [arm.label for arm in some.arms("table-1")] == ["FedAvg"]
    assert some.cells("table-2-rounds") == []
    changed = study("adcol", "minidigits", "smoke", 0, changes={"rounds": 5, "data.size": 32})
    for arm in changed.arms("table-4"):
        assert (arm.protocol.rounds, arm.protocol.data.size) == (5, 32)
    with pytest.raises(FedReproError, match=r"no setting .model\.depth."):
        study("adcol", "minidigits", changes={"model.depth": 3})


def diverging(monkeypatch, **where):
    """Let the loss of every job with those attributes (method's name, seed) be NaN."""
    check = rounds.must_be_finite

    def broken(method, job, terms):
        facts = {"method": method.name, "seed": job.seed}
        lost = all(facts[key] == value for key, value in where.items()) and job.round == 1
        check(method, job, {"ce": math.nan} if lost else terms)

    monkeypatch.setattr(rounds, "must_be_finite", broken)


def test_an_arm_that_diverges_is_named_and_the_others_have_numbers(tmp_path, monkeypatch, capsys):
    diverging(monkeypatch, method="FedAvg")
    asked = few(tmp_path, ["SOLO", "FedAvg", "FedBN"])
    assert [result.label for result in asked.results("table-1")] == ["SOLO", "FedBN"]
    assert "loss of client 0 in round 1 is not finite" in str(asked.diverged("table-1")["FedAvg"])

    shown = beside(asked, "table-1").set_index(["method", "column"])
    row = shown.loc[("FedAvg", "mini-font")]
    assert math.isnan(row.ours) and "seed 0 diverged in round 1" in row.caveats
    assert shown.loc[("FedBN", "mini-font")].ours > 0
    assert shown.loc[("FedAvg", "avg")].verdict == "no verdict"  # scale smoke, as the others

    assert "FedAvg" not in set(notebook.runs(results.live(asked, ["table-1"])).run)
    assert "left out of table-1: FedAvg: FedAvg, seed 0: " in capsys.readouterr().out


def test_a_run_that_diverged_is_not_trained_again_until_it_is_deleted(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        diverging(patch)
        with pytest.raises(Diverged, match="the loss of client 0"):
            few(tmp_path, ["SOLO"]).results("table-1")
    asked = few(tmp_path, ["SOLO"])
    with pytest.raises(Diverged, match=r"is not finite .*delete .* to train it again") as caught:
        asked.results("table-1")
    passed_on = copy.copy(caught.value)  # as pickling does, between processes
    assert (passed_on.seed, passed_on.round) == (0, 1) and str(passed_on) == str(caught.value)
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder)
    assert [result.label for result in asked.results("table-1")] == ["SOLO"]
