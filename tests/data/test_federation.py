"""Federations end to end, from domains made here: images reach the client they belong to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import AllocationSpec, DataSpec
from fedrepro.data import domains, federation
from fedrepro.data.domains import DomainArrays
from fedrepro.data.federation import Federation, build_federation
from fedrepro.data.partition import make_partition
from fedrepro.data.splits import Split

SIZE = 4
# images, channels, cut
MADE: dict[str, tuple[int, int, tuple[int, int] | None]] = {
    "grey": (100, 1, None),
    "colour": (200, 3, None),
    "cutdown": (120, 3, (90, 95)),
    "standby": (60, 1, None),
}


def make_domain(name: str) -> DomainArrays:
    """Image i of domain number d is d in its first pixel and i in the second (per channel +0)."""
    n, channels, cut = MADE[name]
    images = np.zeros((n, channels, SIZE, SIZE), dtype=np.uint8)
    images[:, :, 0, 0] = list(MADE).index(name)
    images[:, :, 0, 1] = np.arange(n)[:, None]
    images[:, -1, 0, 2] = 7  # seen in all channels of a grey image, in the last of a coloured one
    return DomainArrays(
        name=name,
        images=images,
        labels=(np.arange(n) % 3).astype(np.int64),
        part=np.full(n, -1, dtype=np.int8),
        classes=("x", "y", "z"),
        hash=f"hash-of-{name}",
        standin=name == "standby",
        cut=cut,
        deviations=("cutdown: a part of the release",) if name == "cutdown" else (),
        subset=name == "cutdown",
    )


@pytest.fixture(autouse=True)
def made_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, size: int, root: Path | None = None) -> Any:
        assert size == SIZE
        return make_domain(name)

    monkeypatch.setattr(domains, "load_domain", load)
    monkeypatch.setattr(domains, "DATASETS", {"made": tuple(MADE), "one": ("grey",)})


def build(dataset: str = "made", **changes: Any) -> Federation:
    return build_federation(DataSpec(dataset=dataset, size=SIZE, **changes))


def identity(samples: federation.Samples) -> list[tuple[int, int]]:
    pixels = samples.images[:, 0, 0, :2].tolist()
    assert [p[1] % 3 for p in pixels] == samples.labels.tolist()
    return [(p[0], p[1]) for p in pixels]


def test_one_client_per_domain_with_its_own_images_and_test_set() -> None:
    fed = build()
    assert [c.name for c in fed.clients] == list(MADE) == list(fed.domains) == list(fed.tests)
    assert fed.classes == ("x", "y", "z") and fed.size == SIZE and fed.dataset == "made"
    for d, client in enumerate(fed.clients):
        train, test = identity(client.train), identity(fed.tests[client.domain])
        n = MADE[client.name][0]
        assert {p[0] for p in train + test} == {d}
        assert client.validation is None
        assert (client.train.images.dtype, client.train.labels.dtype) == (torch.uint8, torch.int64)
        third = [0, 0, 7] if client.name in ("colour", "cutdown") else [7, 7, 7]
        assert client.train.images[:, :, 0, 2].tolist() == [third] * len(client.train)
        if client.name == "cutdown":
            assert sorted(train) == [(d, i) for i in range(90)]
            assert test == [(d, i) for i in range(95, 120)]
        else:
            assert sorted(train + test) == [(d, i) for i in range(n)]


def test_marks_and_hashes_come_through() -> None:
    fed = build(split="random-fifth")
    assert fed.standins == ("standby",) and fed.subsets == ("cutdown",)
    assert fed.deviations == {"cutdown": ("cutdown: a part of the release",)}
    assert fed.hashes["data/grey"] == "hash-of-grey"
    assert set(fed.hashes) == {
        *(f"data/{d}" for d in MADE),
        *(f"split/{d}" for d in MADE),
        "allocation",
    }
    again, other = build(split="random-fifth"), build(split="random-fifth", split_seed=1)
    assert again.hashes == fed.hashes
    assert other.hashes["split/grey"] != fed.hashes["split/grey"]
    assert other.hashes["split/cutdown"] == fed.hashes["split/cutdown"]
    assert other.hashes["allocation"] != fed.hashes["allocation"]


def test_clients_of_a_domain_share_one_validation_set_that_none_trains_on() -> None:
    table = {"rule": "table", "clients": {"grey": 2, "colour": 1}, "per_client": 0.25}
    fed = build(allocation=table, validation=12)
    one, two, colour = fed.clients
    assert [c.name for c in fed.clients] == ["grey-1", "grey-2", "colour"]
    assert one.validation is two.validation and one.validation is not colour.validation
    assert one.validation is not None and len(one.validation) == 12
    seen = [set(identity(s)) for s in (one.train, two.train, one.validation, fed.tests["grey"])]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 20 + 20 + 12 + 20
    assert list(fed.tests) == list(MADE)  # domains without clients are still tested
    moved = fed.to("cpu")
    assert moved.clients[0].validation is moved.clients[1].validation


def test_counts_tell_every_class_once() -> None:
    table = {"rule": "table", "clients": {"grey": 2}, "per_client": 0.25}
    counts = build("one", allocation=table, validation=12).counts()
    assert list(counts.columns) == ["domain", "client", "split", "class", "images"]
    assert len(counts) == 4 * 3
    totals = counts.groupby(["split", "client"])["images"].sum().to_dict()
    assert totals == {
        ("train", "grey-1"): 20,
        ("train", "grey-2"): 20,
        ("validation", ""): 12,
        ("test", ""): 20,
    }
    test = counts[counts["split"] == "test"].set_index("class")["images"]
    assert list(test.index) == ["x", "y", "z"] and sorted(test) == [6, 7, 7]


def test_label_skew_pools_the_domains_and_carries_their_marks() -> None:
    fed = build(allocation={"rule": "dirichlet", "alpha": 1.0, "count": 3, "per_client": 0.5})
    assert fed.domains == ("pooled",) and list(fed.tests) == ["pooled"]
    assert {c.domain for c in fed.clients} == {"pooled"}
    assert {p[0] for p in identity(fed.tests["pooled"])} == {0, 1, 2, 3}
    assert fed.clients[0].validation is not None
    identity(fed.clients[0].validation)
    assert fed.standins == fed.subsets == ("pooled",)
    assert fed.deviations == {"pooled": ("cutdown: a part of the release",)}
    alone = build("one", allocation={"rule": "dirichlet", "alpha": 1.0, "count": 3})
    assert alone.standins == alone.subsets == ()
    assert alone.domains == ("grey",) and alone.clients[2].name == "grey-3"


def test_what_cannot_be_built_is_one_clear_line() -> None:
    with pytest.raises(FedReproError, match="'digits6'; choose one of made, one"):
        build("digits6")
    with pytest.raises(FedReproError, match="wants 81 training images of grey, which has 80"):
        build(allocation={"per_client": 81})


def with_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """grey's images get official parts: every fifth is in the validation list, as in PACS."""

    def load(name: str, *_: Any) -> DomainArrays:
        made = make_domain(name)
        part = np.where(np.arange(len(made.labels)) % 5 == 0, 2, 0).astype(np.int8)
        return DomainArrays(**{**made.__dict__, "part": part})

    monkeypatch.setattr(domains, "load_domain", load)


