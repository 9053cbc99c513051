"""Partition rules: who gets which images, in closed form; nobody's image twice."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import AllocationSpec
from fedrepro.data.partition import Partition, every_class, make_partition
from fedrepro.data.splits import Split

SIZES = {"a": 100, "b": 40, "c": 10}


def allocate(
    seed: int = 0, validation: int | float = 0, sizes: dict[str, int] | None = None, **spec: Any
) -> Partition:
    sizes = sizes or SIZES
    splits, labels = {}, {}
    for name, n in sizes.items():
        # training images are the even indices, in falling order, so that order can be seen
        splits[name] = Split(name, 2 * np.arange(n)[::-1], 2 * np.arange(n) + 1, "r")
        labels[name] = (np.arange(2 * n) // 2) % 5
    return make_partition(splits, labels, AllocationSpec(**spec), seed, validation)


def sizes(partition: Partition) -> dict[str, int]:
    return {client.name: len(client) for client in partition.clients}


def validation_of(partition: Partition) -> dict[str, list[int]]:
    """Validation images by the domain they come from and stand for."""
    assert all([name for name, _ in p] == [d] for d, p in partition.validation.items())
    return {d: pieces[0][1].tolist() for d, pieces in partition.validation.items()}


def held(partition: Partition, domain: str) -> list[int]:
    return [i for c in partition.clients for d, part in c.train if d == domain for i in part]


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
        ({"per_client": {"a": 4, "b": 4}}, "says nothing of c"),
        ({"per_client": {"a": 101, "b": 4, "c": 4}}, "wants 101 training images of a"),
        ({"rule": "table", "clients": {"a": 2}, "by_class": True, "per_client": 5}, "to all"),
        ({"rule": "table", "clients": {"c": 3}, "every_class": True}, "not every client of c"),
        ({"rule": "table", "clients": {"a": 5}, "per_client": 0.3, "remainder": True}, "5 client"),
        ({"rule": "dirichlet", "alpha": 1.0, "count": 3, "remainder": True}, "not for it"),
        ({"rule": "dirichlet", "alpha": 1.0, "count": 3, "per_client": {"a": 1}}, "one per_client"),
        ({"validation": 1.5}, "a share lies between 0 and 1"),
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
    tests = {d: {source: len(part) for source, part in p} for d, p in result.tests.items()}
    assert tests == pieces  # a client is tested on what it holds
    for name, n in SIZES.items():
        tested = [i for p in result.tests.values() for d, part in p if d == name for i in part]
        assert sorted(tested) == list(range(1, 2 * n, 2))
    swapped = allocate(rule="mixed", ratio=0.5, per_client="smallest", sizes={"a": 100, "b": 40})
    assert sizes(swapped) == {"a": 40, "b": 40}
    assert {d: len(p) for d, p in swapped.clients[0].train} == {"a": 20, "b": 20}
    untouched = allocate(rule="mixed", ratio=0.0)
    assert sizes(untouched) == SIZES


def class_counts(result: Partition, n: int) -> np.ndarray:
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
    assert {d: len(v) for d, v in validation_of(result).items()} == {"a": 25, "b": 25}
    for domain, indices in validation_of(result).items():
        assert not set(indices) & set(held(result, domain))
        assert all(i % 2 == 0 and i < 2 * SIZES[domain] for i in indices)
    assert allocate(validation=25).validation == {}
    assert allocate(per_client="smallest").validation == {}
    # a domain without clients can still be watched
    watched = validation_of(allocate(rule="table", clients={"a": 1}, validation=4))
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
        allocate(validation=0.5),
        allocate(rule="table", clients={"a": 2}),
        allocate(rule="table", clients={"a": 2}, by_class=True),
    ]
    assert len({v.hash for v in variants}) == len(variants)
    assert allocate().hash == variants[0].hash
    mixed = allocate(rule="mixed", ratio=0.2)
    (own, (other, part)) = mixed.tests["a"]
    fewer = replace(mixed, tests={**mixed.tests, "a": (own, (other, part[1:]))})
    assert fewer.hash != mixed.hash


def test_counts_by_domain() -> None:
    counts = {"a": 9, "b": 0.5, "c": 3}
    assert sizes(allocate(per_client=counts)) == {"a": 9, "b": 20, "c": 3}
    table = allocate(rule="table", clients={"a": 2, "b": 2}, per_client={"a": 9, "b": 0.5})
    assert sizes(table) == {"a-1": 9, "a-2": 9, "b-1": 20, "b-2": 20}


@pytest.mark.parametrize(
    ("train", "clients", "each"), [(3531, 4, [1059] * 3 + [354]), (1499, 3, [449] * 3)]
)
def test_the_last_client_of_a_short_domain_gets_what_is_left(
    train: int, clients: int, each: list[int]
) -> None:
    """I2PFL's four sketch clients of 30 % each."""
    result = allocate(
        sizes={"sketch": train},
        rule="table",
        clients={"sketch": clients},
        per_client=0.3,
        remainder=True,
    )
    assert list(sizes(result).values()) == each
    assert len(set(held(result, "sketch"))) == sum(each)


