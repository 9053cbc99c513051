"""Messages and their bytes, and what methods send whose clients share class means and networks."""

import pytest
import torch
from torch import nn

from fedrepro.base.progress import Silent
from fedrepro.methods.messages import (
    Network,
    count_bytes,
    network_of,
    payload_bytes,
    tensor_of,
    tensors_of,
)
from tests import toys
from tests.methods.test_methods import record_messages, training


def test_bytes_follow_number_and_width_of_values():
    assert payload_bytes(torch.zeros(3, 5)) == 60
    assert payload_bytes({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)}) == 24
    assert payload_bytes(Network(nn.Linear(4, 2))) == 4 * (4 * 2 + 2)


def test_batch_counters_do_not_travel():
    assert payload_bytes(Network(nn.BatchNorm1d(4))) == 4 * 4 * 4


def test_count_sums_by_kind_over_messages():
    messages = [{"model": {"w": torch.zeros(2)}, "z": torch.zeros(1)}, {"z": torch.zeros(3)}]
    assert count_bytes(messages) == {"model": 8, "z": 16}


def test_a_network_passes_gradients_to_its_inputs_only():
    module = nn.Linear(3, 2)
    network = Network(module)
    x = torch.ones(1, 3, requires_grad=True)
    network(x).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    assert module.weight.grad is None


def test_a_sent_network_does_not_follow_later_training():
    module = nn.Linear(2, 1)
    network = Network(module)
    before = network(torch.ones(1, 2))
    with torch.no_grad():
        module.weight += 1
    assert torch.equal(network(torch.ones(1, 2)), before)


def test_asking_for_the_wrong_form_is_refused():
    message = {"z": torch.zeros(1), "model": {"w": torch.zeros(1)}}
    with pytest.raises(TypeError):
        tensors_of(message, "z")
    with pytest.raises(TypeError):
        network_of(message, "z")
    with pytest.raises(TypeError):
        tensor_of(message, "model")


def test_rows_that_hold_nothing_are_not_counted():
    table, present = torch.zeros(4, 3), torch.tensor([True, False, True, False])
    assert count_bytes([{"prototypes": table, "present": present}]) == {
        "prototypes": 2 * 3 * 4,
        "present": 4,
    }
    assert count_bytes([{"prototypes": table[:2], "present": present}])["prototypes"] == 24


def test_what_a_client_has_by_itself_does_not_travel():
    own = {"memory": {"w": torch.zeros(5)}, "schedule": torch.zeros(()), "model": torch.zeros(2)}
    assert count_bytes([own]) == {"model": 8}


@pytest.mark.parametrize("name", ["FedAPC", "FedProc", "I2PFL"])
def test_traffic_is_fedavgs_and_one_prototype_a_class(name: str) -> None:
    run = toys.start(name)
    curve = run.run(Silent())
    k, d, n = toys.CLASSES, run.server.feature_size, 3
    network = n * 4 * sum(run.server.model[name].numel() for name in run.travelling)
    way = {"model": network, "prototypes": n * k * d * 4, "present": n * k}
    both = {f"{w}/{kind}": size for w in ("down", "up") for kind, size in way.items()}
    if run.method.tells == "counts":
        both["up/counts"] = 4 * both.pop("up/present")
    assert toys.logged(curve, "bytes", 3) == both
    assert run.judged == ("global",)


def test_traffic_of_fpls_clusters():
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


def test_fpls_table_keeps_its_shape_when_a_part_takes_part():
    run = toys.start("FPL", (9, 9, 9, 9), participation=0.5)
    start = run.server.tensors["prototypes"].shape
    run.run(Silent())
    assert run.server.tensors["prototypes"].shape == start == (2 * toys.CLASSES, 16)
