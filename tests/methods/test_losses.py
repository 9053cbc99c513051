"""Losses of features, class means, mixtures. Values are held to official codes in tests/parity,
stacked clients to single ones in tests/engine."""

import math
import sys
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch.func import grad_and_value

from fedrepro.base.errors import FedReproError
from fedrepro.methods import losses
from fedrepro.methods.prototypes import (
    beta_draws,
    class_means,
    fedpall_mix,
    finch_prototypes,
    mix_other_class,
)
from tests.toys import stream

CLASSES, SIZE = 4, 6


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed), dtype=torch.float64)


def case(batch):
    """z, labels, one prototype a class, all present."""
    z, prototypes = draw(batch, SIZE), draw(CLASSES, SIZE, seed=100)
    return z, torch.arange(batch) % CLASSES, prototypes, torch.ones(CLASSES, dtype=torch.bool)


def clusters(batch):
    """As above with three places a class, of which one is filled."""
    owner, filled = torch.arange(CLASSES).repeat_interleave(3), torch.arange(3 * CLASSES) % 3 == 0
    return *case(batch)[:2], draw(3 * CLASSES, SIZE, seed=200), owner, filled


def features(count):
    return lambda batch: tuple(draw(batch, SIZE, seed=7 * i) for i in range(count))


def shares(batch):
    return (*case(batch)[:3], torch.tensor([0.1, 0.2, 0.3, 0.4]).double())


def of_clusters(z, labels, prototypes, owner, present):
    return losses.prototype_contrast(z, labels, prototypes, present, 0.1, owner)


CASES = {
    "cross_entropy": (losses.cross_entropy, lambda batch: case(batch)[:2]),
    "kl_from_uniform": (losses.kl_from_uniform, features(1)),
    "kl_to_uniform": (losses.kl_to_uniform, features(1)),
    "model_contrast": (losses.model_contrast, features(3)),
    "prototype_mse": (losses.prototype_mse, case),
    "prototype_mse/sum": (partial(losses.prototype_mse, over_dimensions="sum"), case),
    "prototype_contrast": (of_clusters, clusters),
    "prototype_contrast/one a class": (partial(losses.prototype_contrast, temperature=1.0), case),
    "fedpall_contrast": (losses.fedpall_contrast, case),
    "fedpall_contrast/paper": (partial(losses.fedpall_contrast, reading="paper"), case),
    "prior_adjusted_cross_entropy": (losses.prior_adjusted_cross_entropy, shares),
    "distill_kl": (losses.distill_kl, features(2)),
}
OF_PROTOTYPES = [name for name in CASES if name.startswith(("prototype", "fedpall"))]


@pytest.mark.parametrize("name", OF_PROTOTYPES)
def test_an_absent_class_is_as_if_it_were_not_there(name):
    """Neither its samples nor what stands in its place takes part."""
    loss, (z, labels, *rest, present) = CASES[name][0], CASES[name][1](8)
    places = len(present) // CLASSES
    prototypes, *owner = rest
    gone = torch.arange(len(present)) >= len(present) - places
    counts = 7 * (present & ~gone)
    gradient, value = grad_and_value(loss)(z, labels, *rest, counts)
    assert not gradient[labels == CLASSES - 1].any()
    assert gradient[labels < CLASSES - 1].any(dim=1).all()
    others = labels < CLASSES - 1
    kept = [part[~gone] for part in (prototypes, *owner, present)]
    assert torch.isclose(value, loss(z[others], labels[others], *kept))
    written_over = torch.where(gone[:, None], 3.0, prototypes)
    assert torch.equal(value, loss(z, labels, written_over, *owner, counts > 0))


@pytest.mark.parametrize("name", CASES)
def test_zero_features_and_a_batch_of_one_class_give_no_wild_gradient(name):
    loss, (first, *rest) = CASES[name][0], CASES[name][1](5)
    first[1] = 0
    if rest and rest[0].dtype == torch.long:
        rest[0] = torch.full((5,), 2)
    gradient, value = grad_and_value(loss)(first, *rest)
    assert value.isfinite() and gradient.isfinite().all() and gradient.any()
    assert gradient[1].abs().max() < 10


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
        lam = beta_draws(4000, alpha, stream())
        assert kstest(lam.numpy(), "beta", args=(alpha, alpha)).pvalue > 0.01
    draws = stream()
    both = torch.cat([beta_draws(3, 0.4, draws), beta_draws(2, 0.4, draws)])
    assert torch.equal(both, beta_draws(5, 0.4, stream()))


def test_every_other_sample_is_taken_equally_often():
    n, labels = 24, torch.randint(0, 4, (24,), generator=stream())
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
        mixed = fedpall_mix(z, labels, prototypes, stream(seed))
        assert (mixed == mixed[0]).all() and (mixed[0] == 0).sum() == 4
        alphas.add(round(mixed.max().item(), 6))
    assert all(0.8 <= alpha <= 1 and round(alpha, 2) == alpha for alpha in alphas)
    assert len(alphas) > 10
    z, labels, prototypes = torch.ones(2, 400), torch.tensor([0, 0]), torch.ones(1, 400)
    for seed in range(20):
        mixed = fedpall_mix(z, labels, prototypes, stream(seed), exact=False)
        assert torch.equal(mixed[0], mixed[1])
        kept.append(mixed[0].sum().item())
    off = np.array(kept) - 360  # 400 places at 0.9: mean 360, deviation 6
    assert len(set(kept)) > 5 and abs(off.mean()) < 6 and abs(off).max() < 30
