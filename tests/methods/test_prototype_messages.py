"""What methods send whose clients share class means and whole networks."""

import pytest

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.federated.rounds import Training
from tests import toys


@pytest.mark.parametrize("name", ["FedAPC", "I2PFL"])
def test_traffic_is_fedavgs_and_one_prototype_a_class(name: str) -> None:
    run = Training(methods.create(name), toys.protocol(), toys.federation(), seed=0)
    curve = run.run(Silent())
    k, d, n = toys.CLASSES, run.server.feature_size, 3
    network = n * 4 * sum(run.server.model[name].numel() for name in run.travelling)
    way = {"model": network, "prototypes": n * k * d * 4, "present": n * k}
    both = {f"{w}/{kind}": size for w in ("down", "up") for kind, size in way.items()}
    assert toys.logged(curve, "bytes", 3) == both
    assert run.judged == ("global",)
