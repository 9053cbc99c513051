"""Ditto: the personal networks, which are tested."""

from functools import partial

import torch

from fedrepro.base.progress import Silent
from tests import toys

start = partial(toys.start, "Ditto")


def test_each_client_is_tested_with_its_personal_network():
    run = start()
    curve = run.run(Silent())
    assert run.evaluated == ("twin",)
    accuracy = curve[(curve.measure == "accuracy") & (curve["round"] == 3)]
    tested = accuracy[accuracy.split == "test"].set_index("domain").value
    for client in run.clients:
        own = run.federation.tests[client.data.domain]
        assert run.engine.evaluate(client.personal_model, own)[0] == tested[client.data.domain]
        assert set(client.personal_model) == set(run.server.model)
        own = client.personal_model
        assert any(not torch.equal(v, run.server.model[n]) for n, v in own.items())


def test_without_lambda_a_personal_network_is_its_own_clients_alone():
    beside, alone = start(fields={"lam": 0.0}), start(fields={"lam": 0.0}, sizes=(21,))
    beside.run(Silent()), alone.run(Silent())
    one, other = (run.clients[0].personal_model for run in (beside, alone))
    assert all(torch.equal(v, other[n]) for n, v in one.items())
