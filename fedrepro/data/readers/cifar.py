"""CIFAR-10 and CIFAR-100: the official binary archives (the pickled ones could run code when read)
and a JPEG copy of CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedrepro.data.readers.common import (
    TEST,
    TRAIN,
    Decoded,
    Images,
    Labels,
    ReadSpec,
    check,
    check_labels,
    join,
    resize_stack,
)
from fedrepro.data.readers.pictures import collect
from fedrepro.data.readers.trees import tar_files, tar_members

SIDE = 32
PIXELS = 3 * SIDE * SIDE
MAX_BINARY = 160_000_000  # the longest member: 50,000 records of CIFAR-100

TEN = (*(f"data_batch_{i}.bin" for i in range(1, 6)),), "test_batch.bin", "batches.meta.txt"
HUNDRED = ("train.bin",), "test.bin", "fine_label_names.txt"


def read_cifar10_binary(spec: ReadSpec) -> Decoded:
    """Records of a label and 3,072 bytes."""
    return _binary(spec, *TEN, labels=1)


def read_cifar100_binary(spec: ReadSpec) -> Decoded:
    """Records of a coarse label, a fine one (which counts) and 3,072 bytes."""
    return _binary(spec, *HUNDRED, labels=2)


def _binary(spec: ReadSpec, train: Sequence[str], test: str, names: str, labels: int) -> Decoded:
    archive = spec.files["archive"]
    members = tar_members(archive, (*train, test, names), MAX_BINARY)
    told = tuple(members[names].decode("utf-8", "replace").split())
    check(told == spec.classes, archive, f"{names} lists other classes than expected")
    blocks = [(*_records(members[name], labels, archive, spec), TRAIN) for name in train]
    return join([*blocks, (*_records(members[test], labels, archive, spec), TEST)])


def _records(content: bytes, labels: int, archive: Path, spec: ReadSpec) -> tuple[Images, Labels]:
    """Label bytes, the last of which counts, then red, green and blue planes, row by row."""
    length = labels + PIXELS
    check(len(content) % length == 0, archive, f"a member is not made of {length}-byte records")
    rows = np.frombuffer(content, np.uint8).reshape(-1, length)
    label = rows[:, labels - 1].astype(np.int64)
    check_labels(label, len(spec.classes), archive)
    planes = rows[:, labels:].reshape(-1, 3, SIDE, SIDE)
    return resize_stack(planes.transpose(0, 2, 3, 1), spec.size), label


def read_cifar_jpeg_tar(spec: ReadSpec) -> Decoded:
    """train/<class>/<index>.jpg and test/<class>/<index>.jpg."""
    archive = spec.files["archive"]
    parts = (("train", TRAIN), ("test", TEST))
    blocks = [(*collect(tar_files(archive), spec, [name], archive)[:2], p) for name, p in parts]
    return join(blocks)
