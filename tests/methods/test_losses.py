import inspect
import math
from functools import partial

import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from fedrepro.methods import losses
from fedrepro.methods.losses import (
    cross_entropy,
    distill_kl,
    feddyn_linear,
    fedpall_contrast,
    kl_from_uniform,
    kl_to_uniform,
    mean_regulariser,
    model_contrast,
    prior_adjusted_cross_entropy,
    prototype_contrast,
    prototype_mse,
    proximal,
)

CLASSES, SIZE = 4, 6


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_fedpall_contrast_by_hand_in_both_readings():
    # z/|z| = (1, 0): cosines 1 and 0, inner products with the prototypes as sent 0.5 and 0.
    z, labels, prototypes = tensor([2, 0]), torch.tensor([0]), tensor([0.5, 0], [0, 0.8])
    present = torch.tensor([1, 1])
    of = partial(fedpall_contrast, z, labels, prototypes, present, temperature=2.0)
    code = -math.log(math.exp(0.5) / (math.exp(0.25) + math.exp(0)))
    assert math.isclose(of().item(), code)
    assert math.isclose(of(reading="paper").item(), -math.log(math.exp(0.5) / math.exp(0)))


def test_distill_kl_by_hand():
    # p = (1/2, 1/2) and the teacher's q = (3/4, 1/4), twice: batch 2, classes 2.
    logits = torch.log(tensor([0.5, 0.5], [0.5, 0.5]))
    teacher = torch.log(tensor([0.75, 0.25], [0.75, 0.25]))
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert math.isclose(distill_kl(logits, teacher).item(), expected)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def case(batch, seed=0):
    """z, labels, one prototype a class, all present."""
    labels = (torch.arange(batch) + seed) % CLASSES
    z, prototypes = draw(batch, SIZE, seed=seed), draw(CLASSES, SIZE, seed=seed + 100)
    return z, labels, prototypes, torch.ones(CLASSES, dtype=torch.bool)


def clusters(batch, seed=0):
    """As above with three places a class, some of them empty."""
    z, labels, _, _ = case(batch, seed)
    prototypes = draw(3 * CLASSES, SIZE, seed=seed + 200)
    owner = torch.arange(CLASSES).repeat_interleave(3)
    return z, labels, prototypes, owner, torch.arange(3 * CLASSES) % 3 <= seed % 3


def features(count):
    return lambda batch, seed=0: tuple(draw(batch, SIZE, seed=seed + 7 * i) for i in range(count))


def tensors(batch, seed=0):
    """Two networks; a loss of them does not depend on the batch."""
    return tuple({"w": draw(3, 2, seed=seed + i), "b": draw(2, seed=seed + 5 + i)} for i in (0, 1))


def shares(batch, seed=0):
    return (*case(batch, seed)[:3], tensor(0.1, 0.2, 0.3, 0.4))


CASES = {
    "cross_entropy": (cross_entropy, lambda batch, seed=0: case(batch, seed)[:2]),
    "kl_from_uniform": (kl_from_uniform, features(1)),
    "kl_to_uniform": (kl_to_uniform, features(1)),
    "proximal": (proximal, tensors),
    "feddyn_linear": (feddyn_linear, tensors),
    "model_contrast": (model_contrast, features(3)),
    "prototype_mse": (prototype_mse, case),
    "prototype_mse/sum": (partial(prototype_mse, over_dimensions="sum"), case),
    "prototype_contrast": (
        lambda z, labels, prototypes, owner, present: prototype_contrast(
            z, labels, prototypes, present, 0.1, owner
        ),
        clusters,
    ),
    "prototype_contrast/one a class": (partial(prototype_contrast, temperature=1.0), case),
    "fedpall_contrast": (fedpall_contrast, case),
    "fedpall_contrast/paper": (partial(fedpall_contrast, reading="paper"), case),
    "prior_adjusted_cross_entropy": (prior_adjusted_cross_entropy, shares),
    "distill_kl": (distill_kl, features(2)),
    "mean_regulariser": (
        lambda z, reference: mean_regulariser(z.mean(dim=0), reference.mean(dim=0)),
        features(2),
    ),
}
OF_PROTOTYPES = [name for name in CASES if name.startswith(("prototype", "fedpall"))]
OF_ALL_PROTOTYPES = [*OF_PROTOTYPES, "prior_adjusted_cross_entropy"]
OF_TENSORS = [name for name in CASES if CASES[name][1] is not tensors]
every_loss = pytest.mark.parametrize("name", CASES)


def test_every_loss_has_a_case():
    public = {
        name
        for name, function in inspect.getmembers(losses, inspect.isfunction)
        if function.__module__ == losses.__name__ and not name.startswith("_")
    }
    assert {name.partition("/")[0] for name in CASES} == public


