"""The common protocol: one budget of trials for every arm, the same choice for every seed."""

import copy
import math
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from fedrepro import methods, papers
from fedrepro.base.errors import Diverged, FedReproError
from fedrepro.base.progress import Silent
from fedrepro.federated import metrics, rounds
from fedrepro.models import build_model, layout
from fedrepro.papers import Arm, Tuning
from fedrepro.quantities.base import Study, study
from fedrepro.records import Store
from fedrepro.report import notebook, results
from fedrepro.report.ledger import ledger
from fedrepro.report.verdicts import beside
from tests import toys

RATES = (0.0001, 0.05, 0.01)
RATED = Tuning(setting="optimizer.lr", values={"smoke": RATES}, seed=3, source="a test")
SHORT = Tuning(values={"smoke": (10.0, 0.1)}, rounds={"smoke": 1}, seed=3, source="a test")
HERE = {"progress": Silent(), "device": "cpu"}


def study_of(name: str, changed: str, place, only, seed=0, dataset="minidigits", **update) -> Study:
    """A paper at scale smoke, one of whose experiments is changed."""
    paper = papers.load(name)
    experiments = tuple(
        e.model_copy(update=update) if e.id == changed else e for e in paper.experiments
    )
    paper = paper.model_copy(update={"experiments": experiments})
    return Study(paper, dataset, "smoke", seed, only, store=Store(place), **HERE)


def tuned(seed: int, place, rates=RATES) -> Study:
    tuning = RATED.model_copy(update={"values": {"smoke": rates}})
    return study_of("common", "methods", place, ["FedAvg", "SOLO"], seed, tuning=tuning)


def weights(place, tuning: Tuning) -> Study:
    return study_of("adcol", "table-1", place, ["SOLO", "ADCOL"], tuning=tuning)


def test_the_best_validation_accuracy_of_one_seed_decides_for_all(tmp_path):
    tries = {}
    for seed in (0, 1):
        for result in tuned(seed, tmp_path).results("methods"):
            best = max(RATES, key=lambda rate: result.tries[str(rate)])
            assert result.record.config["protocol"]["optimizer"]["lr"] == best
            assert result.record.config["seed"] == seed
            assert result.tries == tries.setdefault(result.label, result.tries)
    # 2 methods x 3 rates of seed 3, and one run a seed and method
    assert len(toys.records(tmp_path)) == 2 * 3 + 2 * 2
    for trial in toys.records(tmp_path):
        if trial.config["seed"] == 3 and trial.config["method"]["name"] == "FedAvg":
            rate = trial.config["protocol"]["optimizer"]["lr"]
            assert tries["FedAvg"][str(rate)] == metrics.validated(trial.curve)


def test_a_field_is_tuned_over_fewer_rounds_than_the_run_has(tmp_path):
    """An experiment with another's arms has its tuning. At another scale nothing is tuned."""
    study = weights(tmp_path, SHORT)
    solo, adcol = study.results("table-1")
    assert solo.tries == {} and adcol.tries.keys() == {"10.0", "0.1"}
    best = max((10.0, 0.1), key=lambda mu: adcol.tries[str(mu)])
    assert adcol.record.config["method"]["fields"]["mu"] == best
    assert adcol.record.config["protocol"]["rounds"] == 2
    trials = [r.config for r in toys.records(tmp_path) if r.config["seed"] == 3]
    assert [trial["protocol"]["rounds"] for trial in trials] == [1, 1]
    assert {trial["method"]["fields"]["mu"] for trial in trials} == {10.0, 0.1}
    (again,) = study.results("table-2-rounds")
    assert again.tries == adcol.tries
    elsewhere = weights(tmp_path, SHORT.model_copy(update={"values": {"paper": (0.1,)}}))
    assert [result.tries for result in elsewhere.results("table-1")] == [{}, {}]


def test_an_own_constant_is_tuned_at_the_best_rate(tmp_path):
    arms = tuple(
        arm.model_copy(update={"constant": {"mu": (0.5, 50.0)} if arm.label == "FedProx" else {}})
        for arm in papers.load("common").experiment("methods").arms
    )
    tuning, only = RATED.model_copy(update={"constants": ("smoke",)}), ["FedAvg", "FedProx"]
    study = study_of("common", "methods", tmp_path, only, tuning=tuning, arms=arms)
    average, proximal = study.results("methods")
    assert average.tries.keys() == {str(rate) for rate in RATES}
    best = max(RATES, key=lambda rate: proximal.tries[str(rate)])
    own = {f"{best}, mu 0.5": 0.5, f"{best}, mu 50.0": 50.0}
    assert proximal.tries.keys() == {*map(str, RATES), *own}
    chosen = metrics.best_value(proximal.tries)
    assert proximal.record.config["protocol"]["optimizer"]["lr"] == best
    assert proximal.record.config["method"]["fields"]["mu"] == own.get(chosen, 0.01)


def test_a_rate_under_which_training_diverges_is_not_chosen(tmp_path):
    for result in tuned(0, tmp_path, (1e30, 0.01)).results("methods"):
        assert result.tries.keys() == {"0.01"}
        assert result.record.config["protocol"]["optimizer"]["lr"] == 0.01
    with pytest.raises(Diverged, match="seed 3: the loss of client 0"):
        tuned(0, tmp_path, (1e30,)).results("methods")


