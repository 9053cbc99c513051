"""Digits that two domains share, on arrays made here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import AllocationSpec
from fedrepro.data import copies
from fedrepro.data.partition import make_allocation
from fedrepro.data.splits import Split

# Six digits; the copy holds the first five of them in falling order, "other" holds none.
SHARED = {"mnist": np.arange(6), "mnistm": np.array([4, 3, 2, 1, 0])}
SPLITS = {
    "mnist": Split("mnist", np.array([0, 1, 2, 3]), np.array([4, 5]), "r"),
    "mnistm": Split("mnistm", np.array([0, 1, 2]), np.array([3, 4]), "r"),  # 4, 3, 2 and 1, 0
    "other": Split("other", np.array([0, 1]), np.array([2, 3]), "r"),
}


def allocate(**spec):
    labels = {name: np.zeros(6, dtype=np.int64) for name in SPLITS}
    return make_allocation(SPLITS, labels, AllocationSpec(**spec), 0, 0, SHARED)


def held(allocation):
    return {c.name: sorted(i for _, part in c.train for i in part) for c in allocation.clients}


def test_the_overlap_counts_test_images_of_a_trained_digit():
    rows = copies.overlap(allocate(), SHARED).to_dict("records")
    counted = {(row["trained on"], row["tested on"]): row["of the same digit"] for row in rows}
    # the copy tests digits 1 and 0, both trained on; MNIST tests 4 and 5, of which 4
    assert counted == {("mnist", "mnistm"): 2, ("mnistm", "mnist"): 1}
    assert [row["training images"] for row in rows] == [4, 3]
    assert [row["test images"] for row in rows] == [2, 2]


def test_disjoint_leaves_out_what_another_domain_tests():
    assert held(allocate()) == {"mnist": [0, 1, 2, 3], "mnistm": [0, 1, 2], "other": [0, 1]}
    cut = allocate(disjoint=True)
    assert held(cut) == {"mnist": [2, 3], "mnistm": [1, 2], "other": [0, 1]}
    assert copies.overlap(cut, SHARED)["of the same digit"].tolist() == [0, 0]
    assert cut.hash != allocate().hash


def test_the_setting_is_told_only_where_it_is_set():
    assert "disjoint" not in AllocationSpec().model_dump()
    assert AllocationSpec(disjoint=True).model_dump()["disjoint"]


def made(labels, part):
    return SimpleNamespace(labels=np.array(labels), part=np.array(part, dtype=np.int8))


@pytest.mark.parametrize("packed", [True, False])
def test_numbers_are_read_from_the_release(packed, tmp_path, monkeypatch):
    """The test part's numbers follow MNIST's three training images."""
    if packed:
        np.savez(tmp_path / "a.npz", train_index=np.array([2, 0]), test_index=np.array([1]))
        found = {"npz": (None, tmp_path / "a.npz")}
    else:
        (tmp_path / "train").write_text("00000002.png 7\n00000000.png 5\n")
        (tmp_path / "test").write_text("00000001.png 9\n")
        found = {f"{part}-labels": (None, Path(tmp_path / part)) for part in ("train", "test")}
    monkeypatch.setattr(copies, "_located", lambda root: found)
    arrays = {
        "mnist": made([5, 6, 7, 8, 9], [0, 0, 0, 1, 1]),
        "mnistm": made([7, 5, 9], [0, 0, 1]),
    }
    assert copies.originals(arrays)["mnistm"].tolist() == [2, 0, 4]
    assert copies.originals({"mnist": arrays["mnist"]}) == {}
    with pytest.raises(FedReproError, match="not numbered"):
        copies.originals({**arrays, "mnistm": made([7, 5, 8], [0, 0, 1])})
