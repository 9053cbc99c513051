"""Mixtures of features and prototypes: draws, partners, masks."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch.func import grad, vmap

from fedrepro.methods.losses import prototype_mse
from fedrepro.methods.prototypes import beta_draws, class_means, fedpall_mix, mix_other_class
from tests.test_losses import dispatched
from tests.test_prototypes import draw, generator, tensor


def test_beta_draws_follow_the_distribution_and_the_generator():
    for alpha in (0.2, 1.0):
        lam = beta_draws(4000, alpha, generator())
        assert kstest(lam.numpy(), "beta", args=(alpha, alpha)).pvalue > 0.01
    stream = generator()
    first = beta_draws(3, 0.4, stream)
    assert torch.equal(
        torch.cat([first, beta_draws(2, 0.4, stream)]), beta_draws(5, 0.4, generator())
    )


def test_mix_other_class_by_hand():
    z, labels = tensor([1, 0], [0, 1], [0, 2], [8, 8]), torch.tensor([1, 0, 0, 2])
    # By class: samples 1, 2 (class 0), 0 (class 1), 3 (class 2). The others of sample 0 are then
    # 1, 2, 3; of 1 and 2 they are 0, 3; of 3 they are 1, 2, 0.
    draws = torch.tensor([0.4, 0.0, 0.6, 0.99])  # take the 2nd, 1st, 2nd and 3rd
    lam = torch.tensor([0.5, 0.25, 1.0, 0.0])
    mixed = mix_other_class(z, labels, 4, lam, draws)
    assert mixed.tolist() == [[0.5, 1], [0.75, 0.25], [0, 2], [1, 0]]


@pytest.mark.parametrize("largest", [1 - 2**-24, 1.0])
def test_the_largest_draw_takes_the_last_other_sample(largest):
    """Also where a draw in double precision was rounded up to 1."""
    labels = torch.arange(300) % 2
    draws = torch.full((300,), largest)
    mixed = mix_other_class(torch.eye(300), labels, 2, torch.tensor(0.0), draws)
    assert mixed[0].argmax() == 299 and mixed[1].argmax() == 298


def test_a_batch_of_one_class_stays_as_it_is():
    z = draw(5, 3)
    for labels in (torch.zeros(5), torch.full((5,), 2)):
        mixed = mix_other_class(z, labels.long(), 3, torch.full((5,), 0.3), torch.rand(5))
        assert torch.equal(mixed, z)


@pytest.mark.filterwarnings("error")
def test_augmented_prototypes_of_clients_side_by_side():
    """Mixing, means and distance in one loss, as I2PFL takes them; one client has one class."""
    z, labels = (
        draw(3, 16, 5),
        torch.stack([torch.arange(16) % 4, torch.arange(16) // 9, torch.zeros(16).long()]),
    )
    lam, draws = torch.rand(3, 16, generator=generator()), torch.rand(3, 16, generator=generator(1))

    def loss(z, labels, lam, draws):
        mixed = mix_other_class(z.detach(), labels, 4, lam, draws)
        prototypes, counts = class_means(mixed, labels, 4)
        return prototype_mse(z, labels, prototypes, counts)

    together = vmap(grad(loss))(z, labels, lam, draws)
    for i in range(3):
        one = grad(loss)(z[i], labels[i], lam[i], draws[i])
        torch.testing.assert_close(together[i], one, rtol=1e-12, atol=1e-12)
        assert one.any()


@pytest.mark.parametrize(
    "function",
    [
        lambda z, labels, draws: class_means(z, labels, 4)[0].sum(),
        lambda z, labels, draws: mix_other_class(z, labels, 4, draws, draws).sum(),
    ],
    ids=["class_means", "mix_other_class"],
)
def test_a_larger_batch_takes_no_more_operations(function):
    small, large = (
        dispatched(function, (draw(n, 5), torch.arange(n) % 4, torch.linspace(0, 0.9, n)))
        for n in (64, 512)
    )
    assert 0 < small == large


def test_fedpall_mix_by_hand():
    z, labels, prototypes = (
        tensor(*[[1.0] * 10] * 2),
        torch.tensor([1, 0]),
        tensor([0] * 10, [3] * 10),
    )
    mixed = fedpall_mix(z, labels, prototypes, generator(4), low=0.5, high=0.9, keep=0.75)
    stream = generator(4)
    alpha = round(0.5 + 0.4 * torch.rand((), generator=stream).item(), 2)
    kept = torch.randperm(10, generator=stream) < 7  # floor(7.5)
    assert kept.sum() == 7
    expected = tensor([alpha + (1 - alpha) * 3] * 10, [alpha] * 10) * kept
    assert torch.allclose(mixed, expected)


def test_fedpall_mask_of_independent_places():
    z, labels, prototypes = torch.ones(2, 400), torch.tensor([0, 0]), torch.ones(1, 400)
    kept = []
    for seed in range(20):
        mixed = fedpall_mix(z, labels, prototypes, generator(seed), mask="bernoulli")
        assert torch.equal(mixed[0], mixed[1])
        kept.append(mixed[0].sum().item())
    # 400 places at 0.9: mean 360, deviation 6.
    assert (
        len(set(kept)) > 5
        and abs(np.mean(kept) - 360) < 6
        and max(map(abs, np.array(kept) - 360)) < 30
    )
