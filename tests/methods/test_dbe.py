"""DBE: its first round, what stays and what travels."""

from functools import partial

import torch

from fedrepro.base.progress import Silent
from tests import toys

start = partial(toys.start, "DBE")


def equal(one, other, names):
    return all(torch.equal(one[n], other[n]) for n in names)


def test_round_one_is_fedavgs_and_its_networks_are_discarded():
    fedavg = toys.start()
    before = dict(fedavg.server.model)
    fedavg.one_round()
    discarded, averaged = start(), start(fields={"first_round": "averaged"})
    discarded.one_round(), averaged.one_round()
    assert equal(discarded.server.model, before, before)
    assert equal(averaged.server.model, fedavg.server.model, before)
    assert not equal(fedavg.server.model, before, before)
    means = [run.server.tensors["common_mean"] for run in (discarded, averaged)]
    assert torch.equal(*means) and means[0].abs().sum() > 0


def test_the_client_mean_stays_and_is_trained_from_round_two_on():
    run = start()
    run.one_round()
    assert all(set(c.kept) == {"client_mean"} for c in run.clients)
    assert all((c.kept["client_mean"] == 0).all() for c in run.clients)
    run.one_round()
    first, second, _ = (c.kept["client_mean"] for c in run.clients)
    assert first.abs().sum() > 0 and not torch.allclose(first, second)
    own = {"client_mean", "running_mean", "started"}
    assert not own & set(run.travelling) and not own & set(run.broadcast)
    assert run.evaluated == ("personal",)


def test_who_joins_late_is_told_once_and_remembers():
    run = start(participation=0.34, rounds=9)
    curve = run.run(Silent())
    rows = curve[(curve.measure == "bytes") & (curve.subject == "down/common_mean")]
    told = rows.set_index("round").value.to_dict()
    size = 4 * run.server.feature_size
    later = [run._participants(number)[0].index for number in range(2, 10)]
    firsts = {2 + later.index(client) for client in set(later)}
    assert told == dict.fromkeys(firsts, size) and len(firsts) == 3
    for client in run.clients:
        assert torch.equal(client.memory["common_mean"], run.server.tensors["common_mean"])
