"""Digit sets that come as array files: MNIST idx, USPS LIBSVM and h5, SVHN .mat, MNIST-M .npz."""

from __future__ import annotations

import bz2
import gzip
import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrepro.data.readers.common import (
    MAX_FILE_BYTES,
    TEST,
    TRAIN,
    Decoded,
    Images,
    Labels,
    ReadSpec,
    check,
    check_labels,
    join,
    reading,
    resize_stack,
)

IDX_UBYTE = 0x08  # the idx type code of unsigned bytes
GZIP_MAGIC = b"\x1f\x8b"
USPS_PIXELS = 16 * 16
NPZ_SIDE = 32


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """An idx or gzipped idx file of unsigned bytes, told apart by content, as its array."""
    with reading(path):
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as file:
            head = file.read(4 + 4 * dimensions)
            magic = struct.pack(">HBB", 0, IDX_UBYTE, dimensions)
            check(head[:4] == magic, path, f"starts with {head[:4].hex()}, not {magic.hex()}")
            shape = struct.unpack(f">{dimensions}I", head[4:])
            wanted = int(np.prod(shape, dtype=np.int64))
            check(wanted <= MAX_FILE_BYTES, path, f"claims the shape {shape}, too large")
            body = file.read(wanted + 1)  # one byte more shows a tail
    check(len(body) == wanted, path, f"its content does not fill the shape {shape} it claims")
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_mnist(spec: ReadSpec) -> Decoded:
    """Four idx files; 28x28 grey, labels 0..9."""
    blocks = []
    for name, part in (("train", TRAIN), ("test", TEST)):
        image_path, label_path = spec.files[f"{name}-images"], spec.files[f"{name}-labels"]
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1).astype(np.int64)
        check(images.shape[1:] == (28, 28), image_path, f"images are {images.shape[1:]}, not 28x28")
        check(len(images) == len(labels), label_path, f"{len(labels)} labels, {len(images)} images")
        check_labels(labels, 10, label_path)
        blocks.append((resize_stack(images, spec.size), labels, part))
    return join(blocks)


def usps_bytes(values: npt.NDArray[np.float32], path: Path) -> Images:
    """Values in [-1, 1] (n, 256) -> uint8 (n, 16, 16), truncated as torchvision does."""
    low, high = float(values.min()), float(values.max())
    check(low >= -1 and high <= 1, path, f"pixel values run {low:g}..{high:g}, expected -1..1")
    return ((values.reshape(-1, 16, 16) + 1) / 2 * 255).astype(np.uint8)


def read_libsvm(path: Path) -> tuple[Images, Labels]:
    """A bzip2 LIBSVM text: labels 1..10 are the digits 0..9, 256 values in [-1, 1] a line."""
    from sklearn.datasets import load_svmlight_file  # costs a second to import

    with reading(path):
        with bz2.open(path) as file:
            text = file.read(MAX_FILE_BYTES + 1)
        check(len(text) <= MAX_FILE_BYTES, path, "unpacks to more than 64 MiB")
        check(text.endswith(b"\n"), path, "ends in the middle of a line")
        matrix, target = load_svmlight_file(BytesIO(text), n_features=USPS_PIXELS)
        check(matrix.shape[0] > 0, path, "holds no images")
        values = matrix.toarray().astype(np.float32)
    labels = target.astype(np.int64) - 1
    check(bool(np.all(labels + 1 == target)), path, "labels are not whole numbers")
    check_labels(labels, 10, path)
    return usps_bytes(values, path), labels


def read_usps_libsvm(spec: ReadSpec) -> Decoded:
    """The two files torchvision reads, or a rebuilt training file of the same format."""
    blocks = []
    for name, part in (("train", TRAIN), ("test", TEST)):
        images, labels = read_libsvm(spec.files[name])
        blocks.append((resize_stack(images, spec.size), labels, part))
    return join(blocks)


def read_usps_h5(spec: ReadSpec) -> Decoded:
    """Groups train and test with data (n, 256) in [0, 1] and target 0..9."""
    import h5py

    path, blocks = spec.files["h5"], []
    with reading(path), h5py.File(path, "r") as file:
        for name, part in (("train", TRAIN), ("test", TEST)):
            data, target = file[name]["data"], file[name]["target"]
            check(
                data.ndim == 2 and data.shape[1] == USPS_PIXELS and len(data) == len(target),
                path,
                f"{name} has the shapes {data.shape} and {target.shape}",
            )
            check(data.size <= MAX_FILE_BYTES, path, f"{name} is too large")
            values = data[:].astype(np.float32)
            labels = target[:].astype(np.int64)
            check_labels(labels, 10, path)
            images = usps_bytes(values * 2 - 1, path)
            blocks.append((resize_stack(images, spec.size), labels, part))
    return join(blocks)


def read_mat(path: Path) -> tuple[Images, Labels]:
    """A cropped-digits .mat: X uint8 (32, 32, 3, n), y (n, 1) -> images (n, 32, 32, 3), labels.

    SVHN writes the digit 0 as 10; SynthDigits files are seen with 0 and with 10. A file that has
    both would be ambiguous and is refused.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    with reading(path):
        try:
            content = loadmat(str(path), variable_names=["X", "y"])
        except MatReadError as error:
            raise ValueError(str(error)) from error
        images, raw = np.asarray(content["X"]), np.asarray(content["y"])
    check(
        images.ndim == 4 and images.shape[:3] == (32, 32, 3) and images.dtype == np.uint8,
        path,
        f"X is {images.dtype} {images.shape}, expected uint8 (32, 32, 3, n)",
    )
    check(
        raw.size == images.shape[3] and raw.dtype.kind in "uif",
        path,
        f"y has {raw.size} labels for {images.shape[3]} images",
    )
    labels = raw.reshape(-1).astype(np.int64)
    check(bool(np.all(labels == raw.reshape(-1))), path, "labels are not whole numbers")
    tens = labels == 10
    check(not (tens.any() and (labels == 0).any()), path, "labels hold both 0 and 10")
    labels[tens] = 0
    check_labels(labels, 10, path)
    return np.moveaxis(images, 3, 0), labels


def read_svhn(spec: ReadSpec) -> Decoded:
    """train and test .mat files, or the test file alone."""
    blocks = []
    for name, part in (("train", TRAIN), ("test", TEST)):
        if name in spec.files:
            images, labels = read_mat(spec.files[name])
            blocks.append((resize_stack(images, spec.size), labels, part))
    return join(blocks)


def read_mnistm_npz(spec: ReadSpec) -> Decoded:
    """train_x, train_y, test_x, test_y; 32x32 colour, labels 0..9."""
    path, blocks = spec.files["npz"], []
    with reading(path), np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in ("train_x", "train_y", "test_x", "test_y")}
    for name, part in (("train", TRAIN), ("test", TEST)):
        images, labels = arrays[f"{name}_x"], arrays[f"{name}_y"]
        check(
            images.dtype == np.uint8 and images.shape == (len(labels), NPZ_SIDE, NPZ_SIDE, 3),
            path,
            f"{name}_x is {images.dtype} {images.shape} for {len(labels)} labels",
        )
        check(labels.ndim == 1 and labels.dtype.kind in "ui", path, f"{name}_y is {labels.dtype}")
        check_labels(labels.astype(np.int64), 10, path)
        blocks.append((resize_stack(images, spec.size), labels.astype(np.int64), part))
    return join(blocks)
