"""Split rules: sizes the papers print, closed forms, and what may never be mixed."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedrepro.data.manifest import collection_of
from fedrepro.data.splits import Split, limit_test, make_split
from tests.data.made import one_line


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
    "pooled-stratified": "e28268ff1b49",
    "pooled-leaky": "9a18f17a2ce4",
    "official": "13acdb31765d",
    "official-leaky": "5966d758dc3c",
    "random-fifth": "3dfcbdbf6980",
    "class-first": "6d1af3c14691",
    "class-first-floor": "e4b136d860a5",
    "every-tenth": "4ad38b90ce6e",
}


@pytest.mark.parametrize("rule", GOLDEN)
def test_nobodys_images_have_moved(rule):
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