@pytest.mark.parametrize("experiment", ["methods", "own-statistics", "apart", "frozen"])
def test_what_is_tried_reaches_every_methods_steps(experiment):
    """A rate that no step uses would be a budget that one method does not have."""
    common = papers.load("common")
    tuning = common.experiment(experiment).tuning
    two = tuning.model_copy(update={"values": {"smoke": (0.123, 0.321)}})
    for arm in common.arms(experiment, "minidigits", "smoke"):
        first, second = (steps(run) for *_, run in replace(arm, tuning=two).trials())
        if arm.method == "MPFT":
            assert first == second == []  # its clients train nothing; see below
        else:
            assert first != second, arm.label


def test_no_method_of_own_statistics_is_tested_with_averaged_ones():
    network = layout(build_model("resnet10", 10, 32))
    own = [one for one in network.values() if one.is_bn and one.is_buffer]
    for arm in papers.load("common").arms("own-statistics", "minidigits", "smoke"):
        method = methods.create(arm.method, **arm.fields)
        if method.evaluated_models(network)[0] != "twin":
            assert own and not any(map(method.overwrites, own)), arm.label


def steps(trial: Arm) -> list[object]:
    method = methods.create(trial.method, **trial.fields)
    phases = method.phases(trial.protocol)
    return [(p.optimizer or trial.protocol.optimizer, p.lookahead) for p in phases]


def test_what_is_tried_reaches_mpfts_server(tmp_path):
    common = papers.load("common")
    study = Study(common, "minidigits", "smoke", only=["MPFT"], store=Store(tmp_path), **HERE)
    (arm,) = study.arms("frozen")
    rates = RATED.model_copy(update={"values": {"smoke": (0.001, 0.1)}})
    curves = [study.trained(run).curve for *_, run in replace(arm, tuning=rates).trials()]
    losses = [curve[curve.subject == "server_loss"].value.iloc[-1] for curve in curves]
    assert losses[0] != losses[1]


def test_validated_is_the_mean_of_the_last_five_rounds_of_domains_with_validation_images():
    rows = [
        (n, "accuracy", "global", d, s, v)
        for n in range(1, 8)
        for d, s, v in (("a", "validation", 10.0 * n), ("b", "validation", 0.0), ("c", "test", 9.0))
    ]
    curve = pd.DataFrame(rows, columns=list(metrics.CURVE_COLUMNS))
    assert metrics.validated(curve) == pytest.approx(5.0 * (3 + 4 + 5 + 6 + 7) / 5)
    with pytest.raises(FedReproError, match="no validation images to tune by"):
        metrics.validated(curve[curve.split == "test"])


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


def test_some_arms_alone_and_changes_in_every_arm(smoke):
    some = study("adcol", "minidigits", "smoke", 0, only=["FedAvg"], runs_dir=smoke.store.root)
    assert [arm.label for arm in some.arms("table-1")] == ["FedAvg"]
    assert some.cells("table-2-rounds") == []
    changed = study("adcol", "minidigits", "smoke", 0, changes={"rounds": 5, "data.size": 32})
    assert (
        '<td style="text-align: left">changed by hand'
        in ledger(results.Results([(changed, [])])).html
    )
    for arm in changed.arms("table-4"):
        assert (arm.protocol.rounds, arm.protocol.data.size) == (5, 32)
    with pytest.raises(FedReproError, match=r"no setting .model\.depth."):
        study("adcol", "minidigits", changes={"model.depth": 3})


def diverging(monkeypatch, **where):
    """Let the loss of every job with those attributes (method's name, seed; round 1) be NaN."""
    check = rounds.must_be_finite

    def broken(method, job, terms):
        facts = {"method": method.name, "seed": job.seed, "round": job.round}
        lost = ({"round": 1} | where).items() <= facts.items()
        check(method, job, {"ce": math.nan} if lost else terms)

    monkeypatch.setattr(rounds, "must_be_finite", broken)


def test_an_arm_that_diverges_is_named_and_the_others_have_numbers(tmp_path, monkeypatch, capsys):
    diverging(monkeypatch, method="FedAvg")
    asked = few(tmp_path, ["SOLO", "FedAvg", "FedBN"])
    assert [result.label for result in asked.results("table-1")] == ["SOLO", "FedBN"]
    assert "loss of client 0 in round 1 is not finite" in str(asked.diverged("table-1")["FedAvg"])

    shown = beside(results.live(asked, ["table-1"]), "table-1").set_index(["method", "column"])
    row = shown.loc[("FedAvg", "mini-font")]
    assert math.isnan(row.ours) and "seed 0 diverged in round 1" in row.caveats
    assert shown.loc[("FedBN", "mini-font")].ours > 0
    assert shown.loc[("FedAvg", "avg")].verdict == "no verdict"  # scale smoke, as the others

    assert "FedAvg" not in set(notebook.runs(results.live(asked, ["table-1"])).run)
    assert "left out of table-1: FedAvg: FedAvg, seed 0: " in capsys.readouterr().out


def test_a_run_that_diverged_is_not_trained_again_until_it_is_deleted(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        diverging(patch, round=2)
        with pytest.raises(Diverged, match="the loss of client 0"):
            few(tmp_path, ["FedBN"]).results("table-1")
    assert not any(tmp_path.rglob("checkpoint*"))
    asked = few(tmp_path, ["FedBN"])
    with pytest.raises(Diverged, match=r"is not finite .*delete .* to train it again") as caught:
        asked.results("table-1")
    passed_on = copy.copy(caught.value)  # as pickling does, between processes
    assert (passed_on.seed, passed_on.round) == (0, 2) and str(passed_on) == str(caught.value)
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder)
    assert [result.label for result in asked.results("table-1")] == ["FedBN"]
