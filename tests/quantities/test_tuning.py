"""The common protocol: one budget of trials for every arm, the same choice for every seed."""

import pandas as pd
import pytest

from fedrepro import methods, papers
from fedrepro.base.errors import Diverged, FedReproError
from fedrepro.base.progress import Silent
from fedrepro.federated import metrics
from fedrepro.papers import Arm, Tuning
from fedrepro.quantities.paper_run import Study
from fedrepro.records import Store
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
    """FedAvg and SOLO with some rates."""
    tuning = RATED.model_copy(update={"values": {"smoke": rates}})
    return study_of("common", "methods", place, ["FedAvg", "SOLO"], seed, tuning=tuning)


def weights(place, tuning: Tuning) -> Study:
    """ADCOL's Table 4 under another tuning."""
    return study_of("adcol", "table-4", place, ["SOLO", "ADCOL"], 0, "office10", tuning=tuning)


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
    """An experiment with another's arms has its tuning."""
    study = weights(tmp_path, SHORT)
    solo, adcol = study.results("table-4")
    assert solo.tries == {} and adcol.tries.keys() == {"10.0", "0.1"}
    best = max((10.0, 0.1), key=lambda mu: adcol.tries[str(mu)])
    assert adcol.record.config["method"]["fields"]["mu"] == best
    assert adcol.record.config["protocol"]["rounds"] == 2
    trials = [r.config for r in toys.records(tmp_path) if r.config["seed"] == 3]
    assert [trial["protocol"]["rounds"] for trial in trials] == [1, 1]
    assert {trial["method"]["fields"]["mu"] for trial in trials} == {10.0, 0.1}
    (again,) = study.results("table-6-rounds")
    assert again.tries == adcol.tries


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


@pytest.mark.parametrize("update", [{"values": {"paper": (0.1,)}}, {"protocols": ("domainnet",)}])
def test_nothing_is_tuned_at_another_scale_or_under_another_protocol(tmp_path, update):
    results = weights(tmp_path, SHORT.model_copy(update=update)).results("table-4")
    assert [result.tries for result in results] == [{}, {}]


def test_a_rate_under_which_training_diverges_is_not_chosen(tmp_path):
    for result in tuned(0, tmp_path, (1e30, 0.01)).results("methods"):
        assert result.tries.keys() == {"0.01"}
        assert result.record.config["protocol"]["optimizer"]["lr"] == 0.01
    with pytest.raises(Diverged, match="seed 3: the loss of client 0"):
        tuned(0, tmp_path, (1e30,)).results("methods")


@pytest.mark.parametrize("experiment", ["methods", "apart", "frozen"])
def test_what_is_tried_reaches_every_methods_steps(experiment):
    """A rate that no step uses would be a budget that one method does not have."""
    common = papers.load("common")
    tuning = common.experiment(experiment).tuning
    assert tuning is not None
    two = tuning.model_copy(update={"values": {"smoke": (0.123, 0.321)}})
    for arm in common.arms(experiment, "minidigits", "smoke"):
        first, second = (steps(run) for *_, run in arm.trials(two))
        if arm.method == "MPFT":
            assert first == second == []  # its clients train nothing; see below
        else:
            assert first != second, arm.label


def steps(trial: Arm) -> list[object]:
    method = methods.create(trial.method, **trial.fields)
    phases = method.phases(trial.protocol)
    return [(p.optimizer or trial.protocol.optimizer, p.lookahead) for p in phases]


def test_what_is_tried_reaches_mpfts_server(tmp_path):
    common = papers.load("common")
    study = Study(common, "minidigits", "smoke", only=["MPFT"], store=Store(tmp_path), **HERE)
    (arm,) = study.arms("frozen")
    rates = RATED.model_copy(update={"values": {"smoke": (0.001, 0.1)}})
    curves = [study._record(run).curve for *_, run in arm.trials(rates)]
    losses = [curve[curve.subject == "server_loss"].value.iloc[-1] for curve in curves]
    assert losses[0] != losses[1]


def test_validated_is_the_mean_of_the_last_five_rounds_of_domains_with_validation_images():
    columns = ["round", "measure", "subject", "domain", "split", "value"]
    rows = [
        (n, "accuracy", "global", d, s, v)
        for n in range(1, 8)
        for d, s, v in (("a", "validation", 10.0 * n), ("b", "validation", 0.0), ("c", "test", 9.0))
    ]
    curve = pd.DataFrame(rows, columns=columns)
    assert metrics.validated(curve) == pytest.approx(5.0 * (3 + 4 + 5 + 6 + 7) / 5)
    with pytest.raises(FedReproError, match="no validation images to tune by"):
        metrics.validated(curve[curve.split == "test"])
