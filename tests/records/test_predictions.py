"""What a record keeps of each test image: enough to recompute every score the run may be given."""

import numpy as np
import pytest
import torch

from fedrepro.base.progress import Silent
from fedrepro.base.protocol import DataSpec
from fedrepro.data.federation import build_federation
from fedrepro.federated import metrics
from fedrepro.records import store as store_module
from tests.records.conftest import obtain, spec
from tests.toys import start

METHODS = ("FedAvg", "FedBN", "Ditto", "Per-FedAvg", "FedPall")


def from_predictions(training, rule_round):
    """Accuracy by domain in percent at a round, from the predictions alone."""
    shares = {}
    for name, predicted in training.predicted.items():
        number, subject, _, domain = name.split("/")
        if int(number) == rule_round and subject == training.evaluated[0]:
            labels = training.federation.tests[domain].labels
            hits = (predicted == labels[: len(predicted)]).double().mean()
            shares.setdefault(domain, []).append(100 * float(hits))
    return {domain: np.mean(found) for domain, found in shares.items()}


@pytest.mark.parametrize("name", METHODS)
def test_every_score_can_be_computed_from_the_predictions(name):
    training = start(name, rounds=9, local_epochs=1)
    curve = training.run(Silent())
    table = metrics.accuracies(curve)
    kept = sorted({int(name.partition("/")[0]) for name in training.predicted})
    assert kept[-5:] == [5, 6, 7, 8, 9] and len(kept) <= 7
    for number in kept:
        expected = table.loc[number].drop("avg").to_dict()
        assert from_predictions(training, number) == pytest.approx(expected)
    for rule in ("best-test", "validation"):
        scores = metrics.scores(curve, rule)
        del scores["avg"]
        assert any(from_predictions(training, n) == pytest.approx(scores) for n in kept)


def test_a_record_keeps_them_small_with_the_images_they_are_of(tmp_path, monkeypatch):
    data = DataSpec(dataset="minidigits", size=28, validation=20, test_limit=30)
    federation = build_federation(data)
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: federation)
    settings = {"rounds": 2, "local_epochs": 1, "batch_size": 256}
    record = obtain(tmp_path, spec(data=data.model_dump(), **settings))
    kept, scores = record.predictions, metrics.scores(record.curve, "last")
    for domain in federation.domains:
        predicted = kept[f"predicted/2/global/server/{domain}"]
        assert predicted.dtype == np.uint8 and len(predicted) == 30
        share = 100 * float((predicted == kept[f"labels/{domain}"]).mean())
        assert share == pytest.approx(scores[domain])
        ((source, indices),) = federation.test_images[domain]
        assert kept[f"images/{domain}/{source}"].tolist() == indices.tolist()


def test_a_large_test_set_is_sampled_before_the_last_five_rounds():
    training, whole = (start(rounds=7, local_epochs=1, tested_at=n) for n in (5, None))
    curves = [run.run(Silent()) for run in (training, whole)]
    tests = [c[(c.measure == "accuracy") & (c.split == "test")] for c in curves]
    sampled, full = (t.set_index(["round", "domain"]).value for t in tests)
    assert sampled.loc[3:].equals(full.loc[3:])  # the last five: all twelve images
    part = training.few_tests.tests["domain0"]
    assert len(part) == 5 and set(sampled.loc[:2]) <= {0.0, 20.0, 40.0, 60.0, 80.0, 100.0}
    again = start(rounds=7, tested_at=5).few_tests.tests["domain0"]
    assert torch.equal(part.images, again.images)
    assert "5 of 12 tested" in training.few_tests.deviations["domain0"][0]
