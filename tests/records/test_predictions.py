"""What a record keeps of each test image: enough to recompute every score the run may be given."""

import numpy as np
import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import DataSpec
from fedrepro.data.federation import build_federation
from fedrepro.federated import metrics
from fedrepro.records import RunSpec, Store
from fedrepro.records import store as store_module
from tests import toys
from tests.toys import start

METHODS = ("FedAvg", "FedBN", "Ditto", "Per-FedAvg", "FedPall")


def from_predictions(training, rule_round):
    """Accuracy by domain in percent at a round, from the predictions alone."""
    shares = {}
    for name, predicted in training.predicted.items():
        number, subject, _, domain = name.split("/")
        if int(number) == rule_round and subject == training.judged[0]:
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


def test_networks_tested_everywhere_have_their_predictions_of_every_domain():
    training = start("SOLO", tested_on="everywhere")
    curve = training.run(Silent())
    cross = curve[(curve.measure == "cross-accuracy") & (curve["round"] == 3)]
    assert len(cross) == 9
    for row in cross.itertuples():
        predicted = training.predicted[f"3/personal/{row.subject}/{row.domain}"]
        hits = (predicted == training.federation.tests[row.domain].labels).double().mean()
        assert 100 * float(hits) == pytest.approx(row.value)


def test_a_record_keeps_them_small_with_the_images_they_are_of(tmp_path, monkeypatch):
    spec = DataSpec(dataset="minidigits", size=28, validation=20, test_limit=30)
    federation = build_federation(spec)
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: federation)
    protocol = toys.protocol(data=spec.model_dump(), rounds=2, local_epochs=1, batch_size=256)
    wanted = RunSpec(methods.create("FedAvg"), protocol, 0)
    record = Store(tmp_path).obtain(wanted, device="cpu", progress=Silent())
    kept = record.predictions
    for domain in federation.domains:
        predicted = kept[f"predicted/2/global/server/{domain}"]
        assert predicted.dtype == np.uint8 and len(predicted) == 30
        share = 100 * float((predicted == kept[f"labels/{domain}"]).mean())
        assert share == pytest.approx(metrics.scores(record.curve, "last")[domain])
        ((source, indices),) = federation.test_images[domain]
        assert kept[f"images/{domain}/{source}"].tolist() == indices.tolist()


def test_a_large_test_set_is_sampled_before_the_last_five_rounds():
    training = start("FedAvg", rounds=7, local_epochs=1, tested_at=5)
    curve, whole = training.run(Silent()), start("FedAvg", rounds=7, local_epochs=1)
    expected = whole.run(Silent())
    tests = [c[(c.measure == "accuracy") & (c.split == "test")] for c in (curve, expected)]
    sampled, full = (t.set_index(["round", "domain"]).value for t in tests)
    assert sampled.loc[3:].equals(full.loc[3:])  # the last five: all twelve images
    part = training.few_tests.tests["domain0"]
    assert len(part) == 5 and set(sampled.loc[:2]) <= {0.0, 20.0, 40.0, 60.0, 80.0, 100.0}
    assert all(any(torch.equal(i, j) for j in toys.samples(12, 0, 100).images) for i in part.images)
    again = start("FedAvg", rounds=7, tested_at=5).few_tests.tests["domain0"]
    assert torch.equal(part.images, again.images)
    assert "5 of 12 tested" in training.few_tests.deviations["domain0"][0]
    assert "tested_at" not in toys.protocol().model_dump()  # ids of earlier runs stay


def test_a_sample_needs_a_known_last_round():
    with pytest.raises(FedReproError, match="tested_at"):
        toys.protocol(tested_at=5, early_stop={"patience": 2})