def labels_held(partition: Partition) -> list[set[int]]:
    return [{(i // 2) % 5 for _, part in c.train for i in part} for c in partition.clients]


def test_every_client_can_hold_every_class() -> None:
    spec = {"rule": "table", "clients": {"d": 6}, "per_client": 6, "sizes": {"d": 60}}
    plain, full = allocate(seed=3, **spec), allocate(seed=3, every_class=True, **spec)
    assert any(len(classes) < 5 for classes in labels_held(plain))
    assert all(len(classes) == 5 for classes in labels_held(full))
    assert sizes(full) == sizes(plain) and len(set(held(full, "d"))) == 36
    assert set(held(full, "d")) <= set(range(0, 120, 2))
    # only as many images move as classes are missing
    moved = sum(
        len(set(a.train[0][1]) - set(b.train[0][1]))
        for a, b in zip(full.clients, plain.clients, strict=True)
    )
    missing = sum(5 - len(classes) for classes in labels_held(plain))
    assert missing <= moved <= 2 * missing
    assert held(allocate(seed=3, every_class=True, **spec), "d") == held(full, "d")


def test_the_last_image_of_a_class_is_found_with_the_client_that_has_two() -> None:
    """Nobody's images are not needed: all are somebody's."""
    label = np.array([1, 1, 2, 2, 3, 3, 0, 0, 0, 0])
    owner = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    rng = np.random.default_rng(0)
    order = every_class("d", label, owner, 2, rng)
    assert sorted(order) == list(range(10))
    assert [set(label[order][owner == client]) for client in (0, 1)] == [{0, 1, 2, 3}] * 2
    with pytest.raises(FedReproError, match="set every_class to false"):
        every_class("d", np.array([0, 1, 0]), np.array([0, 0, 1]), 2, rng)


@pytest.mark.parametrize("parts", [3, 4, 5])
def test_each_class_is_divided_evenly_among_a_domains_clients(parts: int) -> None:
    """MPFT's 18, 24 and 30 clients."""
    table = {"a": parts, "b": parts}
    result = allocate(rule="table", clients=table, by_class=True)
    for domain in table:
        mine = [c for c in result.clients if c.domain == domain]
        counts = np.array([np.bincount((c.train[0][1] // 2) % 5, minlength=5) for c in mine])
        assert np.ptp(counts, axis=0).max() <= 1
        assert sorted(held(result, domain)) == list(range(0, 2 * SIZES[domain], 2))
    first = allocate(rule="table", clients=table, by_class=True, draw="first")
    # class 4 of domain a lies at 198, 188, ..., in the split's order
    assert [i for i in first.clients[0].train[0][1] if (i // 2) % 5 == 4][:2] == [198, 188]


def test_mixing_by_class_takes_the_share_of_each_class() -> None:
    result = allocate(rule="mixed", ratio=0.25, by_class=True, sizes={"a": 100, "b": 40})
    handed = result.clients[1].train[1]
    assert handed[0] == "a" and np.bincount((handed[1] // 2) % 5).tolist() == [5] * 5


def test_a_share_for_validation_is_set_aside_by_class_before_clients_get_theirs() -> None:
    """MPFT: a fifth of the training images, scikit-learn's stratified shuffle with state 1."""
    from sklearn.model_selection import StratifiedShuffleSplit

    wide = {"a": 100, "b": 40, "c": 50}
    result = allocate(1, validation=0.2, sizes=wide)
    aside = validation_of(result)
    assert {d: len(v) for d, v in aside.items()} == {"a": 20, "b": 8, "c": 10}
    for domain, indices in aside.items():
        whole = sorted([*indices, *held(result, domain)])
        assert whole == list(range(0, 2 * wide[domain], 2))
    train = 2 * np.arange(100)[::-1]
    rule = StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=1)
    ((_, expected),) = rule.split(train, (train // 2) % 5)
    assert aside["a"] == sorted(train[expected].tolist())
    half = allocate(validation=0.5, per_client=0.1, sizes=wide)
    assert sizes(half) == {"a": 5, "b": 2, "c": 2}  # fractions are of what is left
    first = allocate(1, validation=0.2, sizes=wide, draw="first")
    assert held(first, "a") == [i for i in train.tolist() if i not in aside["a"]]
    mixed = allocate(1, validation=0.2, rule="mixed", ratio=0.5, sizes=wide)
    lengths = {d: [(s, len(i)) for s, i in pieces] for d, pieces in mixed.validation.items()}
    assert lengths == {
        "a": [("a", 10), ("b", 4)],
        "b": [("b", 4), ("c", 5)],
        "c": [("c", 5), ("a", 10)],
    }


def test_validation_left_over_is_mixed_as_the_training_images_are() -> None:
    few = {"a": 50, "b": 40, "c": 10}
    result = allocate(rule="mixed", ratio=0.5, per_client=few, validation=20)
    lengths = {d: [(s, len(i)) for s, i in pieces] for d, pieces in result.validation.items()}
    assert lengths == {"a": [("a", 10), ("b", 0)], "c": [("c", 0), ("a", 10)]}


def test_the_hash_of_an_allocation_recorded_before_settings_were_added_is_the_same() -> None:
    """Worked out by hand: the rule as it was dumped then, then clients, indices and validation."""
    sizes = {"a": 6, "b": 4}
    result = allocate(validation=1, sizes=sizes, draw="first", per_client=3)
    rule = (
        '{"rule":"domain","clients":{},"count":null,"alpha":null,"ratio":null,"per_client":3,'
        '"draw":"first"}'
    )
    digest = hashlib.sha256(rule.encode())
    for name, train in (("a", [10, 8, 6]), ("b", [6, 4, 2])):
        digest.update(f"|{name}|{name}|{name}|3:".encode() + np.array(train, "<i8").tobytes())
    for name, (index,) in validation_of(result).items():
        digest.update(f"|validation|{name}|1:".encode() + np.array([index], "<i8").tobytes())
    assert result.hash == digest.hexdigest()


@pytest.mark.parametrize(
    ("domains", "drawn", "each_once", "table"),
    [
        (["mnist", "usps", "svhn", "syn"], 20, False, [6, 4, 3, 7]),
        (["caltech", "amazon", "webcam", "dslr"], 6, True, [3, 2, 1, 4]),
        (["photo", "art_painting", "cartoon", "sketch"], 6, True, [3, 2, 1, 4]),
    ],
)
def test_the_printed_tables_of_i2pfl_are_those_of_numpys_seed_0(
    domains: list[str], drawn: int, each_once: bool, table: list[int]
) -> None:
    """The rule of the public code it follows: draws with replacement from the list of domains,
    for pictures one of each besides; so the tables can be given as they are printed."""
    found = np.random.RandomState(0).choice(domains, size=drawn, replace=True).tolist()
    found += domains if each_once else []
    assert [found.count(name) for name in domains] == table
