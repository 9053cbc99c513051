"""What methods send whose clients share class means and whole networks."""

import pytest

from fedrepro.base.progress import Silent
from fedrepro.methods.messages import count_bytes
from tests import toys
from tests.methods.test_methods import record_messages, training


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
