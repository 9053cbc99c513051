"""Digits that two domains share: MNIST-M is MNIST over photographs, image by image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from fedrepro.base.errors import FedReproError
from fedrepro.data.domains import DomainArrays
from fedrepro.data.manifest import default_manifest
from fedrepro.data.partition import Allocation, Pieces
from fedrepro.data.readers.pictures import read_list
from fedrepro.data.roots import data_root
from fedrepro.data.splits import Indices

MNIST, COPY = "mnist", "mnistm"


def originals(
    arrays: Mapping[str, DomainArrays], root: Path | str | None = None
) -> dict[str, Indices]:
    """Of domains that share digits, the number of each image's digit in MNIST; else empty.

    MNIST-M's parts are copies of MNIST's, by the number its subset stores or its files are named
    after. FedReproError where a label is not the original's.
    """
    if not {MNIST, COPY} <= arrays.keys():
        return {}
    mnist = arrays[MNIST]
    found = {role: path for role, (_, path) in _located(root).items()}
    if "npz" in found:
        with np.load(found["npz"], allow_pickle=False) as archive:
            train, test = archive["train_index"], archive["test_index"]
    else:
        lists = (read_list(found[f"{part}-labels"]) for part in ("train", "test"))
        train, test = (np.array([int(Path(file).stem) for file, _ in rows]) for rows in lists)
    index = np.concatenate([train, test + int((mnist.part == 0).sum())]).astype(np.int64)
    if not np.array_equal(mnist.labels[index], arrays[COPY].labels):
        raise FedReproError("MNIST-M is not numbered as MNIST; leave allocation.disjoint out")
    return {MNIST: np.arange(len(mnist.labels)), COPY: index}


def _located(root: Path | str | None) -> dict[str, tuple[object, Path]]:
    return dict(default_manifest().locate(COPY, data_root(root)).found)


def digits_of(shown: Indices, parts: Iterable[Pieces], domain: str) -> Indices:
    """What the images of a source domain in some pieces show."""
    found = [shown[indices] for pieces in parts for name, indices in pieces if name == domain]
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def overlap(allocation: Allocation, shared: Mapping[str, Indices]) -> pd.DataFrame:
    """How many test images of one domain have their digit among what clients of another train on:
    a row a pair, with both numbers of images."""
    train = {a: digits_of(shared[a], [c.train for c in allocation.clients], a) for a in shared}
    tests = {b: digits_of(shared[b], allocation.tests.values(), b) for b in shared}
    rows = [
        {
            "trained on": a,
            "training images": len(train[a]),
            "tested on": b,
            "test images": len(tests[b]),
            "of the same digit": int(np.isin(tests[b], train[a]).sum()),
        }
        for a in shared
        for b in shared
        if a != b
    ]
    return pd.DataFrame(rows)
