"""Splits and partitions: who gets which images, as printed and in closed form; none twice."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import StratifiedShuffleSplit

from fedrepro.base.protocol import DataSpec
from fedrepro.data.manifest import collection_of
from fedrepro.data.partition import Partition, make_partition
from fedrepro.data.splits import Split, limit_test, make_split
from tests.data.made import one_line

SIZES = {"a": 100, "b": 40, "c": 10}
TABLE = {"rule": "table", "clients": {"a": 3, "b": 2}}
SKEW = {"rule": "dirichlet", "alpha": 5.0, "count": 3}


def allocate(
    seed: int = 0, validation: float = 0, sizes: dict[str, int] = SIZES, **spec: Any
) -> Partition:
    # training images are the even indices, in falling order, so that order can be seen
    pairs = {name: 2 * np.arange(n) for name, n in sizes.items()}
    splits = {name: Split(name, even[::-1], even + 1, "r") for name, even in pairs.items()}
    labels = {name: (np.arange(2 * n) // 2) % 5 for name, n in sizes.items()}
    said = {"split_seed": seed, "validation": validation, "allocation": spec}
    return make_partition(splits, labels, DataSpec(dataset="made", size=8, **said))


def sizes(partition: Partition) -> dict[str, int]:
    return {client.name: len(client) for client in partition.clients}


def validation_of(partition: Partition) -> dict[str, list[int]]:
    assert all([name for name, _ in p] == [d] for d, p in partition.validation.items())
    return {d: pieces[0][1].tolist() for d, pieces in partition.validation.items()}


def held(partition: Partition, domain: str) -> list[int]:
    return [i for c in partition.clients for d, part in c.train if d == domain for i in part]


def trained(n: int) -> list[int]:
    return list(range(0, 2 * n, 2))


def lengths(pieces: Any) -> dict[str, int]:
    return {source: len(indices) for source, indices in pieces}


@pytest.mark.parametrize(
    ("spec", "hash"),
    [
        ({}, "e84d6fde1f81"),
        ({"per_client": 5, "validation": 3}, "2bcada43a351"),
        ({"validation": 0.5, "draw": "first"}, "fa848f764f20"),
        ({**TABLE, "per_client": 6, "every_class": True}, "3c1e92042857"),
        ({**TABLE, "by_class": True}, "ab3ef5b86bb5"),
        ({**TABLE, "cut_tests": True, "validation": 0.4}, "f0220ddcddd6"),
        ({"rule": "mixed", "ratio": 0.3, "by_class": True}, "b95c7e4fe0c3"),
        ({"rule": "mixed", "ratio": 0.25, "per_client": 10, "validation": 20}, "50b85e054e67"),
        ({**SKEW, "alpha": 0.5, "count": 4, "per_client": "smallest"}, "930521bcb2fe"),
        ({**SKEW, "per_client": 0.5, "validation": 9}, "c1cbded6bcac"),
    ],
)
def test_nobodys_images_have_moved(spec, hash):
    """Hashes of what each rule gave out when the published runs were recorded."""
    assert allocate(1, **spec).hash.startswith(hash)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({**TABLE, "clients": {"x": 1}, "cut_tests": True}, "'x'; the domains are a, b, c"),
        ({"rule": "table"}, "set allocation.clients"),
        ({"rule": "table", "clients": {"a": -1}}, "a = -1"),
        ({"rule": "table", "clients": {"a": 4}, "per_client": 0.3}, "4 client.s. of 0.3 each"),
        ({"rule": "table", "clients": {"c": 8}}, "c-3 1 image"),
        ({"per_client": 1.5}, "a fraction is above 0"),
        ({"rule": "dirichlet", "alpha": 0.5}, "allocation.alpha and allocation.count"),
        ({"rule": "dirichlet", "alpha": 0.001, "count": 70}, "raise alpha or lower count"),
        ({**SKEW, "per_client": 140}, "lower per_client"),
        ({"rule": "mixed", "ratio": 0.5, "sizes": {"a": 10}}, "two domains or more"),
        ({"per_client": {"a": 4, "b": 4}}, "has no value for c"),
        ({"rule": "table", "clients": {"a": 2}, "by_class": True, "per_client": 5}, "to all"),
        ({"rule": "table", "clients": {"c": 3}, "every_class": True}, "not every client of c"),
        ({**TABLE, "by_class": True, "every_class": True}, "leave one of them out"),
        ({**SKEW, "remainder": True}, "assigns images itself"),
        ({**TABLE, "cut_tests": True, "validation": 3.0}, "a share is between 0 and 1"),
        ({"validation": 0.1, "sizes": {"a": 0}}, "a cannot be split by class: 0 images"),
    ],
)
def test_impossible_wishes_are_one_clear_line(spec, says):
    with one_line(says):
        allocate(**spec)


def test_mixing_hands_a_share_to_the_neighbour_and_loses_nothing():
    result = allocate(rule="mixed", ratio=0.3)
    pieces = {c.name: lengths(c.train) for c in result.clients}
    assert pieces == {"a": {"a": 70, "b": 12}, "b": {"b": 28, "c": 3}, "c": {"c": 7, "a": 30}}
    assert {d: lengths(p) for d, p in result.tests.items()} == pieces  # tested on what it holds
    for name, n in SIZES.items():
        assert sorted(held(result, name)) == trained(n)
        tested = [i for p in result.tests.values() for d, part in p if d == name for i in part]
        assert sorted(tested) == list(range(1, 2 * n, 2))
    swapped = allocate(rule="mixed", ratio=0.5, per_client="smallest", sizes={"a": 100, "b": 40})
    assert sizes(swapped) == {"a": 40, "b": 40}
    assert lengths(swapped.clients[0].train) == {"a": 20, "b": 20}


@pytest.mark.parametrize(
    ("train", "clients", "each"), [(3531, 4, [1059] * 3 + [354]), (1499, 3, [449] * 3)]
)
def test_the_last_client_of_a_short_domain_gets_what_is_left(train, clients, each):
    table = {"rule": "table", "clients": {"sketch": clients}, "sizes": {"sketch": train}}
    result = allocate(**table, per_client=0.3, remainder=True)
    assert list(sizes(result).values()) == each


def test_every_client_can_hold_every_class():
    spec = {"rule": "table", "clients": {"d": 6}, "per_client": 6, "sizes": {"d": 60}}
    plain, full = allocate(seed=3, **spec), allocate(seed=3, every_class=True, **spec)
    fewest = [
        min(len(set((c.train[0][1] // 2) % 5)) for c in partition.clients)
        for partition in (plain, full)
    ]
    assert fewest[0] < fewest[1] == 5
    assert sizes(full) == sizes(plain) and len(set(held(full, "d"))) == 36


def test_each_class_is_divided_evenly_among_a_domains_clients():
    result = allocate(rule="table", clients={"a": 3}, by_class=True, draw="first")
    counts = [np.bincount((c.train[0][1] // 2) % 5, minlength=5) for c in result.clients]
    assert np.ptp(counts, axis=0).max() <= 1
    assert sorted(held(result, "a")) == trained(SIZES["a"])
    # class 4 of domain a lies at 198, 188, ..., in the split's order
    assert [i for i in result.clients[0].train[0][1] if (i // 2) % 5 == 4][:2] == [198, 188]


def test_a_share_for_validation_is_set_aside_by_class_before_clients_get_theirs():
    """MPFT: a fifth of the training images, scikit-learn's stratified shuffle with state 1."""
    wide = {"a": 100, "b": 40, "c": 50}
    result = allocate(1, validation=0.2, sizes=wide)
    aside = validation_of(result)
    assert {d: len(v) for d, v in aside.items()} == {"a": 20, "b": 8, "c": 10}
    for domain, indices in aside.items():
        assert sorted([*indices, *held(result, domain)]) == trained(wide[domain])
    train = 2 * np.arange(100)[::-1]
    rule = StratifiedShuffleSplit(n_splits=1, test_size=0.2, random_state=1)
    ((_, expected),) = rule.split(train, (train // 2) % 5)
    assert aside["a"] == sorted(train[expected].tolist())
    mixed = allocate(1, validation=0.2, rule="mixed", ratio=0.5, sizes=wide).validation
    assert {d: lengths(pieces) for d, pieces in mixed.items()} == {
        "a": {"a": 10, "b": 4}, "b": {"b": 4, "c": 5}, "c": {"c": 5, "a": 10},
    }  # fmt: skip


def domain(counts, name="amazon", part=None, shuffle=False, cut=None):
    labels = np.repeat(np.arange(len(counts)), counts).astype(np.int64)
    if shuffle:
        labels = np.random.default_rng(0).permutation(labels)
    part = np.full(len(labels), -1) if part is None else part
    return SimpleNamespace(name=name, labels=labels, part=np.asarray(part, np.int8), cut=cut)


def is_partition(split: Split, n: int) -> bool:
    return sorted([*split.train, *split.test]) == list(range(n))


def test_pooled_stratified_has_fedbns_size_of_usps_and_any_other_share():
    d = domain([929] * 8 + [933] * 2, shuffle=True)
    for share, test in ((None, 1_860), (0.3, 2_790)):
        split = make_split(d, "pooled-stratified", 0, share)
        assert len(split.test) == test and is_partition(split, 9_298)
        shares = np.bincount(d.labels[split.test]) / np.bincount(d.labels)
        assert np.abs(shares - (share or 0.2)).max() < 1e-3


# Test images of each domain as the papers print them.
PRINTED = {
    "random-fifth": {"amazon": 192, "caltech": 225, "dslr": 32, "webcam": 59},  # ADCOL, Table 3
    "class-first": {"amazon": 192, "caltech": 225, "dslr": 31, "webcam": 58},  # FedPall
    "class-first-floor": {"photo": 337, "art_painting": 411, "cartoon": 471, "sketch": 788},
    "every-tenth": {"caltech": 224, "amazon": 190, "webcam": 58, "dslr": 30},  # the FPL family
}


@pytest.mark.parametrize("rule", PRINTED)
def test_splits_have_the_sizes_the_papers_print(rule):
    for name, printed in PRINTED[rule].items():
        counts = collection_of(name).domains[name].counts
        split = make_split(domain(counts, name), rule, 0)
        assert len(split.test) == printed and is_partition(split, sum(counts))


GOLDEN = {
    "pooled-stratified": "e28268ff1b49", "pooled-leaky": "9a18f17a2ce4",
    "official": "13acdb31765d", "official-leaky": "5966d758dc3c", "random-fifth": "3dfcbdbf6980",
    "class-first": "6d1af3c14691", "class-first-floor": "e4b136d860a5",
    "every-tenth": "4ad38b90ce6e",
}  # fmt: skip


@pytest.mark.parametrize("rule", GOLDEN)
def test_no_split_has_moved(rule):
    """Hashes of each rule's split as it was when the published runs were recorded."""
    made = domain([50, 30, 20], "d", part=[0, 0, 0, 2, 0] * 20, shuffle=True)
    assert make_split(made, rule, 1).hash.startswith(GOLDEN[rule])


@pytest.mark.parametrize(
    ("counts", "part", "rule", "share", "message"),
    [
        ([3, 3], None, "official", None, "no official parts"),
        ([3, 3], [0] * 6, "official", None, "6 training and 0 test"),
        ([4, 4], [0, 1] * 4, "official-leaky", None, "no official test list that names the whole"),
        ([9, 1], None, "pooled-stratified", None, "cannot be split by class"),
        ([50, 50], None, "every-tenth", 0.3, "has its own test share"),
    ],
)
def test_impossible_splits_are_one_clear_line(counts, part, rule, share, message):
    with one_line(message):
        make_split(domain(counts, part=part), rule, 0, share)


@pytest.mark.parametrize("rule", [r for r in GOLDEN if "leaky" not in r and "floor" not in r])
def test_a_cut_domain_is_only_ever_cut_by_index(rule):
    d = domain([500, 500], "svhn", [1] * 1000, shuffle=True, cut=(800, 810))
    split = make_split(d, rule, 0)
    assert split.rule == "index-range"
    assert split.train.tolist() == list(range(800))
    assert split.test.tolist() == list(range(810, 1000))


def test_validation_images_train_where_there_is_a_test_part():
    split = make_split(domain([3, 3], part=[0, 0, 2, 1, 0, 1]), "official", 0)
    assert (split.train.tolist(), split.test.tolist()) == ([0, 1, 2, 4], [3, 5])


def test_a_limited_test_set_keeps_class_shares_within_one_image():
    d = domain([400, 100, 20], "mnist", shuffle=True)
    split = make_split(d, "every-tenth", 0)
    small, other = (limit_test(split, d.labels, 26, seed) for seed in (0, 1))
    exact = 26 * np.bincount(d.labels[split.test]) / len(split.test)
    assert len(small.test) == 26 and set(small.test) <= set(split.test)
    assert np.abs(np.bincount(d.labels[small.test], minlength=3) - exact).max() <= 1
    assert small.hash != split.hash and small.test.tolist() != other.test.tolist()
