"""FedProc: loss, schedule and server step by hand."""

import math

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.messages import count_bytes
from fedrepro.methods.server import Server
from fedrepro.models import Output
from tests import toys
from tests.engine.test_fused import assert_engines_agree
from tests.methods.test_methods import record_messages, training
from tests.methods.test_moon import moving_terms


def server(classes=2):
    return Server({"w": torch.zeros(1)}, {}, toys.protocol(), 0, 2, 2, classes, torch.device("cpu"))


def sent(client, rows, counts):
    message = {"prototypes": torch.tensor(rows), "counts": torch.tensor(counts)}
    return Upload(client, int(sum(counts)), message)


TWO = (
    sent(0, [[1.0, 1.0], [2.0, 0.0]], [3.0, 1.0]),
    sent(1, [[4.0, 4.0]], [0.0, 3.0]),
)


def test_loss_by_hand():
    """Both samples lie on their prototype's axis: cosines 1 and 0."""
    batch = Batch(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1]))
    message = {
        "prototypes": torch.tensor([[3.0, 0.0], [0.0, 0.5]]),
        "present": torch.tensor([True, True]),
        "schedule": torch.tensor([0.75, 0.25]),
    }
    terms = methods.create("FedProc").client_loss(lambda x: Output(x, x), batch, message)
    assert terms["contrast"].item() == pytest.approx(0.75 * math.log(1 + math.exp(-1)))
    ce = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-2))) / 2
    assert terms["ce"].item() == pytest.approx(0.25 * ce)
    sharper = methods.create("FedProc", temperature=0.5)
    terms = sharper.client_loss(lambda x: Output(x, x), batch, message)
    assert terms["contrast"].item() == pytest.approx(0.75 * math.log(1 + math.exp(-2)))


def test_schedule_by_hand():
    original = methods.create("FedProc")
    shares = [original.shares_of_terms(t, 4) for t in range(4)]
    assert shares == [(0, 1), (0.75, 0.25), (0.5, 0.5), (0.25, 0.75)]
    idle = methods.create("FedProc", form="idle-start")
    assert [idle.shares_of_terms(t, 5)[0] for t in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert idle.shares_of_terms(0, 1) == (1, 0)
    fixed = methods.create("FedProc", horizon=2)
    assert [fixed.shares_of_terms(t, 100)[0] for t in (1, 2, 50)] == [0.5, 0, 0]


def test_the_schedule_reaches_the_clients_round_by_round():
    run = training("FedProc")
    seen = []
    for _ in range(3):
        downs, _ = record_messages(run)
        seen.append([round(v, 6) for v in downs[0]["schedule"].tolist()])
    assert seen == [[0, 1], [0.666667, 0.333333], [0.333333, 0.666667]]


def test_server_averages_over_images_or_over_clients():
    """Class 1: (2, 0) of one image and (4, 4) of three."""
    for weighting, expected in (("images", [3.5, 3]), ("clients", [3, 2])):
        method, owner = methods.create("FedProc", prototype_weighting=weighting), server()
        method.init_server(owner)
        method.server_step(owner, TWO)
        assert owner.tensors["prototypes"].tolist() == [[1, 1], expected]


def test_a_class_nobody_sends_keeps_its_prototype():
    method, owner = methods.create("FedProc"), server(classes=3)
    method.init_server(owner)
    method.server_step(owner, [sent(0, [[1.0, 1.0], [2.0, 0.0]], [3.0, 1.0, 0.0])])
    method.server_step(owner, [sent(1, [[4.0, 4.0]], [0.0, 3.0, 0.0])])
    assert owner.tensors["prototypes"].tolist() == [[1, 1], [4, 4], [0, 0]]
    assert owner.tensors["present"].tolist() == [True, True, False]


def test_the_first_round_is_fedavgs():
    run, plain = training("FedProc"), training("FedAvg")
    run.one_round(), plain.one_round()
    assert all(torch.equal(run.server.model[n], v) for n, v in plain.server.model.items())
    run.one_round(), plain.one_round()
    assert any(not torch.equal(run.server.model[n], v) for n, v in plain.server.model.items())


def test_an_idle_start_moves_batch_norm_statistics_only():
    protocol = toys.protocol(optimizer__weight_decay=0.0)
    run = Training(methods.create("FedProc", form="idle-start"), protocol, toys.federation(), 0)
    start = {n: v.clone() for n, v in run.server.model.items()}
    run.one_round()
    for name, value in run.server.model.items():
        if run.layout[name].is_buffer:
            assert not torch.equal(value, start[name]), name
        else:
            torch.testing.assert_close(value, start[name])
    run.one_round()
    assert any(
        not torch.allclose(v, start[n])
        for n, v in run.server.model.items()
        if not run.layout[n].is_buffer
    )


def test_every_term_is_alive_from_the_second_round_on():
    run = training("FedProc")
    assert moving_terms(run) == {"ce"}
    run.one_round()
    assert moving_terms(run) == {"ce", "contrast"}


def test_traffic_is_networks_and_prototypes():
    run = training("FedProc")
    first, _ = record_messages(run)
    assert count_bytes(first)["prototypes"] == 0, "there are none yet"
    downs, ups = record_messages(run)
    network = sum(v.numel() * 4 for v in run.server.model.values())
    table = 4 * toys.CLASSES * run.server.feature_size
    assert count_bytes(downs) == {
        "model": 3 * network,
        "prototypes": 3 * table,
        "present": 3 * toys.CLASSES,
    }
    assert count_bytes([u.message for u in ups]) == {
        "model": 3 * network,
        "prototypes": 3 * table,
        "counts": 3 * 4 * toys.CLASSES,
    }


@pytest.mark.parametrize("field", ["prototypes_in_training_mode", "prototypes_of_augmented_images"])
def test_other_prototypes(field):
    protocol, tables = toys.protocol(data__flip=True), []
    for value in (False, True):
        method = methods.create("FedProc", **{field: value})
        run = Training(method, protocol, toys.federation(), seed=0)
        run.one_round()
        tables.append(run.server.tensors["prototypes"])
    assert not torch.allclose(*tables)


def test_engines_agree_on_the_other_form():
    fields = {
        "form": "idle-start",
        "prototype_weighting": "clients",
        "prototypes_in_training_mode": True,
    }
    assert_engines_agree(name="FedProc", fields=fields)


def test_a_horizon_below_the_rounds_ends_the_contrast():
    curve = training("FedProc", horizon=2).run(Silent())
    contrast = curve[(curve.measure == "term") & (curve.subject == "contrast")]
    assert (contrast[contrast["round"] == 2].value > 0).all()
    assert (contrast[contrast["round"] == 3].value == 0).all()
