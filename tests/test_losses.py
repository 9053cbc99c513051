import math

import torch

from fedrepro.losses import cross_entropy, kl_from_uniform, proximal


def test_kl_from_uniform_is_zero_for_equal_logits():
    assert kl_from_uniform(torch.full((3, 4), 7.0)).abs() < 1e-6


def test_kl_from_uniform_by_hand():
    # D = (3/4, 1/4): KL(U||D) = -1/2 log(2*3/4) - 1/2 log(2*1/4).
    logits = torch.log(torch.tensor([[0.75, 0.25]]))
    expected = -0.5 * math.log(1.5) - 0.5 * math.log(0.5)
    assert math.isclose(kl_from_uniform(logits).item(), expected, rel_tol=1e-6)


def test_kl_direction_is_from_uniform_not_to_it():
    logits = torch.log(torch.tensor([[0.75, 0.25]]))
    reverse = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert abs(kl_from_uniform(logits).item() - reverse) > 1e-3


def test_proximal_by_hand_and_ignores_untrained():
    params = {"w": torch.tensor([1.0, 2.0])}
    reference = {"w": torch.tensor([0.0, 4.0]), "running_mean": torch.tensor([9.0])}
    assert proximal(params, reference).item() == 2.5


def test_cross_entropy_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.5], [0.1, 0.9]]))
    expected = -(math.log(0.5) + math.log(0.9)) / 2
    assert math.isclose(cross_entropy(logits, torch.tensor([0, 1])).item(), expected, rel_tol=1e-6)