def test_official_lists_are_read_cleanly_or_as_the_fpl_family_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_lists(monkeypatch)
    clean, leaky = build("one", split="official"), build("one", split="official-leaky")
    train = [i for i in range(100) if i % 5]
    for fed in (clean, leaky):
        assert sorted(i for _, i in identity(fed.clients[0].train)) == train
    assert [i for _, i in identity(clean.tests["grey"])] == list(range(0, 100, 5))
    assert [i for _, i in identity(leaky.tests["grey"])] == list(range(100))
    assert clean.deviations == {}
    assert leaky.deviations == {"grey": ("grey: 80 of 100 test images are training images too",)}
    assert clean.hashes["split/grey"] != leaky.hashes["split/grey"]
    cut = build("one", split="official-leaky", test_limit=30)
    (clause,) = cut.deviations["grey"]
    seen = {i for _, i in identity(cut.tests["grey"])} & set(train)
    assert clause == f"grey: {len(seen)} of 30 test images are training images too"


@pytest.mark.parametrize(
    "split",
    ["pooled-stratified", "official", "class-first"],
)
@pytest.mark.parametrize(
    "allocation",
    [
        {"rule": "domain"},
        {"rule": "table", "clients": {"grey": 3}, "per_client": 0.3, "every_class": True},
        {"rule": "table", "clients": {"grey": 3}, "by_class": True},
        {"rule": "table", "clients": {"grey": 4}, "per_client": 0.3, "remainder": True},
        {"rule": "dirichlet", "alpha": 5.0, "count": 3},
    ],
)
@pytest.mark.parametrize("validation", [0, 10, 0.2])
def test_no_image_is_in_two_places(
    monkeypatch: pytest.MonkeyPatch, split: str, allocation: dict[str, Any], validation: float
) -> None:
    with_lists(monkeypatch)
    fed = build("one", split=split, allocation=allocation, validation=validation)
    held = [i for c in fed.clients for _, i in identity(c.train)]
    aside = fed.clients[0].validation
    held += [i for _, i in identity(aside)] if aside is not None else []
    held += [i for _, i in identity(fed.tests["grey"])]
    assert len(held) == len(set(held))
    assert fed.deviations == {}


