"""CIFAR-10 and CIFAR-100: the official binary archives (the pickled ones could run code)."""

from __future__ import annotations

import numpy as np

from fedrepro.data.readers.common import (
    TEST,
    TRAIN,
    Decoded,
    ReadSpec,
    check,
    check_labels,
    join,
    resize_stack,
)
from fedrepro.data.readers.trees import tar_files

SIDE = 32
PIXELS = 3 * SIDE * SIDE
MAX_BINARY = 160_000_000  # the longest member: 50,000 records of CIFAR-100

Layout = tuple[tuple[str, ...], str, str]
TEN: Layout = (*(f"data_batch_{i}.bin" for i in range(1, 6)),), "test_batch.bin", "batches.meta.txt"
HUNDRED: Layout = ("train.bin",), "test.bin", "fine_label_names.txt"


def read_cifar10_binary(spec: ReadSpec) -> Decoded:
    """Records of a label and 3,072 bytes."""
    return _binary(spec, TEN, labels=1)


def read_cifar100_binary(spec: ReadSpec) -> Decoded:
    """Records of a coarse label, a fine one (which counts) and 3,072 bytes."""
    return _binary(spec, HUNDRED, labels=2)


def _binary(spec: ReadSpec, layout: Layout, labels: int) -> Decoded:
    """Label bytes, the last of which counts, then red, green and blue planes, row by row."""
    archive, (train, test, names), length = spec.files["archive"], layout, labels + PIXELS
    wanted, members = {*train, test, names}, dict[str, bytes]()
    for file in tar_files(archive, wanted.__contains__, MAX_BINARY):
        name = file.parts[-1]
        check(name not in members, archive, f"holds {name} twice")
        members[name] = file.read()
    missing = sorted(wanted - set(members))
    check(not missing, archive, f"has no member {', '.join(missing)}")
    told = tuple(members[names].decode("utf-8", "replace").split())
    check(told == spec.classes, archive, f"{names} lists other classes than expected")
    blocks = []
    for name in (*train, test):
        whole = len(members[name]) % length == 0
        check(whole, archive, f"a member is not made of {length}-byte records")
        rows = np.frombuffer(members[name], np.uint8).reshape(-1, length)
        label = check_labels(rows[:, labels - 1], len(spec.classes), archive)
        planes = rows[:, labels:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        blocks.append((resize_stack(planes, spec.size), label, TEST if name == test else TRAIN))
    return join(blocks)
