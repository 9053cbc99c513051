"""The public names: one run, several compared, a federation."""

import numpy as np
import pytest

import fedrepro
from fedrepro.base.errors import FedReproError


def test_a_run_has_its_accuracy_curve_and_plot(tmp_path):
    found = fedrepro.run("FedAvg", seed=1, runs=tmp_path, changes={"rounds": 2})
    assert list(found.accuracy.index) == [1, 2]
    assert np.allclose(found.accuracy.drop(columns="avg").mean(axis=1), found.accuracy["avg"])
    assert found.record.config["seed"] == 1 and set(found.curve.columns) >= {"round", "value"}
    assert found.plot().png().startswith(b"\x89PNG")
    assert f"avg {found.accuracy.avg[2]:.1f} %, run {found.record.run_id}" in repr(found)


def test_methods_compared_are_rows_with_intervals(tmp_path, capsys):
    where = {"runs": tmp_path, "changes": {"rounds": 1}}
    table = fedrepro.compare(rows := ["FedAvg", "FedProx (mu=9.0)"], seeds=np.arange(2), **where)
    assert list(table.index) == rows and table.avg.between(table.low, table.high).all()
    assert len({fedrepro.run(n, **where).record.run_id for n in (rows[1], "FedProx")}) == 2
    assert f"row 4 of 4, {rows[1]} seed 1  round 1/1" in capsys.readouterr().err
    assert fedrepro.compare(["FedAvg"], seeds=[0], **where).low.isna().all()
    wild = {**where, "changes": {**where["changes"], "optimizer.lr": 1e30}}
    lost = fedrepro.compare(["FedAvg"], seeds=[0], **wild).loc["FedAvg"]
    assert np.isnan(lost.avg) and (lost.seeds, lost.diverged) == (0, 1)
    assert {*lost.index} < fedrepro.data.folders.TAKEN  # no domain has such a name


def test_a_federation_and_a_wrong_name():
    assert "minidigits: 4 clients with 160 images" in repr(fedrepro.federation("minidigits"))
    named, read = "no method or row of Common protocol 'FedBm'", "cannot read .mu=.1.;"
    wrong = {"FedBm": named, "FedProx (m=1)": "no field 'm'", "FedProx (mu=[1)": read}
    for name, said in wrong.items():
        with pytest.raises(FedReproError, match=said):
            fedrepro.compare(["FedAvg", name], progress=object())  # before anything is trained
    for named, seeds, said in (([], [0], "at least one method"), ("FedAvg", "0-2", "as in seeds=")):
        with pytest.raises(FedReproError, match=said):
            fedrepro.compare(named, seeds=seeds)
    wrong = {"run takes one name": {"method": None}, "data set 3": {"dataset": 3}}
    wrong |= {"give names": {"changes": "rounds=3"}, "name each": {"changes": {"optimizer": {}}}}
    own = fedrepro.methods.get("FedProx")  # neither values of an object nor another class are lost
    wrong |= {"9.*registered": {"method": own(mu=9.0)}, "M'": {"method": type("M", (own,), {})}}
    for said, given in wrong.items():
        with pytest.raises(FedReproError, match=said):
            fedrepro.run(**{"method": "FedAvg"} | given)
