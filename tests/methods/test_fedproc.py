"""FedProc: its schedule, its other prototypes, its traffic."""

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.federated.rounds import Training
from fedrepro.methods.messages import count_bytes
from tests import toys
from tests.methods.test_methods import record_messages, training


def test_the_schedule_reaches_the_clients_round_by_round():
    run = training("FedProc")
    seen = []
    for _ in range(3):
        downs, _ = record_messages(run)
        seen.append([round(v, 6) for v in downs[0]["schedule"].tolist()])
    assert seen == [[0, 1], [0.666667, 0.333333], [0.333333, 0.666667]]


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


def test_a_horizon_below_the_rounds_ends_the_contrast():
    curve = training("FedProc", horizon=2).run(Silent())
    contrast = curve[(curve.measure == "term") & (curve.subject == "contrast")]
    assert (contrast[contrast["round"] == 2].value > 0).all()
    assert (contrast[contrast["round"] == 3].value == 0).all()
