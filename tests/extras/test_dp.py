"""Noise, clipping, and DP-SGD at the server."""

import copy
import math
import sys

import pytest
import torch

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import OptimizerSpec
from fedrepro.extras import dp
from fedrepro.extras.dp import clipped, noise
from fedrepro.federated.rounds import Training
from tests import toys


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("kind", "deviation"), [("laplace", math.sqrt(2)), ("gaussian", 1.0)])
def test_noise_has_its_distribution(kind: str, deviation: float) -> None:
    like = torch.zeros(200, 1000, dtype=torch.float64)
    drawn = noise(like, 0.5, kind, stream())
    assert drawn.dtype == torch.float64 and drawn.shape == like.shape
    assert drawn.mean().abs() < 0.01
    assert drawn.std().item() == pytest.approx(0.5 * deviation, rel=0.02)
    tail = {"laplace": math.exp(-2), "gaussian": 0.0455}[kind]  # beyond twice the scale
    assert (drawn.abs() > 1.0).double().mean().item() == pytest.approx(tail, rel=0.05)
    assert torch.equal(drawn, noise(like, 0.5, kind, stream()))


def test_an_update_is_shortened_as_a_whole() -> None:
    update = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}
    halved = clipped(update, 2.5, 2.0)
    assert halved["a"].item() == pytest.approx(1.5) and halved["b"].item() == pytest.approx(2.0)
    assert clipped(update, 7.0, 1.0)["b"].item() == pytest.approx(4.0)  # 3 + 4 just fits
    assert clipped(update, 3.5, 1.0)["a"].item() == pytest.approx(1.5)


def test_the_budget_is_met_and_needs_more_noise_where_it_is_small() -> None:
    pytest.importorskip("opacus")
    sigmas = [dp.noise_multiplier(e, 0.01, 0.1, 100) for e in (2.0, 5.0, 10.0)]
    assert sigmas == sorted(sigmas, reverse=True) and sigmas[-1] > 0
    for sigma, epsilon in zip(sigmas, (2.0, 5.0, 10.0), strict=True):
        whole = dp.spent(sigma, 0.01, 0.1, 100)
        assert epsilon - 0.1 <= whole <= epsilon
        assert dp.spent(sigma, 0.01, 0.1, 50) < whole


def fitted(monkeypatch: pytest.MonkeyPatch, clip: float) -> tuple[Training, list, list]:
    """One step on all of 12 samples, without noise; the discriminator's values before, the data."""
    pytest.importorskip("opacus")
    monkeypatch.setattr(dp, "noise_multiplier", lambda *_: 1e-12)
    monkeypatch.setattr(dp, "spent", lambda *_: 0.0)
    run = toys.start("ADCOL", fields={"discriminator_hidden": ()}, batch_size=12, rounds=1)
    run.server.round = 1
    module = run.server.modules["discriminator"]
    before = copy.deepcopy(list(module.parameters()))
    x, y = torch.randn(12, 16, generator=stream()), torch.arange(12) % 3
    how = {"optimizer": OptimizerSpec(lr=0.1), "epsilon": 1.0, "delta": 0.01, "clip": clip}
    dp.fit(run.server, "discriminator", x, y, epochs=1, **how)
    return run, before, [x, y]


def test_without_noise_and_clipping_a_private_step_is_an_sgd_step(monkeypatch) -> None:
    run, before, (x, y) = fitted(monkeypatch, clip=1e6)
    after = list(run.server.modules["discriminator"].parameters())
    loss = torch.nn.functional.cross_entropy(x @ before[0].T + before[1], y)
    gradients = torch.autograd.grad(loss, before)
    for new, old, gradient in zip(after, before, gradients, strict=True):
        torch.testing.assert_close(new, old - 0.1 * gradient, atol=1e-5, rtol=1e-4)
    assert run.server.log["discriminator_loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_no_sample_moves_the_network_by_more_than_the_clipping_norm(monkeypatch) -> None:
    run, before, _ = fitted(monkeypatch, clip=1e-3)
    after = run.server.modules["discriminator"].parameters()
    moved = torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)]).norm()
    assert 0 < moved <= 0.1 * 1e-3 * 1.0001


def test_a_run_spends_its_budget_and_says_how_much() -> None:
    pytest.importorskip("opacus")
    run = toys.start("ADCOL", fields={"epsilon": 3.0, "discriminator_epochs": 2})
    spent = []
    for _ in range(3):
        run.one_round()
        spent.append(run.server.log["discriminator_epsilon"])
    assert spent == sorted(spent) and 2.8 <= spent[-1] <= 3.0
    assert not any(key.startswith("_module") for key in run.server.state())


def test_without_opacus_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    dp.noise_multiplier.cache_clear()
    for name in ("opacus", *(name for name in sys.modules if name.startswith("opacus."))):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FedReproError, match=r"opacus is not installed.*fedrepro\[privacy\]"):
        dp.noise_multiplier(1.0, 0.01, 0.1, 7)
