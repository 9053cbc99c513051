import math
import sys

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fedrepro.base.errors import FedReproError
from fedrepro.methods.prototypes import (
    beta_draws,
    class_means,
    fedpall_mix,
    finch_prototypes,
    mix_other_class,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def test_class_means_sum_half_precision_in_float32():
    features = torch.full((4000, 2), 1.5).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        means, counts = class_means(features, torch.zeros(4000, dtype=torch.long), 1)
    assert means.dtype == counts.dtype == torch.float32
    assert counts.item() == 4000 and means.tolist() == [[1.5, 1.5]]


def test_finch_prototypes_of_equal_or_zero_means_are_one_cluster():
    for value in (0.0, 1.0):
        prototypes, _, present = finch_prototypes(torch.full((6, 1, 3), value), torch.ones(6, 1))
        assert present.tolist() == [True, False, False]
        assert prototypes[0].tolist() == [value] * 3


def test_clustering_prints_and_warns_nothing(capsys, recwarn, monkeypatch):
    for name in ("finch", "finch.finch"):  # it speaks when it is imported
        monkeypatch.delitem(sys.modules, name, raising=False)
    finch_prototypes(draw(9, 2, 3), torch.ones(9, 2))
    assert "finch" in sys.modules
    assert capsys.readouterr() == ("", "") and not recwarn.list


def test_prototypes_of_a_diverged_network_are_refused():
    stack = draw(3, 2, 4)
    stack[1, 1, 0] = math.nan
    with pytest.raises(FedReproError, match="is not finite: training diverged; lower"):
        finch_prototypes(stack, torch.ones(3, 2))


def test_beta_draws_follow_the_distribution_and_the_generator():
    for alpha in (0.2, 1.0):
        lam = beta_draws(4000, alpha, generator())
        assert kstest(lam.numpy(), "beta", args=(alpha, alpha)).pvalue > 0.01
    stream = generator()
    first = beta_draws(3, 0.4, stream)
    both = torch.cat([first, beta_draws(2, 0.4, stream)])
    assert torch.equal(both, beta_draws(5, 0.4, generator()))


def test_every_other_sample_is_taken_equally_often():
    n, labels = 24, torch.randint(0, 4, (24,), generator=generator())
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


def test_fedpall_mix_draws_one_alpha_and_one_mask():
    alphas, kept = set(), []
    z, labels, prototypes = torch.ones(50, 40), torch.zeros(50).long(), torch.zeros(1, 40)
    for seed in range(30):
        mixed = fedpall_mix(z, labels, prototypes, generator(seed))
        assert (mixed == mixed[0]).all()
        assert (mixed[0] == 0).sum() == 4
        alphas.add(round(mixed.max().item(), 6))
    assert all(0.8 <= alpha <= 1 and round(alpha, 2) == alpha for alpha in alphas)
    assert len(alphas) > 10
    # Or a mask of independent places.
    z, labels, prototypes = torch.ones(2, 400), torch.tensor([0, 0]), torch.ones(1, 400)
    for seed in range(20):
        mixed = fedpall_mix(z, labels, prototypes, generator(seed), exact=False)
        assert torch.equal(mixed[0], mixed[1])
        kept.append(mixed[0].sum().item())
    off = np.array(kept) - 360  # 400 places at 0.9: mean 360, deviation 6
    assert len(set(kept)) > 5 and abs(off.mean()) < 6 and abs(off).max() < 30
