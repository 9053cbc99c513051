import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import kstest
from torch.func import grad, vmap

from fedrepro.errors import FedReproError
from fedrepro.losses import prototype_mse
from fedrepro.prototypes import (
    beta_draws,
    class_means,
    count_weighted_mean,
    distance_reweighted,
    ema,
    fedpall_mix,
    finch_prototypes,
    mix_other_class,
    plain_mean,
    rucr_mix,
    unit_mean,
)
from tests.test_losses import dispatched


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


# At a client.


def test_class_means_by_hand_with_an_absent_class():
    features, labels = tensor([1, 2], [3, 4], [7, 7]), torch.tensor([0, 0, 2])
    means, counts = class_means(features, labels, 3)
    assert means.tolist() == [[2, 3], [0, 0], [7, 7]]
    assert counts.tolist() == [2, 0, 1]


def test_class_means_with_weights_by_hand():
    features, labels = tensor([1, 2], [4, 5], [7, 7]), torch.tensor([0, 0, 1])
    means, counts = class_means(features, labels, 2, weights=torch.tensor([2, 1, 0]))
    assert means.tolist() == [[2, 3], [0, 0]]
    assert counts.tolist() == [3, 0]


def test_class_means_of_no_samples_are_zeros():
    means, counts = class_means(torch.empty(0, 4), torch.empty(0, dtype=torch.long), 3)
    assert not means.any() and not counts.any() and means.shape == (3, 4)


@pytest.mark.filterwarnings("error")
def test_class_means_of_clients_side_by_side():
    features, labels = draw(3, 20, 5), torch.arange(60).reshape(3, 20) % 7 % 4
    means, counts = vmap(lambda z, y: class_means(z, y, 5))(features, labels)
    for i in range(3):
        for k in range(5):
            mine = features[i][labels[i] == k]
            assert counts[i, k] == len(mine)
            expected = mean_or_zeros(mine)
            assert torch.allclose(means[i, k], expected)
    assert (counts == 0).any()


def mean_or_zeros(rows):
    return rows.mean(dim=0) if len(rows) else torch.zeros(rows.shape[1], dtype=rows.dtype)


def test_class_means_sum_half_precision_in_float32():
    features = torch.full((4000, 2), 1.5).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        means, counts = class_means(features, torch.zeros(4000, dtype=torch.long), 1)
    assert means.dtype == counts.dtype == torch.float32
    assert counts.item() == 4000 and means.tolist() == [[1.5, 1.5]]


# At the server: two clients, three classes; class 1 is the second client's alone, 2 nobody's.

STACK = tensor([[1, 0], [0, 0], [0, 0]], [[3, 4], [2, 6], [0, 0]])
COUNTS = torch.tensor([[3, 0, 0], [1, 5, 0]])


def test_count_weighted_mean_by_hand():
    prototypes, present = count_weighted_mean(STACK, COUNTS)
    assert prototypes.tolist() == [[1.5, 1], [2, 6], [0, 0]]  # (3 (1, 0) + (3, 4)) / 4
    assert present.tolist() == [True, True, False]


def test_plain_mean_by_hand():
    prototypes, present = plain_mean(STACK, COUNTS)
    assert prototypes.tolist() == [[2, 2], [2, 6], [0, 0]]
    assert present.tolist() == [True, True, False]


def test_unit_mean_by_hand_is_not_scaled_again():
    prototypes, present = unit_mean(STACK, COUNTS)
    # (3 (1, 0) + (3/5, 4/5)) / 4, then (2, 6) / sqrt(40).
    expected = tensor([0.9, 0.2], [2 / math.sqrt(40), 6 / math.sqrt(40)], [0, 0])
    assert torch.allclose(prototypes, expected)
    assert prototypes[0].norm() < 1
    assert present.tolist() == [True, True, False]


