"""Allocation rules: who gets which images, in closed form; nobody's image twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedrepro.data.allocation import Allocation, make_allocation
from fedrepro.data.splits import Split
from fedrepro.errors import FedReproError
from fedrepro.protocol import AllocationSpec

SIZES = {"a": 100, "b": 40, "c": 10}


def allocate(
    seed: int = 0, validation: int = 0, sizes: dict[str, int] | None = None, **spec: Any
) -> Allocation:
    sizes = sizes or SIZES
    splits, labels = {}, {}
    for name, n in sizes.items():
        # training images are the even indices, in falling order, so that order can be seen
        splits[name] = Split(name, 2 * np.arange(n)[::-1], 2 * np.arange(n) + 1, "r")
        labels[name] = (np.arange(2 * n) // 2) % 5
    return make_allocation(splits, labels, AllocationSpec(**spec), seed, validation)


def sizes(allocation: Allocation) -> dict[str, int]:
    return {client.name: len(client) for client in allocation.clients}


def held(allocation: Allocation, domain: str) -> list[int]:
    return [i for c in allocation.clients for d, part in c.train if d == domain for i in part]


def test_one_client_per_domain_holds_its_whole_training_split() -> None:
    result = allocate()
    assert sizes(result) == SIZES
    assert [c.domain for c in result.clients] == ["a", "b", "c"]
    assert sorted(held(result, "b")) == list(range(0, 80, 2))


def test_cut_to_the_smallest_or_to_a_count() -> None:
    assert sizes(allocate(per_client="smallest")) == {"a": 10, "b": 10, "c": 10}
    assert sizes(allocate(per_client=7)) == {"a": 7, "b": 7, "c": 7}
    with pytest.raises(FedReproError, match="wants 11 training images of c, which has 10"):
        allocate(per_client=11)


def test_random_draws_differ_by_seed_and_domain_first_takes_the_splits_order() -> None:
    first = allocate(per_client=3, draw="first")
    assert held(first, "a") == [198, 196, 194]
    same = allocate(per_client=30, sizes={"a": 100, "z": 100})
    other = allocate(per_client=30, sizes={"a": 100, "z": 100}, seed=1)
    assert held(same, "a") != held(other, "a") and held(same, "a") != held(same, "z")
    # adding a domain does not shift another's draw
    assert held(same, "a") == held(allocate(per_client=30, sizes={"a": 100}), "a")


@pytest.mark.parametrize(
    ("train", "tenth"),
    [(56_000, 5_600), (79_431, 7_943), (7_438, 743), (391_162, 39_116)],
)
def test_the_first_tenth_has_the_client_sizes_of_fedpall(train: int, tenth: int) -> None:
    result = allocate(sizes={"d": train}, per_client=0.1, draw="first")
    assert held(result, "d") == (2 * np.arange(train)[::-1][:tenth]).tolist()


@pytest.mark.parametrize(
    ("train", "share", "each"),
    [(60_000, 0.01, 600), (7_291, 0.01, 72), (73_257, 0.01, 732), (899, 0.2, 179), (100, 0.29, 29)],
)
def test_fractions_round_down_as_in_the_fpl_family(train: int, share: float, each: int) -> None:
    result = allocate(sizes={"d": train}, rule="table", clients={"d": 3}, per_client=share)
    assert sizes(result) == {"d-1": each, "d-2": each, "d-3": each}
    assert len(set(held(result, "d"))) == 3 * each


def test_a_table_names_clients_and_divides_what_there_is() -> None:
    result = allocate(rule="table", clients={"b": 3, "a": 1})
    assert sizes(result) == {"a": 100, "b-1": 14, "b-2": 13, "b-3": 13}
    assert sorted(held(result, "b")) == list(range(0, 80, 2))
    even = allocate(rule="table", clients={"a": 4, "b": 3}, per_client="smallest")
    assert set(sizes(even).values()) == {13}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"rule": "table", "clients": {"x": 1}}, "'x'; the domains are a, b, c"),
        ({"rule": "table"}, "set allocation.clients"),
        ({"rule": "table", "clients": {"a": 0}}, "set allocation.clients"),
        ({"rule": "table", "clients": {"a": -1}}, "a = -1"),
        ({"rule": "table", "clients": {"a": 4}, "per_client": 0.3}, "4 client.s. of 0.3 each"),
        ({"rule": "table", "clients": {"a": 4}, "per_client": 26}, "104 training images of a"),
        ({"rule": "table", "clients": {"c": 8}}, "c-3 1 image"),
        ({"per_client": 1.5}, "a fraction lies above 0"),
        ({"per_client": -0.5}, "a fraction lies above 0"),
        ({"per_client": 0}, "at least 1 image"),
        ({"per_client": 0.001}, "client a 0 image"),
        ({"rule": "dirichlet", "count": 3}, "allocation.alpha and allocation.count"),
        ({"rule": "dirichlet", "alpha": 0.5}, "allocation.alpha and allocation.count"),
        ({"rule": "dirichlet", "alpha": 0.001, "count": 70}, "raise alpha or lower count"),
        ({"rule": "dirichlet", "alpha": 1.0, "count": 3, "per_client": 140}, "lower per_client"),
        ({"rule": "mixed"}, "set allocation.ratio"),
    ],
)
def test_impossible_wishes_are_one_clear_line(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(FedReproError, match=says) as caught:
        allocate(**spec)
    assert "\n" not in str(caught.value)


def test_mixing_one_domain_alone_is_refused() -> None:
    with pytest.raises(FedReproError, match="two domains or more"):
        allocate(sizes={"a": 10}, rule="mixed", ratio=0.5)


def test_mixing_hands_a_share_to_the_neighbour_and_loses_nothing() -> None:
    result = allocate(rule="mixed", ratio=0.3)
    pieces = {c.name: {d: len(part) for d, part in c.train} for c in result.clients}
    assert pieces == {"a": {"a": 70, "b": 12}, "b": {"b": 28, "c": 3}, "c": {"c": 7, "a": 30}}
    for name, n in SIZES.items():
        assert sorted(held(result, name)) == list(range(0, 2 * n, 2))
    swapped = allocate(rule="mixed", ratio=0.5, per_client="smallest", sizes={"a": 100, "b": 40})
    assert sizes(swapped) == {"a": 40, "b": 40}
    assert {d: len(p) for d, p in swapped.clients[0].train} == {"a": 20, "b": 20}
    untouched = allocate(rule="mixed", ratio=0.0)
    assert sizes(untouched) == SIZES


def class_counts(result: Allocation, n: int) -> np.ndarray:
    labels = (np.arange(2 * n) // 2) % 5
    return np.array(
        [np.bincount(labels[c.train[0][1]], minlength=5) for c in result.clients], dtype=float
    )


def test_dirichlet_gives_every_image_once_and_names_the_clients() -> None:
    result = allocate(rule="dirichlet", alpha=0.5, count=4)
    assert [c.name for c in result.clients] == ["pooled-1", "pooled-2", "pooled-3", "pooled-4"]
    assert {c.domain for c in result.clients} == {"pooled"}
    for name, n in SIZES.items():
        assert sorted(held(result, name)) == list(range(0, 2 * n, 2))
    alone = allocate(rule="dirichlet", alpha=0.5, count=2, sizes={"cifar10": 100})
    assert [(c.name, c.domain) for c in alone.clients] == [
        ("cifar10-1", "cifar10"),
        ("cifar10-2", "cifar10"),
    ]


def test_dirichlet_skew_follows_alpha() -> None:
    # a share of Dir_N(alpha) has variance (1/N)(1 - 1/N) / (N alpha + 1)
    for alpha in (0.5, 50.0):
        shares = []
        for seed in range(40):
            result = allocate(seed, rule="dirichlet", alpha=alpha, count=4, sizes={"d": 2000})
            shares.append(class_counts(result, 2000) / 400)
        expected = 0.25 * 0.75 / (4 * alpha + 1)
        assert abs(np.var(shares) / expected - 1) < 0.25
        np.testing.assert_allclose(np.mean(shares, axis=0).sum(0), 1.0)


def test_dirichlet_clients_can_be_cut() -> None:
    cut = allocate(rule="dirichlet", alpha=5.0, count=4, per_client="smallest")
    full = allocate(rule="dirichlet", alpha=5.0, count=4)
    assert set(sizes(cut).values()) == {min(sizes(full).values())}
    half = allocate(rule="dirichlet", alpha=5.0, count=4, per_client=0.5)
    assert sizes(half) == {name: n // 2 for name, n in sizes(full).items()}
    assert set(held(half, "a")) <= set(held(full, "a"))


def test_validation_comes_from_what_no_client_holds() -> None:
    result = allocate(per_client="smallest", validation=25)
    assert {d: len(v) for d, v in result.validation.items()} == {"a": 25, "b": 25}
    for domain, indices in result.validation.items():
        assert not set(indices) & set(held(result, domain))
        assert all(i % 2 == 0 and i < 2 * SIZES[domain] for i in indices)
    assert allocate(validation=25).validation == {}
    assert allocate(per_client="smallest").validation == {}
    # a domain without clients can still be watched
    watched = allocate(rule="table", clients={"a": 1}, validation=4).validation
    assert {d: len(v) for d, v in watched.items()} == {"b": 4, "c": 4}


def test_the_hash_follows_everything_that_is_given_out() -> None:
    variants = [
        allocate(),
        allocate(1),
        allocate(draw="first"),
        allocate(per_client=5),
        allocate(per_client=5, validation=3),
        allocate(per_client=5, validation=3, seed=1),
        allocate(rule="mixed", ratio=0.2),
        allocate(rule="mixed", ratio=0.21),
    ]
    assert len({v.hash for v in variants}) == len(variants)
    assert allocate().hash == variants[0].hash
