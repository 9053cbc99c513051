"""A made-up MNIST of 30 images in place of the real one, for everything around the readers."""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedrepro.data.manifest import COLLECTIONS
from tests.data.made import collection, put


@dataclass(frozen=True)
class TinyMnist:
    """root holds mnist/*.gz: 20 training images (pixel value = index) and 10 test images."""

    root: Path
    contents: dict[str, bytes]


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture
def known(monkeypatch):
    for name in ("mnist", "usps", "encoders"):
        monkeypatch.setitem(COLLECTIONS, name, COLLECTIONS[name])
    return COLLECTIONS


@pytest.fixture
def tiny_mnist(tmp_path, known):
    files = {}
    for part, name, count in (("train", "train", 20), ("test", "t10k", 10)):
        index = np.arange(count, dtype=np.uint8)
        images = np.repeat(index, 28 * 28).reshape(count, 28, 28)
        files[f"{part}-images"] = f"{name}-images-idx3-ubyte.gz", gzip.compress(idx(images))
        files[f"{part}-labels"] = f"{name}-labels-idx1-ubyte.gz", gzip.compress(idx(index % 10))
    contents = dict(files.values())
    for name, content in contents.items():
        put(tmp_path / "root" / "mnist" / name, content)
    known["mnist"] = collection("mnist", "mnist", files, totals=[(20, 10, 0)])
    return TinyMnist(tmp_path / "root", contents)
