"""Federations end to end, from domains made here: images reach the client they belong to."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedrepro.base.protocol import AllocationSpec, DataSpec
from fedrepro.data import domains, federation
from fedrepro.data.domains import DomainArrays
from fedrepro.data.federation import Federation, build_federation
from fedrepro.data.partition import make_partition
from fedrepro.data.splits import Split
from tests.data.made import one_line, put

SIZE = 4
# images, channels, cut
MADE: dict[str, tuple[int, int, tuple[int, int] | None]] = {
    "grey": (100, 1, None), "colour": (200, 3, None),
    "cutdown": (120, 3, (90, 95)), "standby": (60, 1, None),
}  # fmt: skip
# as in PACS's lists: every fifth is for validation
OFFICIAL = np.where(np.arange(200) % 5 == 0, 2, 0).astype(np.int8)


def make_domain(name: str, part: Any = None) -> DomainArrays:
    """Image i of domain number d is d in its first pixel and i in the second (per channel +0)."""
    n, channels, cut = MADE[name]
    images = np.zeros((n, channels, SIZE, SIZE), dtype=np.uint8)
    images[:, :, 0, 0] = list(MADE).index(name)
    images[:, :, 0, 1] = np.arange(n)[:, None]
    images[:, -1, 0, 2] = 7  # seen in all channels of a grey image, in the last of a coloured one
    part = np.full(n, -1, dtype=np.int8) if part is None else part[:n]
    told = ("cutdown: a part of the release",) if name == "cutdown" else ()
    marks = {"standin": name == "standby", "subset": name == "cutdown", "cut": cut}
    labels, hash = (np.arange(n) % 3).astype(np.int64), f"hash-of-{name}"
    marks |= {"classes": ("x", "y", "z"), "hash": hash, "deviations": told}
    return DomainArrays(images, labels, part, name=name, **marks)


@pytest.fixture(autouse=True)
def made_domains(monkeypatch):
    made = {SIZE: make_domain}  # no other size is asked for
    monkeypatch.setattr(domains, "load_domain", lambda name, size, root=None: made[size](name))
    monkeypatch.setattr(domains, "DATASETS", {"made": tuple(MADE), "one": ("grey",)})


@pytest.fixture
def with_lists(monkeypatch):
    monkeypatch.setattr(domains, "load_domain", lambda name, *_: make_domain(name, OFFICIAL))


def build(dataset: str = "made", **changes: Any) -> Federation:
    return build_federation(DataSpec(dataset=dataset, size=SIZE, **changes))


def identity(samples: federation.Samples) -> list[tuple[int, int]]:
    pixels = samples.images[:, 0, 0, :2].tolist()
    assert [p[1] % 3 for p in pixels] == samples.labels.tolist()
    return [(p[0], p[1]) for p in pixels]


def test_one_client_per_domain_with_its_own_images_and_test_set():
    fed = build()
    assert [c.name for c in fed.clients] == list(MADE) == list(fed.domains) == list(fed.tests)
    assert fed.classes == ("x", "y", "z") and fed.size == SIZE and fed.dataset == "made"
    with one_line("choose from grey"):
        build(test_limit={"gray": 5})
    for d, client in enumerate(fed.clients):
        train, test = identity(client.train), identity(fed.tests[client.domain])
        assert client.validation is None
        assert (client.train.images.dtype, client.train.labels.dtype) == (torch.uint8, torch.int64)
        third = [0, 0, 7] if client.name in ("colour", "cutdown") else [7, 7, 7]
        assert client.train.images[:, :, 0, 2].tolist() == [third] * len(client.train)
        if client.name == "cutdown":
            assert sorted(train) == [(d, i) for i in range(90)]
            assert test == [(d, i) for i in range(95, 120)]
        else:
            assert sorted(train + test) == [(d, i) for i in range(MADE[client.name][0])]


def test_marks_and_hashes_come_through():
    fed, other = build(split="random-fifth"), build(split="random-fifth", split_seed=1)
    assert fed.standins == ("standby",) and fed.subsets == ("cutdown",)
    assert fed.deviations == {"cutdown": ("cutdown: a part of the release",)}
    parts = {f"{kind}/{domain}" for kind in ("data", "split") for domain in MADE}
    assert set(fed.hashes) == {*parts, "allocation"} and fed.hashes["data/grey"] == "hash-of-grey"
    moved = {name for name in fed.hashes if other.hashes[name] != fed.hashes[name]}
    assert moved == {"split/grey", "split/colour", "split/standby", "allocation"}


def test_clients_of_a_domain_share_one_validation_set_that_none_trains_on():
    table = {"rule": "table", "clients": {"grey": 2, "colour": 1}, "per_client": 0.25}
    fed = build(allocation=table, validation=12)
    one, two, colour = fed.clients
    assert [c.name for c in fed.clients] == ["grey-1", "grey-2", "colour"]
    assert one.validation is two.validation and one.validation is not colour.validation
    seen = [set(identity(s)) for s in (one.train, two.train, one.validation, fed.tests["grey"])]
    assert [len(s) for s in seen] == [20, 20, 12, 20] and len(set().union(*seen)) == 72
    assert list(fed.tests) == list(MADE)  # domains without clients are still tested
    moved = fed.to("cpu")
    assert moved.clients[0].validation is moved.clients[1].validation
    counts = fed.counts()
    grey = counts[counts.domain == "grey"]
    totals = grey.groupby(["split", "client"])["images"].sum().to_dict()
    train = {("train", "grey-1"): 20, ("train", "grey-2"): 20}
    assert totals == {**train, ("validation", ""): 12, ("test", ""): 20}
    assert len(grey) == 4 * 3  # every class once


def test_label_skew_pools_the_domains_and_carries_their_marks():
    fed = build(allocation={"rule": "dirichlet", "alpha": 1.0, "count": 3, "per_client": 0.5})
    assert fed.domains == ("pooled",) and list(fed.tests) == ["pooled"]
    assert {c.domain for c in fed.clients} == {"pooled"}
    assert {p[0] for p in identity(fed.tests["pooled"])} == {0, 1, 2, 3}
    assert fed.standins == fed.subsets == ("pooled",)
    assert fed.deviations == {"pooled": ("cutdown: a part of the release",)}


def test_official_lists_are_read_cleanly_or_as_the_fpl_family_reads_them(with_lists):
    clean, leaky = build("one", split="official"), build("one", split="official-leaky")
    train = [i for i in range(100) if i % 5]
    for fed in (clean, leaky):
        assert sorted(i for _, i in identity(fed.clients[0].train)) == train
    assert [i for _, i in identity(clean.tests["grey"])] == list(range(0, 100, 5))
    assert [i for _, i in identity(leaky.tests["grey"])] == list(range(100))
    assert clean.deviations == {}
    assert leaky.deviations == {"grey": ("grey: clients train on 80 of 100 test images",)}
    few = {"allocation": {"per_client": 9}}  # what clients hold counts, not the whole list
    cut = build("one", split="official-leaky", test_limit=30, validation=0, **few)
    seen = set(identity(cut.tests["grey"])) & set(identity(cut.clients[0].train))
    assert cut.deviations["grey"] == (f"grey: clients train on {len(seen)} of 30 test images",)


TABLE = {"rule": "table", "clients": {"grey": 3}}


@pytest.mark.parametrize("split", ["pooled-stratified", "official", "class-first"])
@pytest.mark.parametrize(
    "allocation",
    [
        {"rule": "domain"},
        {**TABLE, "per_client": 0.3, "every_class": True},
        {**TABLE, "by_class": True},
        {**TABLE, "clients": {"grey": 4}, "per_client": 0.3, "remainder": True},
        {"rule": "dirichlet", "alpha": 5.0, "count": 3},
    ],
)
@pytest.mark.parametrize("validation", [0, 10, 0.2])
def test_no_image_is_in_two_places(with_lists, split, allocation, validation):
    fed = build("one", split=split, allocation=allocation, validation=validation)
    parts = [*(c.train for c in fed.clients), fed.clients[0].validation, fed.tests["grey"]]
    held = [i for part in parts if part is not None for _, i in identity(part)]
    assert len(held) == len(set(held)) and fed.deviations == {}


def test_disjoint_leaves_out_what_another_domain_tests():
    """The copy holds the first five of six digits in falling order, "other" holds none. The copy
    tests digits 1 and 0, both trained on; MNIST tests 4 and 5, of which 4."""
    shared = {"mnist": np.arange(6), "mnistm": np.array([4, 3, 2, 1, 0])}
    splits = {
        "mnist": Split("mnist", np.array([0, 1, 2, 3]), np.array([4, 5]), "r"),
        "mnistm": Split("mnistm", np.array([0, 1, 2]), np.array([3, 4]), "r"),  # 4, 3, 2 and 1, 0
        "other": Split("other", np.array([0, 1]), np.array([2, 3]), "r"),
    }
    labels = {name: np.zeros(6, dtype=np.int64) for name in splits}
    spec = DataSpec(dataset="made", size=SIZE, validation=5, allocation={"disjoint": True})
    cut = make_partition(splits, labels, spec, shared)
    assert cut.validation == {}  # what is left out of training does not come back here
    held = {c.name: sorted(i for _, part in c.train for i in part) for c in cut.clients}
    assert held == {"mnist": [2, 3], "mnistm": [1, 2], "other": [0, 1]}
    assert "disjoint" not in AllocationSpec().model_dump()


def test_disjoint_leaves_out_pictures_that_are_tested_too(monkeypatch):
    """In the made domain every image has a twin; images of other domains differ."""

    def twins(name, *_):
        made = make_domain(name)
        images, labels = made.images.copy(), made.labels.copy()
        images[1::2], labels[1::2] = images[::2], labels[::2]
        return replace(made, images=images, labels=labels)

    monkeypatch.setattr(domains, "load_domain", twins)
    plain, cut = (build("one", allocation={"disjoint": on}) for on in (False, True))
    train, test = set(identity(plain.clients[0].train)), set(identity(plain.tests["grey"]))
    assert train & test and set(identity(cut.clients[0].train)) == train - test
    assert identity(cut.tests["grey"]) == identity(plain.tests["grey"])
    assert cut.hashes["split/grey"] == plain.hashes["split/grey"]
    assert cut.hashes["allocation"] != plain.hashes["allocation"]


@pytest.mark.parametrize("packed", [True, False])
def test_digits_are_numbered_as_in_the_release(packed, tmp_path):
    """The test part's numbers follow MNIST's three training images."""
    place = tmp_path / "digits/mnistm"
    if packed:
        numbers = {"train_index": np.array([2, 0]), "test_index": np.array([1])}
        place.mkdir(parents=True)
        np.savez(place / "mnistm_subset_train12000_test4000.npz", **numbers)
    else:
        for part, text in (("train", "00000002.png 7\n00000000.png 5\n"), ("test", "1.png 9\n")):
            put(place / f"mnist_m_{part}_labels.txt", text.encode())
            (place / f"mnist_m_{part}").mkdir()

    def made(labels: list[int], part: list[int]) -> Any:
        return SimpleNamespace(labels=np.array(labels), part=np.array(part, dtype=np.int8))

    arrays = {"mnist": made([5, 6, 7, 8, 9], [0, 0, 0, 1, 1]), "mnistm": made([7, 5, 9], [0, 0, 1])}
    assert federation.originals(arrays, tmp_path)["mnistm"].tolist() == [2, 0, 4]
    with one_line("not numbered"):
        federation.originals({**arrays, "mnistm": made([7, 5, 8], [0, 0, 1])}, tmp_path)


# MPFT: tests on whole domains, mixed test sets, test sets cut in parts, in closed form.
SHARES = {"test_share": 0.3, "validation": 0.2, "split_seed": 1}


def test_whole_domains_are_tests_and_some_of_one():
    """The training and validation images are those of the clean split; one domain's tests are
    cut."""
    clean = build(**SHARES)
    leaky = build(split="pooled-leaky", test_limit={"grey": 40}, **SHARES)
    for before, after in zip(clean.clients, leaky.clients, strict=True):
        assert identity(before.train) == identity(after.train)
        assert identity(before.validation) == identity(after.validation)
    assert len(leaky.tests["grey"]) == 40 and len(leaky.tests["colour"]) == MADE["colour"][0]
    trained, held = (len(part) for part in (clean.clients[1].train, clean.clients[1].validation))
    clause = f"colour: clients train on {trained} of 200 test images and validate on {held}"
    assert leaky.deviations["colour"] == (clause,)
    assert clean.hashes["allocation"] == leaky.hashes["allocation"]


def test_mixed_test_sets_count_as_the_unmixed_ones():
    plain = build(**SHARES)
    fed = build(allocation={"rule": "mixed", "ratio": 0.3, "by_class": True}, **SHARES)
    assert fed.weights == {name: len(samples) for name, samples in plain.tests.items()}
    assert fed.standins == ("cutdown", "standby") and plain.weights == {}  # the next one's too
    for i, name in enumerate(MADE):
        assert {d for d, _ in identity(fed.tests[name])} == {i, (i + 1) % len(MADE)}


CUT = {"rule": "table", "clients": {"grey": 3, "colour": 2}, "by_class": True, "cut_tests": True}


def test_cut_domains_have_a_client_and_a_test_set_for_every_part():
    """Each part's validation images are its own; the domains count as their training images."""
    fed, plain = build(allocation=CUT, **SHARES), build(**SHARES)
    names = ["grey-1", "grey-2", "grey-3", "colour-1", "colour-2"]
    assert list(fed.tests) == list(fed.domains) == [c.domain for c in fed.clients] == names
    assert fed.weights == {c.name: len(c.train) for c in fed.clients}
    pieces, whole = [{*identity(fed.tests[n])} for n in names[:3]], {*identity(plain.tests["grey"])}
    assert set.union(*pieces) == whole and len({len(p) for p in pieces}) == 1
    for client in fed.clients:
        train, held = set(identity(client.train)), set(identity(client.validation))
        assert not train & held and len(held) == math.ceil(0.2 * (len(train) + len(held)))
    whole = build(allocation={**CUT, "cut_tests": False}, **SHARES)
    assert fed.hashes["allocation"] != whole.hashes["allocation"]
    assert not build(allocation=CUT, **SHARES | {"validation": 0.0}).validations()
    with one_line("cut_tests needs rule table, per_client all, a share .* or 0, and no every"):
        build(allocation={**CUT, "per_client": 5}, **SHARES)
