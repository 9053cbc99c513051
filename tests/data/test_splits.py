"""Split rules: sizes the papers print, closed forms, and what may never be mixed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.data.splits import Split, limit_test, make_split

# images per class, from the data's provenance
OFFICE = {
    "amazon": [92, 82, 94, 99, 100, 100, 99, 100, 94, 98],
    "caltech": [151, 110, 100, 138, 85, 128, 133, 94, 87, 97],
    "dslr": [12, 21, 12, 13, 10, 24, 22, 12, 8, 23],
    "webcam": [29, 21, 31, 27, 27, 30, 43, 30, 27, 30],
}

PACS = {
    "photo": [189, 202, 182, 186, 199, 280, 432],
    "art_painting": [379, 255, 285, 184, 201, 295, 449],
    "cartoon": [389, 457, 346, 135, 324, 288, 405],
    "sketch": [772, 740, 753, 608, 816, 80, 160],
}


def domain(
    counts: list[int],
    name: str = "amazon",
    cut: tuple[int, int] | None = None,
    part: Any = None,
    shuffle: bool = False,
) -> Any:
    labels = np.repeat(np.arange(len(counts)), counts).astype(np.int64)
    if shuffle:
        labels = np.random.default_rng(0).permutation(labels)
    part = np.full(len(labels), -1, dtype=np.int8) if part is None else np.asarray(part, np.int8)
    return SimpleNamespace(name=name, labels=labels, part=part, cut=cut)


def is_partition(split: Split, n: int) -> bool:
    return sorted([*split.train, *split.test]) == list(range(n))


@pytest.mark.parametrize(
    ("images", "train", "test"),
    [(70_000, 56_000, 14_000), (99_289, 79_431, 19_858), (9_298, 7_438, 1_860)],
)
def test_pooled_stratified_has_the_digit_sizes_of_fedbn(images: int, train: int, test: int) -> None:
    base = [images // 10] * 9
    d = domain([*base, images - sum(base)], shuffle=True)
    split = make_split(d, "pooled-stratified", 0)
    assert (len(split.train), len(split.test)) == (train, test)
    assert is_partition(split, images)
    shares = np.bincount(d.labels[split.test]) / np.bincount(d.labels)
    assert np.abs(shares - 0.2).max() < 1e-3


def test_pooled_stratified_is_the_split_of_scikit_learn_with_that_state() -> None:
    from sklearn.model_selection import train_test_split

    d = domain([50, 50], shuffle=True)
    train, _ = train_test_split(np.arange(100), test_size=0.2, stratify=d.labels, random_state=3)
    assert make_split(d, "pooled-stratified", 3).train.tolist() == train.tolist()


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("amazon", 766, 192), ("caltech", 898, 225), ("dslr", 125, 32), ("webcam", 236, 59)],
)
def test_random_fifth_has_the_sizes_of_adcol_table_3(name: str, train: int, test: int) -> None:
    d = domain(OFFICE[name], name)
    split = make_split(d, "random-fifth", 0)
    assert (len(split.train), len(split.test)) == (train, test)
    assert is_partition(split, len(d.labels))
    assert split.hash == make_split(d, "random-fifth", 0).hash
    assert split.hash != make_split(d, "random-fifth", 1).hash


@pytest.mark.parametrize(
    ("name", "test"), [("amazon", 192), ("caltech", 225), ("dslr", 31), ("webcam", 58)]
)
def test_class_first_has_the_test_sizes_fedpall_prints(name: str, test: int) -> None:
    split = make_split(domain(OFFICE[name], name), "class-first", 0)
    assert len(split.test) == test
    assert is_partition(split, sum(OFFICE[name]))


@pytest.mark.parametrize(
    ("name", "test"), [("photo", 337), ("art_painting", 411), ("cartoon", 471), ("sketch", 788)]
)
def test_class_first_floor_has_the_pacs_test_sizes_fedpall_prints(name: str, test: int) -> None:
    assert len(make_split(domain(PACS[name], name), "class-first-floor", 0).test) == test


def test_class_first_takes_the_head_of_each_class_and_both_roundings() -> None:
    d = domain([4, 6])  # 0.8 n = 3.2 and 4.8
    assert make_split(d, "class-first", 0).train.tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    assert make_split(d, "class-first-floor", 0).train.tolist() == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("name", "test"), [("caltech", 224), ("amazon", 190), ("webcam", 58), ("dslr", 30)]
)
def test_every_tenth_has_the_test_sizes_of_the_fpl_family(name: str, test: int) -> None:
    split = make_split(domain(OFFICE[name], name), "every-tenth", 0)
    assert len(split.test) == test
    assert set(split.test % 10) == {8, 9}
    assert is_partition(split, sum(OFFICE[name]))


def test_official_parts_and_where_validation_images_go() -> None:
    with_test = domain([3, 3], part=[0, 0, 2, 1, 0, 1])
    assert make_split(with_test, "official", 0).train.tolist() == [0, 1, 2, 4]
    assert make_split(with_test, "official", 0).test.tolist() == [3, 5]
    without_test = domain([3, 3], part=[0, 0, 2, 0, 0, 2])
    assert make_split(without_test, "official", 0).test.tolist() == [2, 5]
    with pytest.raises(FedReproError, match="no official parts"):
        make_split(domain([3, 3]), "official", 0)
    with pytest.raises(FedReproError, match="6 training and 0 test"):
        make_split(domain([3, 3], part=[0] * 6), "official", 0)


@pytest.mark.parametrize(
    "rule", ["pooled-stratified", "official", "random-fifth", "class-first", "every-tenth"]
)
def test_a_cut_domain_is_only_ever_cut_by_index(rule: str) -> None:
    d = domain([500, 500], "svhn", cut=(800, 810), part=[1] * 1000, shuffle=True)
    split = make_split(d, rule, 0)
    assert split.rule == "index-range"
    assert split.train.tolist() == list(range(800))
    assert split.test.tolist() == list(range(810, 1000))


def test_a_cut_that_does_not_fit_the_file_is_refused() -> None:
    with pytest.raises(FedReproError, match="cannot be cut"):
        make_split(domain([5, 5], "svhn", cut=(8000, 8010)), "official", 0)


def test_the_whole_domain_as_test_set_is_one_rules_privilege() -> None:
    lists = domain([4, 4], part=[0, 0, 2, 0, 0, 2, 0, 0])
    leaky = make_split(lists, "official-leaky", 0)
    assert leaky.train.tolist() == [0, 1, 3, 4, 6, 7] and leaky.test.tolist() == list(range(8))
    assert leaky.leaked == 6 and make_split(lists, "official", 0).leaked == 0
    small = limit_test(leaky, lists.labels, 4, 0)
    assert small.leaked == len(set(small.test) & set(leaky.train))
    for part in ([0, 0, 0, 0, 1, 1, 1, 1], [0] * 8, [-1] * 8):
        with pytest.raises(FedReproError, match="no official test list that names the whole"):
            make_split(domain([4, 4], part=part), "official-leaky", 0)
    with pytest.raises(FedReproError, match="split official of d tests on 1 training images"):
        Split("d", np.array([1, 2]), np.array([2, 3]), "official")


@pytest.mark.parametrize(("share", "test"), [(None, 20), (0.2, 20), (0.3, 30), (0.125, 13)])
def test_test_share(share: float | None, test: int) -> None:
    d = domain([50, 50], shuffle=True)
    split = make_split(d, "pooled-stratified", 1, share)
    assert len(split.test) == test and is_partition(split, 100)
    if share == 0.2:  # the same images under another name
        plain = make_split(d, "pooled-stratified", 1)
        assert plain.test.tolist() == split.test.tolist() and plain.rule == "pooled-stratified"
    with pytest.raises(FedReproError, match="goes with pooled-stratified"):
        make_split(d, "every-tenth", 1, 0.3)


def test_unknown_rule_and_impossible_stratification() -> None:
    with pytest.raises(FedReproError, match="choose one of pooled-stratified"):
        make_split(domain([5, 5]), "half", 0)
    with pytest.raises(FedReproError, match="cannot be split by class"):
        make_split(domain([9, 1]), "pooled-stratified", 0)


def test_the_hash_sees_indices_order_sides_and_rule() -> None:
    a, b = np.array([0, 1, 2]), np.array([3, 4])
    variants = [
        Split("d", a, b, "r"),
        Split("d", a[::-1], b, "r"),
        Split("d", b, a, "r"),
        Split("d", np.array([0, 1]), np.array([2, 3, 4]), "r"),
        Split("d", a, b, "s"),
        Split("e", a, b, "r"),
    ]
    assert len({v.hash for v in variants}) == len(variants)
    assert Split("d", a.astype(np.int32), b, "r").hash == variants[0].hash


def test_a_limited_test_set_keeps_class_shares_within_one_image() -> None:
    d = domain([400, 100, 20], "mnist", shuffle=True)
    split = make_split(d, "every-tenth", 0)
    small = limit_test(split, d.labels, 26, 0)
    exact = 26 * np.bincount(d.labels[split.test]) / len(split.test)
    assert len(small.test) == 26 and set(small.test) <= set(split.test)
    assert np.abs(np.bincount(d.labels[small.test], minlength=3) - exact).max() <= 1
    assert small.train is split.train and small.hash != split.hash
    assert small.test.tolist() == limit_test(split, d.labels, 26, 0).test.tolist()
    assert small.test.tolist() != limit_test(split, d.labels, 26, 1).test.tolist()


def test_a_limit_above_the_test_set_changes_nothing_and_below_the_classes_still_works() -> None:
    d = domain([10, 10, 10], "mnist")
    split = make_split(d, "every-tenth", 0)
    assert limit_test(split, d.labels, 6, 0) is split
    two = limit_test(split, d.labels, 2, 0)
    assert len(set(d.labels[two.test])) == 2