def test_mean_of_all_samples_is_the_count_weighted_mean():
    z, labels = draw(30, 4), torch.arange(30) % 4
    parts = [class_means(z[a:b], labels[a:b], 5) for a, b in ((0, 7), (7, 9), (9, 30))]
    stack, counts = (torch.stack(part) for part in zip(*parts, strict=True))
    whole, number = class_means(z, labels, 5)
    prototypes, present = count_weighted_mean(stack, counts)
    assert torch.allclose(prototypes, whole) and torch.equal(present, number > 0)


def test_distance_reweighted_by_hand():
    # One dimension: 0, 0 and 3 about their mean 1. Distances 1, 1, 2; squared 1, 1, 4. The fourth
    # client has none of the class.
    stack, counts = tensor([[0]], [[0]], [[3]], [[0]]), torch.tensor([[5], [1], [9], [0]])
    prototypes, present = distance_reweighted(stack, counts)
    assert prototypes.item() == pytest.approx(2 / 4 * 3) and present.item()
    squared, _ = distance_reweighted(stack, counts, distance="squared")
    assert squared.item() == pytest.approx(4 / 6 * 3)


def test_distance_reweighted_falls_back_to_the_mean():
    alike = draw(1, 1, 4).expand(4, 1, 4)
    for clients in (1, 2, 4):
        stack = torch.cat([alike[:clients], draw(clients, 1, 4)], dim=1)
        found, present = distance_reweighted(stack, torch.ones(clients, 2))
        mean, _ = plain_mean(stack, torch.ones(clients, 2))
        assert present.all()
        assert torch.allclose(found[0], mean[0])
        assert torch.allclose(found[1], mean[1]) == (clients <= 2)


def test_distance_reweighted_with_absent_classes():
    prototypes, present = distance_reweighted(STACK, COUNTS)
    assert torch.allclose(prototypes, tensor([2, 2], [2, 6], [0, 0]))
    assert present.tolist() == [True, True, False]


def test_ema_by_hand_and_where_only_one_has_the_class():
    previous, new = tensor([1, 1], [2, 2], [0, 0], [0, 0]), tensor([3, 5], [0, 0], [4, 4], [0, 0])
    before, now = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])
    values, present = ema(previous, new, 0.75, before, now)
    assert values.tolist() == [[1.5, 2], [2, 2], [4, 4], [0, 0]]
    assert present.tolist() == [True, True, True, False]


# Clusters.


def test_finch_prototypes_by_hand():
    # Class 0: three clients about (1, 0) and three about (0, 1). Class 1 has one client, class 2
    # two that point opposite ways, class 3 none.
    stack = torch.zeros(6, 4, 2)
    stack[:, 0] = torch.tensor(
        [[3.0, 0.0], [3.0, 0.3], [3.0, -0.6], [0.0, 3.0], [0.3, 3.0], [-0.9, 3.0]]
    )
    stack[4, 1] = torch.tensor([5.0, 6.0])
    stack[0, 2], stack[5, 2] = torch.tensor([1.0, 0.0]), torch.tensor([-3.0, 0.0])
    counts = (stack != 0).any(dim=2) * 9
    prototypes, owner, present = finch_prototypes(stack, counts)
    assert owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert present.tolist() == [True, True, False, True, *[False] * 2, True, *[False] * 5]
    found = torch.stack(sorted(prototypes[:2], key=lambda row: row[0].item()))
    assert torch.allclose(found, torch.tensor([[-0.2, 3.0], [3.0, -0.1]]))
    assert prototypes[3].tolist() == [5, 6]
    assert prototypes[6].tolist() == [-1, 0]
    assert not prototypes[~present].any()
    unbiased, clusters = class_means(prototypes, owner, 4, weights=present)
    assert torch.allclose(unbiased[0], torch.tensor([1.4, 1.45]))
    assert clusters.tolist() == [2, 1, 1, 0]


