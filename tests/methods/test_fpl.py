"""FPL: loss and server step by hand."""

import math
from types import SimpleNamespace

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


def server(clients=2):
    place = torch.device("cpu")
    owner = Server({"w": torch.zeros(1)}, {}, toys.protocol(), 0, clients, 2, 2, place)
    methods.create("FPL").init_server(owner)
    return owner


def sent(client, rows, present):
    message = {"prototypes": torch.tensor(rows), "present": torch.tensor(present)}
    return Upload(client, 1, message)


def test_loss_by_hand():
    """Class 0 has clusters (1, 0) and (0, 1), class 1 one at (-1, 0) and an empty row."""
    message = {
        "prototypes": torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]]),
        "present": torch.tensor([True, True, True, False]),
    }
    batch = Batch(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1]))
    method = methods.create("FPL", temperature=1.0)
    terms = method.client_loss(lambda x: Output(x, x), batch, message)
    # cosines 1, 0, -1 of a sample of class 0; 0, 1, 0 of one of class 1
    first = -math.log((math.e + 1) / (math.e + 1 + math.exp(-1)))
    second = -math.log(1 / (1 + math.e + 1))
    assert terms["contrast"].item() == pytest.approx((first + second) / 2)
    # unbiased prototypes (0.5, 0.5) and (-1, 0)
    assert terms["consistency"].item() == pytest.approx((0.5 / 2 + 5 / 2) / 2)
    ce = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(-2))) / 2
    assert terms["ce"].item() == pytest.approx(ce)


def test_two_clients_means_are_one_cluster():
    owner = server()
    uploads = [
        sent(0, [[1.0, 0.0], [0.0, 2.0]], [True, True]),
        sent(1, [[3.0, 0.0]], [True, False]),
    ]
    methods.create("FPL").server_step(owner, uploads)
    assert owner.tensors["prototypes"].tolist() == [[2, 0], [0, 2]]
    assert owner.tensors["present"].tolist() == [True, True]
    assert owner.log == {"cluster_prototypes": 2.0}


def test_two_directions_are_two_clusters():
    """Class 0: two clients near each axis; class 1: one client alone."""
    owner = server(clients=4)
    assert owner.tensors["prototypes"].shape == (2 * 2, 2)
    uploads = [
        sent(0, [[1.0, 0.0]], [True, False]),
        sent(1, [[0.0, 1.0], [7.0, 7.0]], [True, True]),
        sent(2, [[3.0, 0.1]], [True, False]),
        sent(3, [[0.1, 5.0]], [True, False]),
    ]
    methods.create("FPL").server_step(owner, uploads)
    table, present = owner.tensors["prototypes"], owner.tensors["present"]
    clusters = sorted(table[:2].tolist(), reverse=True)
    torch.testing.assert_close(torch.tensor(clusters), torch.tensor([[2.0, 0.05], [0.05, 3.0]]))
    assert table[2].tolist() == [7, 7]
    assert present.tolist() == [True, True, True, False]


def test_a_client_sends_the_classes_it_has():
    view = SimpleNamespace(
        labels=torch.tensor([1, 1]),
        classes=2,
        augmentation=None,
        features=lambda training, augmentation: torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    )
    message = methods.create("FPL").upload(view)
    assert message["prototypes"].tolist() == [[2, 3]]
    assert message["present"].tolist() == [False, True]
    assert count_bytes([message]) == {"prototypes": 4 * 2, "present": 2}


def test_the_first_round_is_fedavgs():
    run, plain = training("FPL"), training("FedAvg")
    run.one_round(), plain.one_round()
    assert all(torch.equal(run.server.model[n], v) for n, v in plain.server.model.items())


def test_every_term_is_alive_from_the_second_round_on():
    run = training("FPL")
    assert moving_terms(run) == {"ce"}
    run.one_round()
    assert moving_terms(run) == {"ce", "contrast", "consistency"}


def test_traffic_is_networks_and_prototypes():
    """Five clients: of a table of two places a class the filled ones go down, one mean a class
    comes up."""
    run = training("FPL", toys.federation((21, 13, 9, 12, 16)))
    record_messages(run)
    downs, ups = record_messages(run)
    network = sum(v.numel() * 4 for v in run.server.model.values())
    row = 4 * run.server.feature_size
    assert count_bytes(downs) == {
        "model": 5 * network,
        "prototypes": 5 * int(downs[0]["present"].sum()) * row,
        "present": 5 * 2 * toys.CLASSES,
    }
    assert count_bytes([u.message for u in ups]) == {
        "model": 5 * network,
        "prototypes": 5 * toys.CLASSES * row,
        "present": 5 * toys.CLASSES,
    }
    assert toys.CLASSES <= run.server.log["cluster_prototypes"] <= 2 * toys.CLASSES


def test_the_table_keeps_its_shape_when_a_part_takes_part():
    protocol = toys.protocol(participation=0.5)
    run = Training(methods.create("FPL"), protocol, toys.federation((9, 9, 9, 9)), seed=0)
    start = run.server.tensors["prototypes"].shape
    run.run(Silent())
    assert run.server.tensors["prototypes"].shape == start == (2 * toys.CLASSES, 16)


@pytest.mark.parametrize("field", ["prototypes_in_training_mode", "prototypes_of_augmented_images"])
def test_other_prototypes(field):
    protocol, tables = toys.protocol(data__flip=True), []
    for value in (False, True):
        method = methods.create("FPL", **{field: value})
        run = Training(method, protocol, toys.federation(), seed=0)
        run.one_round()
        tables.append(run.server.tensors["prototypes"])
    assert not torch.allclose(*tables)


def test_engines_agree_on_other_prototypes():
    fields = {"prototypes_in_training_mode": True, "prototypes_of_augmented_images": True}
    assert_engines_agree(name="FPL", fields=fields, data__flip=True)