# Six digits; the copy holds the first five of them in falling order, "other" holds none.
SHARED = {"mnist": np.arange(6), "mnistm": np.array([4, 3, 2, 1, 0])}
SPLITS = {
    "mnist": Split("mnist", np.array([0, 1, 2, 3]), np.array([4, 5]), "r"),
    "mnistm": Split("mnistm", np.array([0, 1, 2]), np.array([3, 4]), "r"),  # 4, 3, 2 and 1, 0
    "other": Split("other", np.array([0, 1]), np.array([2, 3]), "r"),
}


def test_disjoint_leaves_out_what_another_domain_tests() -> None:
    labels = {name: np.zeros(6, dtype=np.int64) for name in SPLITS}
    plain, cut = (
        make_partition(SPLITS, labels, AllocationSpec(disjoint=on), 0, 0, SHARED)
        for on in (False, True)
    )
    # the copy tests digits 1 and 0, both trained on; MNIST tests 4 and 5, of which 4
    held = {c.name: sorted(i for _, part in c.train for i in part) for c in cut.clients}
    assert held == {"mnist": [2, 3], "mnistm": [1, 2], "other": [0, 1]}
    assert cut.hash != plain.hash and "disjoint" not in AllocationSpec().model_dump()


@pytest.mark.parametrize("packed", [True, False])
def test_digits_are_numbered_as_in_the_release(packed: bool, tmp_path: Path) -> None:
    """The test part's numbers follow MNIST's three training images."""
    place = tmp_path / "digits/mnistm"
    place.mkdir(parents=True)
    if packed:
        numbers = {"train_index": np.array([2, 0]), "test_index": np.array([1])}
        np.savez(place / "mnistm_subset_train12000_test4000.npz", **numbers)
    else:
        for part, text in (("train", "00000002.png 7\n00000000.png 5\n"), ("test", "1.png 9\n")):
            (place / f"mnist_m_{part}").mkdir()
            (place / f"mnist_m_{part}_labels.txt").write_text(text)

    def made(labels: list[int], part: list[int]) -> Any:
        return SimpleNamespace(labels=np.array(labels), part=np.array(part, dtype=np.int8))

    arrays = {"mnist": made([5, 6, 7, 8, 9], [0, 0, 0, 1, 1]), "mnistm": made([7, 5, 9], [0, 0, 1])}
    assert federation.originals(arrays, tmp_path)["mnistm"].tolist() == [2, 0, 4]
    assert federation.originals({"mnist": arrays["mnist"]}) == {}
    with pytest.raises(FedReproError, match="not numbered"):
        federation.originals({**arrays, "mnistm": made([7, 5, 8], [0, 0, 1])}, tmp_path)
