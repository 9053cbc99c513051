"""A made-up MNIST of 30 images with a manifest of its own, for everything around the readers."""

from __future__ import annotations

import gzip
import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedrepro.data.manifest import Manifest, parse_manifest

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
    manifest: Manifest
    contents: dict[str, bytes]


def idx(array: np.ndarray) -> bytes:
    """The idx form of a uint8 array."""
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def manifest_text(contents: dict[str, bytes]) -> str:
    """A manifest for these files, by sha256."""
    rows = []
    for role, name in FILES.items():
        digest = hashlib.sha256(contents[name]).hexdigest()
        rows.append(
            f'{{ role = "{role}", names = ["{name}"], bytes = {len(contents[name])}, '
            f'sha256 = "{digest}" }}'
        )
    return (
        '[mnist]\nlicence = "free"\ncitation = "none"\nmanual = "Draw it by hand."\n'
        'places = ["mnist"]\ndomains = { mnist = { folders = ["mnist"] } }\n'
        '[[mnist.sources]]\nname = "official"\nreader = "mnist"\ntotals = [[20, 10, 0]]\n'
        f"files = [{', '.join(rows)}]\n"
    )


def tiny_contents() -> dict[str, bytes]:
    """The four gzipped files by name."""
    arrays = {}
    for part, count in (("train", 20), ("test", 10)):
        index = np.arange(count, dtype=np.uint8)
        arrays[f"{part}-images"] = np.broadcast_to(index[:, None, None], (count, 28, 28))
        arrays[f"{part}-labels"] = index % 10
    return {FILES[r]: gzip.compress(idx(np.ascontiguousarray(a))) for r, a in arrays.items()}


@pytest.fixture
def tiny_mnist(tmp_path: Path) -> TinyMnist:
    """Fresh files for each test, free to be broken."""
    contents = tiny_contents()
    folder = tmp_path / "root" / "mnist"
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return TinyMnist(tmp_path / "root", parse_manifest(manifest_text(contents)), contents)
