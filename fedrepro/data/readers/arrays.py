"""Data sets released as arrays: MNIST idx, USPS LIBSVM, SVHN mat, MNIST-M npz, CIFAR binary.
torchvision reads some of them too, but trusts the files' headers."""

import bz2
import gzip
import math
import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrepro.data.readers import common
from fedrepro.data.readers.common import Block, ReadSpec, check, check_labels, reader, resize_stack

USPS_PIXELS = 16 * 16
NPZ_NAMES = {"train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy"}
MAX_NPZ = 2**28  # 60,000 images of 32 x 32 in colour are 184 MB
CIFAR_PIXELS = 3 * 32 * 32
FINE = "fine_label_names.txt"
MAX_CIFAR = 160_000_000  # the longest member: 50,000 records of CIFAR-100


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of an idx or gzipped idx file of unsigned bytes; the content decides which."""
    with common.reading(path):
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            opened = gzip.GzipFile(fileobj=raw) if packed else raw
            content = opened.read(common.MAX_FILE_BYTES + 1)
        magic, start = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions  # 8: unsigned bytes
        check(content[:4] == magic, path, f"starts with {content[:4].hex()}, not {magic.hex()}")
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
    full = len(content) - start == math.prod(shape)
    check(full, path, f"its content does not fill the shape {shape} it claims")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


@reader("mnist")
def mnist(spec: ReadSpec) -> Iterator[Block]:
    """Four idx files; 28x28 grey, labels 0..9."""
    for name, part in common.PARTS:
        path, label_path = spec.files[f"{name}-images"], spec.files[f"{name}-labels"]
        images = read_idx(path, 3)
        labels = check_labels(read_idx(label_path, 1), 10, label_path)
        check(images.shape[1:] == (28, 28), path, f"images are {images.shape[1:]}, not 28x28")
        check(len(images) == len(labels), label_path, f"{len(labels)} labels, {len(images)} images")
        yield resize_stack(images, spec.size), labels, part


@reader("usps-libsvm")
def usps_libsvm(spec: ReadSpec) -> Iterator[Block]:
    """bzip2 LIBSVM texts: labels 1..10 are the digits 0..9, 256 values in [-1, 1] per line."""
    from sklearn.datasets import load_svmlight_file  # costs a second to import

    for name, part in common.PARTS:
        path = spec.files[name]
        with common.reading(path):
            with bz2.open(path) as file:
                text = file.read(common.MAX_FILE_BYTES + 1)
            check(len(text) <= common.MAX_FILE_BYTES, path, "unpacks to more than 64 MiB")
            check(text.endswith(b"\n"), path, "ends in the middle of a line")
            matrix, target = load_svmlight_file(BytesIO(text), n_features=USPS_PIXELS)
        labels = check_labels(target - 1, 10, path)
        values = matrix.toarray().astype(np.float32).reshape(-1, 16, 16)
        low, high = values.min(), values.max()
        check(low >= -1 and high <= 1, path, f"pixel values run {low:g}..{high:g}, expected -1..1")
        images = ((values + 1) / 2 * 255).astype(np.uint8)  # truncated as torchvision does
        yield resize_stack(images, spec.size), labels, part


@reader("svhn")
def svhn(spec: ReadSpec) -> Iterator[Block]:
    """Cropped-digits .mat files, train and test or test alone: X uint8 (32, 32, 3, n), y (n, 1).
    SVHN writes the digit 0 as 10; SynthDigits files have either. A file with both is refused."""
    from scipy.io import loadmat

    present = [(spec.files[name], part) for name, part in common.PARTS if name in spec.files]
    for path, part in present:
        with common.reading(path):
            content = loadmat(str(path), variable_names=["X", "y"])
            images, raw = np.asarray(content["X"]), np.asarray(content["y"])
        fits = images.ndim == 4 and images.shape[:3] == (32, 32, 3) and images.dtype == np.uint8
        check(fits, path, f"X is {images.dtype} {images.shape}, expected uint8 (32, 32, 3, n)")
        count = images.shape[3]
        fits = raw.size == count and raw.dtype.kind in "uif"
        check(fits, path, f"y has {raw.size} labels for {count} images")
        check(not ((raw == 10).any() and (raw == 0).any()), path, "labels hold both 0 and 10")
        labels = check_labels(np.where(raw == 10, 0, raw), 10, path)
        yield resize_stack(np.moveaxis(images, 3, 0), spec.size), labels, part


@reader("mnistm-npz")
def mnistm_npz(spec: ReadSpec) -> Iterator[Block]:
    """train_x, train_y, test_x, test_y; 32x32 colour, labels 0..9."""
    path = spec.files["npz"]
    with common.reading(path):
        files = common.files_in(path, NPZ_NAMES.__contains__, MAX_NPZ)
        arrays = {f.parts[-1]: np.load(BytesIO(f.read()), allow_pickle=False) for f in files}
        for name, part in common.PARTS:
            images, raw = arrays[f"{name}_x.npy"], arrays[f"{name}_y.npy"]
            fits = images.dtype == np.uint8 and images.shape == (raw.size, 32, 32, 3)
            check(fits, path, f"{name}_x is {images.dtype} {images.shape} for {raw.size} labels")
            labels = check_labels(raw, 10, path)
            yield resize_stack(images, spec.size), labels, part


@reader("cifar10-binary", "cifar100-binary")
def cifar(spec: ReadSpec) -> Iterator[Block]:
    """Records: a label (CIFAR-100 has a coarse one before it), then red, green and blue planes, row
    by row. These are the official archives that cannot run code."""
    archive, ten = spec.files["archive"], len(spec.classes) == 10
    train = [f"data_batch_{i}.bin" for i in range(1, 6)] if ten else ["train.bin"]
    test, names = ("test_batch.bin", "batches.meta.txt") if ten else ("test.bin", FINE)
    start = 1 if ten else 2  # of the planes
    wanted, length = {*train, test, names}, start + CIFAR_PIXELS
    files = common.files_in(archive, wanted.__contains__, MAX_CIFAR)
    members = {file.parts[-1]: file.read() for file in files}
    missing = sorted(wanted - set(members))
    check(not missing, archive, f"has no member {', '.join(missing)}")
    told = tuple(members[names].decode("utf-8", "replace").split())
    check(told == spec.classes, archive, f"{names} lists other classes than expected")
    for name in (*train, test):
        whole = len(members[name]) % length == 0
        check(whole, archive, f"a member is not made of {length}-byte records")
        rows = np.frombuffer(members[name], np.uint8).reshape(-1, length)
        label = check_labels(rows[:, start - 1], len(spec.classes), archive)
        planes = rows[:, start:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        yield resize_stack(planes, spec.size), label, int(name == test)
