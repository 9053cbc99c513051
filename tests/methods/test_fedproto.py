"""FedProto: loss and server step by hand, both forms, both ways to classify."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedrepro import methods
from fedrepro.base.protocol import Augmentation
from fedrepro.base.rng import torch_stream
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.fedproto import NearestPrototype
from fedrepro.methods.losses import NEVER
from fedrepro.methods.messages import count_bytes
from fedrepro.methods.server import Server
from fedrepro.models import FLModel, Output
from tests import toys
from tests.engine.test_fused import assert_engines_agree
from tests.methods.test_methods import record_messages, training
from tests.methods.test_moon import moving_terms

MODEL = ("encoder", "projection", "predictor")


def features_are_inputs(x):
    return Output(x, x)


def server(classes=2):
    model = {"w": torch.zeros(1)}
    place = torch.device("cpu")
    return Server(model, {}, toys.protocol(), 0, clients=2, feature_size=2, classes=classes,
                  device=place)  # fmt: skip


def upload(client, z, labels, method, classes=2):
    """What a client with these features sends."""
    view = SimpleNamespace(
        labels=torch.tensor(labels),
        classes=classes,
        augmentation=None,
        features=lambda training, augmentation: torch.tensor(z),
    )
    return Upload(client, len(z), method.upload(view))


TWO = (
    # class 0: mean (1, 1) of three; class 1: (2, 0)
    ([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [2.0, 0.0]], [0, 0, 0, 1]),
    # class 1 alone: (4, 4) of three
    ([[3.0, 4.0], [4.0, 4.0], [5.0, 4.0]], [1, 1, 1]),
)


def after_one_step(**fields):
    method, owner = methods.create("FedProto", **fields), server()
    method.init_server(owner)
    method.server_step(owner, [upload(i, *sent, method) for i, sent in enumerate(TWO)])
    return owner.tensors


def test_loss_by_hand():
    """(3, 0) of class 0 is 2 from (1, 0); (0, 1) of class 1 is 2 and 1 from (2, 2)."""
    batch = Batch(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    message = {
        "prototypes": torch.tensor([[1.0, 0.0], [2.0, 2.0]]),
        "present": torch.tensor([True, True]),
    }
    terms = methods.create("FedProto", lam=2.0).client_loss(features_are_inputs, batch, message)
    assert terms["prototype"].item() == pytest.approx(2 * (4 / 2 + 5 / 2) / 2)
    ce = (math.log(1 + math.exp(-3)) + math.log(1 + math.exp(-1))) / 2
    assert terms["ce"].item() == pytest.approx(ce)
    message["present"][1] = False
    terms = methods.create("FedProto").client_loss(features_are_inputs, batch, message)
    assert terms["prototype"].item() == pytest.approx(4 / 2)


def test_server_averages_over_clients_or_over_images():
    """Class 1: (2, 0) of one image and (4, 4) of three."""
    assert after_one_step()["prototypes"].tolist() == [[1, 1], [3, 2]]
    weighted = after_one_step(prototype_weighting="images")
    assert weighted["prototypes"].tolist() == [[1, 1], [3.5, 3]]
    assert weighted["present"].tolist() == [True, True]


def test_a_class_nobody_has_is_absent():
    method, owner = methods.create("FedProto"), server(classes=3)
    method.init_server(owner)
    assert owner.tensors["present"].tolist() == [False, False, False]
    method.server_step(owner, [upload(i, *sent, method, 3) for i, sent in enumerate(TWO)])
    assert owner.tensors["present"].tolist() == [True, True, False]


def test_a_client_sends_the_classes_it_has():
    method = methods.create("FedProto")
    sent = upload(1, *TWO[1], method).message
    assert sent["prototypes"].tolist() == [[4, 4]]
    assert sent["counts"].tolist() == [0, 3]
    assert count_bytes([sent]) == {"prototypes": 4 * 2, "counts": 4 * 2}


def test_prototypes_travel_and_networks_stay():
    run = training("FedProto")
    start = {n: v.clone() for n, v in run.server.model.items()}
    first, _ = record_messages(run)
    assert count_bytes(first)["prototypes"] == 0, "there are none yet"
    downs, ups = record_messages(run)
    classes, d = toys.CLASSES, run.server.feature_size
    assert count_bytes(downs) == {"prototypes": 3 * 4 * classes * d, "present": 3 * classes}
    assert count_bytes([u.message for u in ups]) == {
        "prototypes": 3 * 4 * classes * d,
        "counts": 3 * 4 * classes,
    }
    assert run.judged == ("personal",)
    assert all(torch.equal(start[n], v) for n, v in run.server.model.items())
    first, second = (client.personal(run.server.model) for client in run.clients[:2])
    assert any(not torch.equal(first[n], second[n]) for n in first)


@pytest.mark.parametrize("in_training", [False, True])
@pytest.mark.parametrize("augmented", [False, True])
def test_prototypes_are_means_of_the_trained_networks_features(in_training, augmented):
    method = methods.create(
        "FedProto",
        prototypes_in_training_mode=in_training,
        prototypes_of_augmented_images=augmented,
    )
    protocol = toys.protocol(data__flip=True, data__crop=2)
    run = Training(method, protocol, toys.federation(), seed=0)
    _, ups = record_messages(run)
    client = run.clients[0]
    z = run.engine.features(
        client.personal(run.server.model),
        client.data.train,
        in_training,
        Augmentation(flip=True, crop=2) if augmented else None,
        torch_stream(0, "method", client.index, 1),
    )
    for k in range(toys.CLASSES):
        mean = z[client.data.train.labels == k].mean(dim=0)
        torch.testing.assert_close(ups[0].message["prototypes"][k], mean)


def test_every_term_is_alive_from_the_second_round_on():
    run = training("FedProto")
    assert moving_terms(run) == {"ce"}
    run.one_round()
    assert moving_terms(run) == {"ce", "prototype"}


def test_on_top_of_averaging_without_its_term_it_is_fedavg():
    run, plain = training("FedProto", averages_networks=True, lam=0.0), training("FedAvg")
    assert run.judged == plain.judged == ("global",)
    for _ in range(2):
        downs, ups = record_messages(run)
        plain_downs, _ = record_messages(plain)
    assert set(downs[0]) == {"model", "prototypes", "present"}
    assert set(ups[0].message) == {"model", "prototypes", "counts"}
    assert count_bytes(downs)["model"] == count_bytes(plain_downs)["model"]
    assert all(torch.equal(run.server.model[n], v) for n, v in plain.server.model.items())


def test_on_top_of_averaging_its_term_acts():
    run, plain = training("FedProto", averages_networks=True), training("FedAvg")
    run.one_round(), plain.one_round()
    assert all(torch.equal(run.server.model[n], v) for n, v in plain.server.model.items())
    run.one_round(), plain.one_round()
    assert any(not torch.equal(run.server.model[n], v) for n, v in plain.server.model.items())


def test_nearest_prototype_by_hand():
    built = FLModel(nn.Identity(), nn.Identity(), nn.Linear(2, 3), 2)
    module = NearestPrototype(built)
    module.prototypes.copy_(torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]]))
    module.present.copy_(torch.tensor([True, True, False]))
    x = torch.tensor([[1.0, 0.0]])
    out = module(x)
    expected = torch.tensor([[-1.0, -(2.0**2 + 4.0**2), NEVER]])
    torch.testing.assert_close(module.scores(out), expected)
    assert torch.equal(out.logits, built.predictor(x))
    module.present.fill_(False)
    assert torch.equal(module.scores(out), built.predictor(x))


def test_losses_are_the_predictors_and_accuracies_the_prototypes():
    """So that a stop by validation loss does not take the untrained network for the best."""
    run = training("FedProto", inference="prototype")
    other = training("FedProto")
    for one in (run, other):
        one.one_round(), one.one_round()
    curves = [one.curve().query("measure == 'loss'").value.tolist() for one in (run, other)]
    assert curves[0] == pytest.approx(curves[1], abs=1e-6)
    hits = [one.curve().query("measure == 'accuracy'").value.tolist() for one in (run, other)]
    assert hits[0] != hits[1]


@pytest.mark.parametrize("averages", [False, True])
def test_the_nearest_global_prototype_is_what_is_tested(averages):
    fields = {"averages_networks": averages}
    run = training("FedProto", inference="prototype", **fields)
    run.one_round()
    downs, ups = record_messages(run)
    client, (domain, test) = run.clients[0], next(iter(run.federation.tests.items()))
    state = run.server.model if averages else client.personal(run.server.model)
    z = run.engine.features(state, test)
    nearest = torch.cdist(z, run.server.tensors["prototypes"]).argmin(dim=1)
    curve = run.curve()
    rows = curve[(curve.measure == "accuracy") & (curve["round"] == 2) & (curve.domain == domain)]
    found = rows[rows.split == "test"].value.item()
    assert found == pytest.approx(100 * (nearest == test.labels).float().mean().item())
    # The traffic is the classifier's form's: what a network holds of them came but once.
    other = training("FedProto", **fields)
    other.one_round()
    other_downs, other_ups = record_messages(other)
    assert count_bytes(downs) == count_bytes(other_downs)
    assert {kind for u in ups for kind in u.message} == {k for u in other_ups for k in u.message}
    assert run.judged == (("global",) if averages else ("personal",))


def test_training_does_not_see_how_a_test_classifies():
    plain, nearest = training("FedProto"), training("FedProto", inference="prototype")
    for run in (plain, nearest):
        run.one_round(), run.one_round()
    for a, b in zip(plain.clients, nearest.clients, strict=True):
        assert all(torch.equal(b.kept[n], v) for n, v in a.kept.items())


@pytest.mark.parametrize(
    "fields",
    [
        {"averages_networks": True, "prototypes_in_training_mode": True},
        {"inference": "prototype", "prototype_weighting": "images"},
    ],
)
def test_engines_agree_on_the_other_forms(fields):
    assert_engines_agree(name="FedProto", fields=fields)
