"""Noise, clipping, DP-SGD at the server, and DP-FedBN."""

import copy
import math
import sys

import pytest
import torch

from fedrepro.base.errors import FedReproError
from fedrepro.extras import dp
from fedrepro.extras.dp import clipped, noise
from tests import toys
from tests.methods.test_methods import record_messages
from tests.toys import stream


@pytest.mark.parametrize(("kind", "deviation"), [("laplace", math.sqrt(2)), ("gaussian", 1.0)])
def test_noise_has_its_distribution(kind, deviation):
    like = torch.zeros(200, 1000, dtype=torch.float64)
    drawn = noise(like, 0.5, kind, stream())
    assert drawn.dtype == torch.float64 and drawn.shape == like.shape
    assert drawn.mean().abs() < 0.01
    assert drawn.std().item() == pytest.approx(0.5 * deviation, rel=0.02)
    tail = {"laplace": math.exp(-2), "gaussian": 0.0455}[kind]  # beyond twice the scale
    assert (drawn.abs() > 1.0).double().mean().item() == pytest.approx(tail, rel=0.05)
    assert torch.equal(drawn, noise(like, 0.5, kind, stream()))


def test_an_update_is_shortened_as_a_whole():
    update = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}
    halved = clipped(update, 2.5, 2.0)
    assert halved["a"].item() == pytest.approx(1.5) and halved["b"].item() == pytest.approx(2.0)
    assert clipped(update, 7.0, 1.0)["b"].item() == pytest.approx(4.0)  # 3 + 4 just fits
    assert clipped(update, 3.5, 1.0)["a"].item() == pytest.approx(1.5)


def test_the_budget_is_met_and_needs_more_noise_where_it_is_small():
    pytest.importorskip("opacus")
    sigmas = [dp.noise_multiplier(e, 0.01, 0.1, 100) for e in (2.0, 5.0, 10.0)]
    assert sigmas == sorted(sigmas, reverse=True) and sigmas[-1] > 0
    for sigma, epsilon in zip(sigmas, (2.0, 5.0, 10.0), strict=True):
        whole = dp.spent(sigma, 0.01, 0.1, 100)
        assert epsilon - 0.1 <= whole <= epsilon
        assert dp.spent(sigma, 0.01, 0.1, 50) < whole


@pytest.mark.parametrize("clip", [1e6, 1e-3])
def test_without_noise_a_private_step_is_sgds_of_clipped_gradients(monkeypatch, clip):
    pytest.importorskip("opacus")
    monkeypatch.setattr(dp, "noise_multiplier", lambda *_: 1e-12)
    monkeypatch.setattr(dp, "spent", lambda *_: 0.0)
    fields = {"discriminator_hidden": (), "discriminator_lr": 0.1, "discriminator_momentum": 0.0}
    fields |= {"discriminator_weight_decay": 0.0, "epsilon": 1.0, "clip": clip}
    run = toys.start("ADCOL", fields=fields, batch_size=12, rounds=1)
    run.server.round = 1
    module = run.server.modules["discriminator"]
    w, b = copy.deepcopy(list(module.parameters()))
    x, y = torch.randn(12, 16, generator=stream()), torch.arange(12) % 3
    run.method.learn(run.server, x, y)
    error = (x @ w.T + b).softmax(1) - torch.eye(3)[y]
    each = torch.cat([error[:, :, None] * x[:, None], error[:, :, None]], dim=2).detach()
    norms = each.flatten(1).norm(dim=1)
    step = (each * (clip / norms).clamp(max=1)[:, None, None]).mean(dim=0)
    moved = [(old - new).detach() for old, new in zip((w, b), module.parameters(), strict=True)]
    torch.testing.assert_close(moved[0], 0.1 * step[:, :-1], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(moved[1], 0.1 * step[:, -1], atol=1e-6, rtol=1e-4)


def test_a_run_spends_its_budget_and_says_how_much():
    pytest.importorskip("opacus")
    run = toys.start("ADCOL", fields={"epsilon": 3.0, "discriminator_epochs": 2})
    spent = []
    for _ in range(3):
        run.one_round()
        spent.append(run.server.log["discriminator_epsilon"])
    assert spent == sorted(spent) and 2.8 <= spent[-1] <= 3.0
    assert not any(key.startswith("_module") for key in run.server.state())


def test_without_opacus_one_line_says_what_to_install(monkeypatch):
    dp.noise_multiplier.cache_clear()
    for name in ("opacus", *(name for name in sys.modules if name.startswith("opacus."))):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FedReproError, match=r"opacus is not installed.*fedrepro\[privacy\]"):
        dp.noise_multiplier(1.0, 0.01, 0.1, 7)


def dp_fedbn(settings=None, **fields):
    return toys.start("DP-FedBN", fields=fields, **(settings or {}))


def updates(run):
    """What each client changed of the server's tensors in one round."""
    before = dict(run.server.model)
    sent = [up.message["model"] for up in record_messages(run)[1]]
    return [{name: value - before[name] for name, value in model.items()} for model in sent]


def flat(update):
    return torch.cat([value.flatten() for value in update.values()])


def test_without_noise_or_clipping_it_is_fedbn():
    private = dp_fedbn(epsilon=1e12, clip=1e4, server_is="curious")
    plain = toys.start("FedBN")
    private.one_round(), plain.one_round()
    for name, value in plain.server.model.items():
        torch.testing.assert_close(private.server.model[name], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [({"rounds": 10}, 10), ({"rounds": 9, "participation": 0.34, "turns": True}, 3)],
)
def test_the_noise_shares_the_budget_among_a_clients_rounds(settings, rounds):
    run = dp_fedbn(settings, epsilon=2.0, clip=0.02)
    sent = updates(run)
    loudness = torch.cat([flat(update) for update in sent]).abs().mean().item()
    assert loudness == pytest.approx(0.02 * rounds / 2.0, rel=0.1)  # mean of |Laplace| is its scale
    assert not any(torch.equal(flat(sent[0]), flat(other)) for other in sent[1:])


def test_a_trusted_server_shakes_the_average_alone(monkeypatch):
    pytest.importorskip("opacus")
    fields = {"server_is": "trusted", "clip": 0.05, "epsilon": 5.0}
    run, quiet = dp_fedbn(**fields), dp_fedbn(**fields)
    with monkeypatch.context() as patch:
        patch.setattr(type(quiet.method), "server_step", lambda *_: None)
        for update in updates(quiet):
            assert flat(update).norm().item() <= 0.05 * 1.001
    run.one_round()
    shaken = flat({n: run.server.model[n] - quiet.server.model[n] for n in run.travelling})
    heaviest = max(run.method.weights(run.protocol, [21, 13, 9]))
    sigma = dp.noise_multiplier(5.0, 0.01, 1.0, run.protocol.rounds)
    assert shaken.std().item() == pytest.approx(sigma * 0.05 * heaviest, rel=0.1)
    assert math.isclose(shaken.mean().item(), 0, abs_tol=0.01)