def first_neighbour_clusters(rows):
    """FINCH written out: link first neighbours, take means, again, until all are one."""
    labels = np.arange(len(rows))
    while True:
        means = np.stack([rows[labels == c].mean(axis=0) for c in range(labels.max() + 1)])
        unit = means / np.linalg.norm(means, axis=1, keepdims=True)
        near = unit @ unit.T - 10 * np.eye(len(unit))
        links = csr_array((np.ones(len(unit)), (np.arange(len(unit)), near.argmax(axis=1))))
        links.resize(len(unit), len(unit))
        count, merged = connected_components(links, directed=False)
        if count == 1:
            return labels if len(unit) < len(rows) else merged[labels]
        labels = merged[labels]


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 8, 13, 20])
def test_finch_prototypes_are_the_last_partition_before_one(clients):
    stack = draw(clients, 12, 5, seed=clients)
    prototypes, owner, present = finch_prototypes(stack, torch.ones(clients, 12))
    assert len(prototypes) == len(owner) == len(present) == 12 * (clients // 2)
    for k in range(12):
        labels = torch.from_numpy(first_neighbour_clusters(stack[:, k].numpy()))
        expected, _ = class_means(stack[:, k], labels, int(labels.max()) + 1)
        found = prototypes[(owner == k) & present]
        order = [rows[:, 0].argsort() for rows in (found, expected)]
        torch.testing.assert_close(found[order[0]], expected[order[1]])


def test_finch_prototypes_of_one_client_are_its_own():
    stack = draw(1, 3, 5)
    prototypes, owner, present = finch_prototypes(stack, torch.tensor([[4, 0, 2]]))
    assert owner.tolist() == [0, 1, 2] and present.tolist() == [True, False, True]
    assert torch.equal(prototypes[present], stack[0, present])


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


# Mixtures.


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
        mixed = fedpall_mix(z, labels, prototypes, generator(seed), mask="bernoulli")
        assert torch.equal(mixed[0], mixed[1])
        kept.append(mixed[0].sum().item())
    # 400 places at 0.9: mean 360, deviation 6.
    assert (
        len(set(kept)) > 5
        and abs(np.mean(kept) - 360) < 6
        and max(map(abs, np.array(kept) - 360)) < 30
    )


def test_rucr_mix_by_hand():
    # Prototypes lie in the first half of the space, directions of features in the second.
    prototypes = F.pad(tensor([0.5], [0.0], [0.25]), (0, 4))
    features = F.pad(4.0 * torch.eye(4, dtype=torch.float64), (1, 0))
    mixed, labels = rucr_mix(
        features, prototypes, torch.tensor([1, 0, 1]), generator(1), per_class=6
    )
    assert labels.tolist() == [0] * 6 + [2] * 6
    for row, label in zip(mixed, labels, strict=True):
        lam = row[0] / prototypes[label, 0]
        assert 0.35 <= lam <= 0.95 and torch.isclose(lam, lam.mul(100).round() / 100)
        assert (row[1:] > 0).sum() == 1 and torch.isclose(row[1:].sum(), 1 - lam)
    used = [rows[:, 1:].argmax(dim=1) for rows in (mixed[:6], mixed[6:])]
    for order in used:
        assert sorted(order[:4].tolist()) == [0, 1, 2, 3]
        assert torch.equal(order[4:], order[:2])
    assert not torch.equal(*used)


def test_mixtures_follow_their_generator():
    z, labels, prototypes = draw(9, 5), torch.arange(9) % 3, draw(3, 5, seed=1)
    present = torch.ones(3)
    for seed, same in ((0, True), (1, False)):
        a = fedpall_mix(z, labels, prototypes, generator())
        b = fedpall_mix(z, labels, prototypes, generator(seed))
        assert torch.equal(a, b) == same
        a, _ = rucr_mix(z, prototypes, present, generator())
        b, _ = rucr_mix(z, prototypes, present, generator(seed))
        assert torch.equal(a, b) == same
