"""Messages and their bytes, and what methods send whose clients share class means and networks."""

import pytest
import torch
from torch import nn

from fedrepro.base.progress import Silent
from fedrepro.methods.server import Network, count_bytes, payload_bytes
from tests import toys
from tests.methods.test_methods import record_messages, training


def test_bytes_follow_number_and_width_of_values():
    assert payload_bytes(torch.zeros(3, 5)) == 60
    assert payload_bytes({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)}) == 24
    assert payload_bytes(Network(nn.Linear(4, 2))) == 4 * (4 * 2 + 2)
    assert payload_bytes(Network(nn.BatchNorm1d(4))) == 4 * 4 * 4, "its counter stays"
    messages = [{"model": {"w": torch.zeros(2)}, "z": torch.zeros(1)}, {"z": torch.zeros(3)}]
    assert count_bytes(messages) == {"model": 8, "z": 16}
    own = {"memory": {"w": torch.zeros(5)}, "schedule": torch.zeros(()), "model": torch.zeros(2)}
    assert count_bytes([own]) == {"model": 8}
    table, present = torch.zeros(4, 3), torch.tensor([True, False, True, False])
    for sent in (table, table[:2]):  # rows that hold nothing are not counted
        found = count_bytes([{"prototypes": sent, "present": present}])
        assert found == {"prototypes": 2 * 3 * 4, "present": 4}


def test_a_sent_network_gives_gradients_to_its_inputs_only_and_stays_as_it_was():
    module = nn.Linear(3, 2)
    network, x = Network(module), torch.ones(1, 3, requires_grad=True)
    before = network(x)
    before.sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0 and module.weight.grad is None
    with torch.no_grad():
        module.weight += 1
    assert torch.equal(network(x), before)


def expected_traffic(run):
    """Bytes of a round: FedAvg's and one prototype a class, and what a method does otherwise."""
    n, k, d, name = len(run.clients), toys.CLASSES, run.server.feature_size, run.method.name
    network = n * 4 * sum(run.server.model[name].numel() for name in run.travelling)
    down = {"model": network, "prototypes": n * k * d * 4, "present": n * k}
    tells = run.method.tells
    told = {"counts": n * k * 4, "present": n * k}
    up = {"model": network, "prototypes": n * k * d * 4, tells: told[tells]}
    if name == "FedProto":
        del down["model"], up["model"]
    if name == "RUCR":
        down |= {"shares": n * 4 * k}
        down |= {"anchors": n * k * d * 4} if run.method.anchors == "raw" else {}
    if name == "FedPall":  # an amplifier without biases; BatchNorm's four
        del up["model"]
        amplifier, images = d * 512 + 512 * 512 + 512 * n + 2 * 4 * 512, 21 + 13 + 9
        down |= {"model": n * 4 * (d * k + k), "amplifier": n * 4 * amplifier}
        up |= {"features": 4 * images * d, "labels": 8 * images}
    ways = (("down", down), ("up", up))
    return {f"{way}/{kind}": size for way, sent in ways for kind, size in sent.items()}


@pytest.mark.parametrize(
    ("name", "fields"),
    [*((name, {}) for name in ("FedAPC", "FedProc", "I2PFL", "FedProto", "FedPall", "RUCR")),
     ("RUCR", {"anchors": "raw"})],
)  # fmt: skip
def test_traffic(name, fields):
    run = toys.start(name, fields=fields)
    assert toys.logged(run.run(Silent()), "bytes", 3) == expected_traffic(run)


def test_traffic_of_fpls_clusters():
    """Five clients: of a table of two places a class the filled ones go down, one mean a class
    comes up."""
    run = training("FPL", toys.federation((21, 13, 9, 12, 16)))
    record_messages(run)
    downs, ups = record_messages(run)
    model = 5 * sum(v.numel() * 4 for v in run.server.model.values())
    k, row, filled = toys.CLASSES, 4 * run.server.feature_size, int(downs[0]["present"].sum())
    down = {"model": model, "prototypes": 5 * filled * row, "present": 5 * 2 * k}
    assert count_bytes(downs) == down
    up = {"model": model, "prototypes": 5 * k * row, "present": 5 * k}
    assert count_bytes([u.message for u in ups]) == up
    assert k <= run.server.log["cluster_prototypes"] <= 2 * k
