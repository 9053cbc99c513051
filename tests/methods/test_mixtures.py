"""Mixtures of features and prototypes: draws, partners, masks."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fedrepro.methods.prototypes import beta_draws, fedpall_mix, mix_other_class
from tests.methods.test_prototypes import draw, generator


def test_beta_draws_follow_the_distribution_and_the_generator():
    for alpha in (0.2, 1.0):
        lam = beta_draws(4000, alpha, generator())
        assert kstest(lam.numpy(), "beta", args=(alpha, alpha)).pvalue > 0.01
    stream = generator()
    first = beta_draws(3, 0.4, stream)
    assert torch.equal(
        torch.cat([first, beta_draws(2, 0.4, stream)]), beta_draws(5, 0.4, generator())
    )


@pytest.mark.parametrize("seed", range(5))
def test_every_other_sample_is_taken_equally_often(seed):
    n, labels = 24, torch.randint(0, 4, (24,), generator=generator(seed))
    z, taken = torch.eye(n), torch.zeros(n, n)
    for draws in torch.linspace(0, 1, 400 + 1)[:-1] + 1 / 800:
        taken += mix_other_class(z, labels, 4, torch.zeros(()), draws.expand(n))
    others = labels[:, None] != labels
    assert not taken[~others].any()
    share = taken / 400 * others.sum(dim=1, keepdim=True)
    assert (share[others] - 1).abs().max() < 0.1


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


def test_fedpall_mix_draws_one_alpha_and_one_mask():
    alphas = set()
    z, labels, prototypes = (
        torch.ones(50, 40),
        torch.zeros(50, dtype=torch.long),
        torch.zeros(1, 40),
    )
    for seed in range(30):
        mixed = fedpall_mix(z, labels, prototypes, generator(seed))
        assert (mixed == mixed[0]).all()
        assert (mixed[0] == 0).sum() == 4
        alphas.add(round(mixed.max().item(), 6))
    assert all(0.8 <= alpha <= 1 and round(alpha, 2) == alpha for alpha in alphas)
    assert len(alphas) > 10


def test_fedpall_mask_of_independent_places():
    z, labels, prototypes = torch.ones(2, 400), torch.tensor([0, 0]), torch.ones(1, 400)
    kept = []
    for seed in range(20):
        mixed = fedpall_mix(z, labels, prototypes, generator(seed), exact=False)
        assert torch.equal(mixed[0], mixed[1])
        kept.append(mixed[0].sum().item())
    # 400 places at 0.9: mean 360, deviation 6.
    assert (
        len(set(kept)) > 5
        and abs(np.mean(kept) - 360) < 6
        and max(map(abs, np.array(kept) - 360)) < 30
    )
