"""MPFT's data: tests on whole domains, mixed test sets, test sets cut in parts, in closed form."""

import math

import numpy as np
import pytest

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.data.splits import parts
from tests.data.test_federation import MADE, build, identity, made_domains

assert made_domains  # the fixture under which every domain is made here
SHARES = {"test_share": 0.3, "validation": 0.2, "split_seed": 1}
FILED = papers.load("mpft").filed
assert FILED is not None
SIZES = {name: np.array(sizes) for name, sizes in FILED.test_sizes.items()}


def test_parts_are_of_one_size_and_the_last_ends_with_its_class():
    """Of 7 images in 3 parts: 3, 3 and the last 3, so that two are there twice; of 4: 2, 2, 2."""
    labels = np.array([0] * 7 + [1] * 4)
    found = [part.tolist() for part in parts(np.arange(11), labels, 3)]
    assert found == [[0, 1, 2, 7, 8], [3, 4, 5, 9, 10], [4, 5, 6, 9, 10]]


@pytest.mark.parametrize("count", [3, 4, 5])
def test_the_authors_parts_are_rounded_up_class_by_class(count):
    """Their sizes: at least a domain's images in all, and less than an image more a class and
    part."""
    cut, whole = SIZES[f"split{count}"].reshape(6, count), SIZES["subset50"]
    assert (cut.max(axis=1) * count - whole >= 0).all()
    assert (cut.max(axis=1) * count - whole < 50 * count).all()


@pytest.mark.parametrize("share", [0.3, 0.4, 0.5])
def test_the_authors_mixed_test_sets_take_the_next_domains_share(share):
    """Their sizes are (1 - r) n_i + r n_(i+1), cyclic, up to an image a class on either side."""
    own, mixed = SIZES["subset50"], SIZES[f"mixed{share}"]
    assert (abs(mixed - (1 - share) * own - share * np.roll(own, -1)) <= 50).all()
    assert abs(mixed - (1 - share) * own - share * np.roll(own, 1)).max() > 500
    assert mixed.sum() == own.sum()


def test_whole_domains_are_tests_and_some_of_one():
    """The training and validation images are those of the clean split; one domain's tests are
    cut."""
    clean = build(**SHARES)
    leaky = build(split="pooled-leaky", test_limit={"grey": 40}, **SHARES)
    for before, after in zip(clean.clients, leaky.clients, strict=True):
        assert identity(before.train) == identity(after.train)
        assert before.validation is not None and after.validation is not None
        assert identity(before.validation) == identity(after.validation)
    assert len(leaky.tests["grey"]) == 40 and len(leaky.tests["colour"]) == MADE["colour"][0]
    shared = 200 - len(clean.tests["colour"])
    clause = f"colour: {shared} of 200 test images are training images too"
    assert leaky.deviations["colour"] == (clause,)
    assert clean.hashes["allocation"] == leaky.hashes["allocation"]


def test_mixed_test_sets_count_as_the_unmixed_ones():
    plain = build(**SHARES)
    fed = build(allocation={"rule": "mixed", "ratio": 0.3, "by_class": True}, **SHARES)
    assert fed.weights == {name: len(samples) for name, samples in plain.tests.items()}
    assert fed.weights["grey"] != len(fed.tests["grey"]) and plain.weights == {}
    for i, name in enumerate(MADE):
        assert {d for d, _ in identity(fed.tests[name])} == {i, (i + 1) % len(MADE)}


CUT = {"rule": "table", "clients": {"grey": 3, "colour": 2}, "by_class": True, "cut_tests": True}


def test_cut_domains_have_a_client_and_a_test_set_for_every_part():
    """Each part's validation images are its own; the domains count as their training images."""
    fed, plain = build(allocation=CUT, **SHARES), build(**SHARES)
    names = ["grey-1", "grey-2", "grey-3", "colour-1", "colour-2"]
    assert list(fed.tests) == list(fed.domains) == [c.domain for c in fed.clients] == names
    assert fed.weights == {c.name: len(c.train) for c in fed.clients}
    whole = set(identity(plain.tests["grey"]))
    pieces = [set(identity(fed.tests[name])) for name in names[:3]]
    assert set.union(*pieces) == whole and len({len(p) for p in pieces}) == 1
    for client in fed.clients:
        assert client.validation is not None
        train, held = set(identity(client.train)), set(identity(client.validation))
        assert not train & held and len(held) == math.ceil(0.2 * (len(train) + len(held)))
    whole = build(allocation={**CUT, "cut_tests": False}, **SHARES)
    assert fed.hashes["allocation"] != whole.hashes["allocation"]
    with pytest.raises(FedReproError, match="cut_tests needs rule table and a share"):
        build(allocation=CUT, validation=10)
