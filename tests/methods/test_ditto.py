"""Ditto: FedAvg beside the personal networks, which are tested."""

from functools import partial

import torch

from fedrepro.base.progress import Silent
from tests import toys

start = partial(toys.start, "Ditto")


def rows(curve, measure):
    chosen = curve[curve.measure == measure]
    return chosen.drop(columns="measure").reset_index(drop=True)


def test_the_shared_network_is_fedavgs():
    ditto, fedavg = start(), toys.start()
    curves = ditto.run(Silent()), fedavg.run(Silent())
    assert all(torch.equal(v, fedavg.server.model[n]) for n, v in ditto.server.model.items())
    assert rows(curves[0], "bytes").equals(rows(curves[1], "bytes"))


def test_each_client_is_tested_with_its_personal_network():
    run = start()
    curve = run.run(Silent())
    assert run.judged == ("twin",)
    accuracy = curve[(curve.measure == "accuracy") & (curve["round"] == 3)]
    tested = accuracy[accuracy.split == "test"].set_index("domain").value
    for client in run.clients:
        own = run.federation.tests[client.data.domain]
        assert run.engine.evaluate(client.personal_model, own)[0] == tested[client.data.domain]
        assert set(client.personal_model) == set(run.server.model)
        assert any(
            not torch.equal(v, run.server.model[n]) for n, v in client.personal_model.items()
        )


def test_without_lambda_a_personal_network_is_its_own_clients_alone():
    beside, alone = start(fields={"lam": 0.0}), start(fields={"lam": 0.0}, sizes=(21,))
    beside.run(Silent()), alone.run(Silent())
    assert all(
        torch.equal(v, alone.clients[0].personal_model[n])
        for n, v in beside.clients[0].personal_model.items()
    )
