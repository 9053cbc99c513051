"""Numbers of experiments whose arms have a printed place of their own."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.base.errors import Diverged
from fedrepro.quantities.cells import cells, without_numbers

ADCOL = papers.load("adcol")


def result(label: str, *accuracies: float, row: str = "", column: str | None = None):
    """A finished run of one round with these test accuracies."""
    rows = [
        (1, "accuracy", "personal", f"d{i}", "test", value) for i, value in enumerate(accuracies)
    ]
    curve = pd.DataFrame(rows, columns=["round", "measure", "subject", "domain", "split", "value"])
    data = {"dataset": "digits5", "domains": ["d0", "d1"], "standins": [], "deviations": {}}
    record = SimpleNamespace(curve=curve, data=data)
    arm = SimpleNamespace(row=row, column=column, alternative=False)
    return SimpleNamespace(label=label, record=record, arm=arm, clients=2)


def test_grid_puts_each_mean_in_its_place() -> None:
    runs = [
        result("ADCOL, rate=0.1", 30.0, 40.0, row="ADCOL", column="rate 0.1"),
        result("ADCOL, rate=1", 70.0, 90.0, row="ADCOL", column="rate 1"),
    ]
    found = cells(ADCOL, ADCOL.experiment("table-8"), runs)
    places = {(row["method"], row["column"]): row["value"] for row in found}
    assert places == {("ADCOL", "rate 0.1"): 35.0, ("ADCOL", "rate 1"): 80.0}
    (alone,) = cells(ADCOL, ADCOL.experiment("table-18"), [result("FedBN", 10.0, 20.0)])
    assert (alone["method"], alone["column"], alone["value"]) == ("FedBN", "accuracy", 15.0)


def test_a_place_of_its_own_stays_where_training_diverged() -> None:
    left = [result("ADCOL, rate=0.1", 30.0, 40.0, row="ADCOL", column="rate 0.1")]
    arm = result("ADCOL, rate=1", row="ADCOL", column="rate 1").arm
    experiment = ADCOL.experiment("table-8")
    rows = cells(ADCOL, experiment, left)
    (lost,) = without_numbers(experiment, rows, [(arm, Diverged("no number", seed=2, round=7))])
    assert (lost["method"], lost["column"], lost["value"]) == ("ADCOL", "rate 1", None)
    assert lost["marks"] == ["seed 2 diverged in round 7"] and lost.keys() == rows[0].keys()


def test_relative_gain_of_the_printed_means() -> None:
    """80.2 against 69.5 is the 15.4 percent that the paper names."""
    runs = [result("SOLO", 69.5, 69.5), result("ADCOL", 80.2, 80.2)]
    (row,) = cells(ADCOL, ADCOL.experiment("prose-relative-gain"), runs)
    assert (row["method"], row["column"]) == ("Digits", "value")
    assert row["value"] == pytest.approx(15.4, abs=0.05)
    assert cells(ADCOL, ADCOL.experiment("prose-relative-gain"), runs[:1]) == []


def in_turn(target: int | None, *accuracies: float):
    """A run on two clients; its row is FADA where it has a target."""
    label = "SOLO" if target is None else f"FADA, target={target}"
    found = result(label, *accuracies, row=label if target is None else "FADA")
    found.arm.fields = {} if target is None else {"target": target}
    found.record.data["clients"] = [{"domain": "d0"}, {"domain": "d1"}]
    return found


def test_each_target_fills_its_own_column() -> None:
    runs = [in_turn(None, 10.0, 20.0), in_turn(0, 30.0, 99.0), in_turn(1, 99.0, 50.0)]
    spec = ADCOL.experiment("table-21")
    found = cells(ADCOL, spec, runs)
    places = [(row["method"], row["column"], row["value"]) for row in found]
    assert places[:3] == [("SOLO", "d0", 10.0), ("SOLO", "d1", 20.0), ("SOLO", "avg", 15.0)]
    assert places[3:] == [("FADA", "d0", 30.0), ("FADA", "d1", 50.0), ("FADA", "avg", 40.0)]
    # The last client, named twice, is one column; without all targets there is no mean.
    twice = cells(ADCOL, spec, [*runs, in_turn(-1, 99.0, 50.0)])
    assert [(row["method"], row["column"], row["value"]) for row in twice] == places
    (alone,) = cells(ADCOL, spec, [in_turn(-1, 99.0, 50.0)])
    assert (alone["method"], alone["column"], alone["value"]) == ("FADA", "d1", 50.0)
