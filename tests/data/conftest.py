"""A made-up MNIST of 30 images in place of the real one, for everything around the readers."""

import gzip
import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedrepro.data.manifest import COLLECTIONS, Collection, parse_manifest
from tests.data.made import put

FILES = {
    "train-images": "train-images-idx3-ubyte.gz",
    "train-labels": "train-labels-idx1-ubyte.gz",
    "test-images": "t10k-images-idx3-ubyte.gz",
    "test-labels": "t10k-labels-idx1-ubyte.gz",
}


@dataclass(frozen=True)
class TinyMnist:
    """root holds mnist/*.gz: 20 training images (pixel value = index) and 10 test images."""

    root: Path
    collection: Collection
    contents: dict[str, bytes]


def idx(array: np.ndarray) -> bytes:
    """The idx form of a uint8 array."""
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def manifest_text(contents: dict[str, bytes]) -> str:
    """A manifest for these files, by sha256."""
    rows = [
        f'{{ role = "{role}", names = ["{name}"], bytes = {len(contents[name])}, '
        f'sha256 = "{hashlib.sha256(contents[name]).hexdigest()}" }}'
        for role, name in FILES.items()
    ]
    return (
        '[mnist]\nlicence = "free"\ncitation = "none"\nmanual = "Draw it by hand."\n'
        'places = ["mnist"]\ndomains = { mnist = { folders = ["mnist"] } }\n'
        '[[mnist.sources]]\nname = "official"\nreader = "mnist"\ntotals = [[20, 10, 0]]\n'
        f"files = [{', '.join(rows)}]\n"
    )


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Collection]:
    """The manifest's collections; what a test puts there is forgotten after it."""
    for name in ("mnist", "encoders"):
        monkeypatch.setitem(COLLECTIONS, name, COLLECTIONS[name])
    return COLLECTIONS


@pytest.fixture
def tiny_mnist(tmp_path: Path, known: dict[str, Collection]) -> TinyMnist:
    """Fresh files for each test, free to be broken."""
    contents = {}
    for part, count in (("train", 20), ("test", 10)):
        index = np.arange(count, dtype=np.uint8)
        images = np.repeat(index, 28 * 28).reshape(count, 28, 28)
        contents[FILES[f"{part}-images"]] = gzip.compress(idx(images))
        contents[FILES[f"{part}-labels"]] = gzip.compress(idx(index % 10))
    for name, content in contents.items():
        put(tmp_path / "root" / "mnist" / name, content)
    known["mnist"] = parse_manifest(manifest_text(contents))["mnist"]
    return TinyMnist(tmp_path / "root", known["mnist"], contents)