class Dispatched(TorchDispatchMode):
    """Counts the operations that reach a device."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def dispatched(function, arguments):
    """Operations of value and gradient."""
    with Dispatched() as counter:
        grad_and_value(function)(*arguments)
    return counter.count


@every_loss
def test_a_larger_batch_takes_no_more_operations(name):
    loss, arguments = CASES[name]
    small, large = (dispatched(loss, arguments(batch)) for batch in (64, 512))
    assert 0 < small == large


@pytest.mark.filterwarnings("error")
@every_loss
def test_clients_side_by_side_are_clients_one_by_one(name):
    loss, arguments = CASES[name]
    clients = [arguments(5, seed) for seed in range(3)]
    alone = [grad_and_value(loss)(*client) for client in clients]
    stacked = tree_map(lambda *leaves: torch.stack(leaves), *clients)
    together = vmap(grad_and_value(loss))(*stacked)
    for i, one in enumerate(alone):
        mine = tree_map(lambda leaf, i=i: leaf[i], together)
        torch.testing.assert_close(mine, one, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", OF_ALL_PROTOTYPES)
def test_clients_side_by_side_may_share_what_they_received(name):
    loss, arguments = CASES[name]
    clients = [arguments(5, seed) for seed in range(3)]
    received = clients[0][2:]
    z, labels = (torch.stack(parts) for parts in list(zip(*clients, strict=True))[:2])
    dims = (0, 0, *(None for _ in received))
    together = vmap(grad_and_value(loss), in_dims=dims)(z, labels, *received)
    for i, client in enumerate(clients):
        one = grad_and_value(loss)(*client[:2], *received)
        mine = tree_map(lambda leaf, i=i: leaf[i], together)
        torch.testing.assert_close(mine, one, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OF_PROTOTYPES)
def test_without_any_prototype_value_and_gradient_are_zero(name):
    loss, (z, *rest, present) = CASES[name][0], CASES[name][1](5)
    gradient, value = grad_and_value(loss)(z, *rest, torch.zeros_like(present))
    assert value == 0 and not gradient.any()


@pytest.mark.parametrize("name", OF_PROTOTYPES)
def test_an_absent_class_is_as_if_it_were_not_there(name):
    """Neither its samples nor what stands in its place takes part."""
    loss, (z, labels, *rest, present) = CASES[name][0], CASES[name][1](8)
    places = len(present) // CLASSES
    prototypes, *owner = rest
    gone = torch.arange(len(present)) >= len(present) - places
    gradient, value = grad_and_value(loss)(z, labels, *rest, present & ~gone)
    assert not gradient[labels == CLASSES - 1].any()
    assert gradient[labels < CLASSES - 1].any(dim=1).all()
    others = labels < CLASSES - 1
    kept = [part[~gone] for part in (prototypes, *owner, present)]
    assert torch.isclose(value, loss(z[others], labels[others], *kept))
    written_over = torch.where(gone[:, None], 3.0, prototypes)
    assert torch.equal(value, loss(z, labels, written_over, *owner, present & ~gone))


@pytest.mark.parametrize("name", OF_PROTOTYPES)
def test_counts_serve_as_present(name):
    loss, (*rest, present) = CASES[name][0], CASES[name][1](8)
    assert torch.equal(loss(*rest, present), loss(*rest, 7 * present))


def test_paper_contrast_needs_another_class_to_stand_against():
    z, labels, prototypes, _ = case(8)
    only = torch.arange(CLASSES) == 1
    of = partial(fedpall_contrast, reading="paper")
    gradient, value = grad_and_value(of)(z, labels, prototypes, only)
    assert value == 0 and not gradient.any()


@pytest.mark.parametrize("name", [*OF_ALL_PROTOTYPES, "model_contrast"])
def test_a_batch_of_one_class(name):
    loss, (z, *rest) = CASES[name][0], CASES[name][1](5)
    if name != "model_contrast":
        rest[0] = torch.full((5,), 2)
    gradient, value = grad_and_value(loss)(z, *rest)
    assert value.isfinite() and gradient.isfinite().all() and gradient.any()


@pytest.mark.parametrize("name", OF_TENSORS)
def test_features_of_zeros_give_no_wild_gradient(name):
    loss, (first, *rest) = CASES[name][0], CASES[name][1](5)
    first[1] = 0
    gradient, value = grad_and_value(loss)(first, *rest)
    assert value.isfinite() and gradient.isfinite().all()
    assert gradient[1].abs().max() < 10


@pytest.mark.parametrize("name", [*OF_ALL_PROTOTYPES, "model_contrast"])
def test_half_precision_is_widened_before_it_is_multiplied(name):
    loss, arguments = CASES[name]
    narrow = tree_map(lambda x: x.bfloat16() if x.is_floating_point() else x, arguments(16))
    exact = tree_map(lambda x: x.double() if x.is_floating_point() else x, narrow)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(*narrow)
    assert value.dtype == torch.float32
    assert math.isclose(value.item(), loss(*exact).item(), rel_tol=1e-4)
