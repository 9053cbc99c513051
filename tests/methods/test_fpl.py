"""FPL: its traffic and its table."""

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.federated.rounds import Training
from fedrepro.methods.messages import count_bytes
from tests import toys
from tests.methods.test_methods import record_messages, training


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
