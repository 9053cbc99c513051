"""What every loss of features keeps to. Values are held to official codes in tests/parity, and the
losses of stacked clients to those of single ones in tests/engine."""

from functools import partial

import pytest
import torch
from torch.func import grad_and_value

from fedrepro.methods import losses

CLASSES, SIZE = 4, 6


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


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


def of_means(z, reference):
    return losses.mean_regulariser(z.mean(dim=0), reference.mean(dim=0))


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
    "mean_regulariser": (of_means, features(2)),
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


def test_paper_contrast_needs_another_class_to_stand_against():
    z, labels, prototypes, _ = case(8)
    only = torch.arange(CLASSES) == 1
    of = partial(losses.fedpall_contrast, reading="paper")
    gradient, value = grad_and_value(of)(z, labels, prototypes, only)
    assert value == 0 and not gradient.any()
