"""DP-FedBN: clipped updates, noise at the client or at the server."""

import math

import pytest
import torch

from fedrepro.extras import dp
from tests import toys
from tests.methods.test_methods import record_messages


def training(settings=None, **fields):
    return toys.start("DP-FedBN", fields=fields, **(settings or {}))


def updates(run):
    """What each client changed of the server's tensors in one round."""
    before = dict(run.server.model)
    sent = [up.message["model"] for up in record_messages(run)[1]]
    return [{name: value - before[name] for name, value in model.items()} for model in sent]


def flat(update):
    return torch.cat([value.flatten() for value in update.values()])


def test_without_noise_or_clipping_it_is_fedbn():
    private = training(epsilon=1e12, clip=1e4, server_is="curious")
    plain = toys.start("FedBN")
    private.one_round(), plain.one_round()
    for name, value in plain.server.model.items():
        torch.testing.assert_close(private.server.model[name], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [({"rounds": 10}, 10), ({"rounds": 9, "participation": 0.34, "turns": True}, 3)],
)
def test_the_noise_shares_the_budget_among_a_clients_rounds(settings, rounds):
    run = training(settings, epsilon=2.0, clip=0.02)
    sent = updates(run)
    loudness = torch.cat([flat(update) for update in sent]).abs().mean().item()
    assert loudness == pytest.approx(0.02 * rounds / 2.0, rel=0.1)  # mean of |Laplace| is its scale
    assert not any(torch.equal(flat(sent[0]), flat(other)) for other in sent[1:])


def test_a_trusted_server_shakes_the_average_alone(monkeypatch):
    pytest.importorskip("opacus")
    fields = {"server_is": "trusted", "clip": 0.05, "epsilon": 5.0}
    run, quiet = training(**fields), training(**fields)
    with monkeypatch.context() as patch:
        patch.setattr(type(quiet.method), "server_step", lambda *_: None)
        for update in updates(quiet):
            assert flat(update).norm().item() <= 0.05 * 1.001
    run.one_round()
    shaken = torch.cat(
        [(run.server.model[n] - quiet.server.model[n]).flatten() for n in run.travelling]
    )
    heaviest = max(run.method.weights(run.protocol, [21, 13, 9]))
    sigma = dp.noise_multiplier(5.0, 0.01, 1.0, run.protocol.rounds)
    assert shaken.std().item() == pytest.approx(sigma * 0.05 * heaviest, rel=0.1)
    assert math.isclose(shaken.mean().item(), 0, abs_tol=0.01)
