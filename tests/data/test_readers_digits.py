"""Array-file readers on small files made in each format."""

from __future__ import annotations

import bz2
import gzip
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedrepro.base.errors import FedReproError
from fedrepro.data.readers import READERS, Decoded, ReadSpec
from fedrepro.data.readers.common import resize_stack
from fedrepro.data.readers.digits import read_idx, read_libsvm, read_mat

RNG = np.random.default_rng(0)
DIGITS = tuple("0123456789")


def read(reader: str, size: int, **files: Path) -> Decoded:
    named = {role.replace("_", "-"): path for role, path in files.items()}
    return READERS[reader](ReadSpec("made", named, size, ("made",), DIGITS, {}))


def write_idx(path: Path, array: np.ndarray) -> Path:
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_libsvm(path: Path, values: np.ndarray, labels: np.ndarray) -> Path:
    lines = [
        " ".join([str(label + 1), *(f"{i}:{v:.6f}" for i, v in enumerate(row, start=1))]) + "\n"
        for row, label in zip(values, labels, strict=True)
    ]
    path.write_bytes(bz2.compress("".join(lines).encode()))
    return path


def test_idx_packing_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    array = RNG.integers(0, 256, (4,), dtype=np.uint8)
    path = write_idx(tmp_path / "a.gz", array).rename(tmp_path / "a")
    np.testing.assert_array_equal(read_idx(path, 1), array)


def test_mnist_joins_train_then_test(tmp_path: Path) -> None:
    train, test = (RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8) for n in (12, 11))
    decoded = read(
        "mnist",
        28,
        train_images=write_idx(tmp_path / "a", train),
        train_labels=write_idx(tmp_path / "b", np.arange(12) % 10),
        test_images=write_idx(tmp_path / "c", test),
        test_labels=write_idx(tmp_path / "d", np.arange(11) % 10),
    )
    np.testing.assert_array_equal(decoded.images[:, 0], np.concatenate([train, test]))
    np.testing.assert_array_equal(decoded.labels, [*np.arange(12) % 10, *np.arange(11) % 10])
    np.testing.assert_array_equal(decoded.part, [0] * 12 + [1] * 11)
    assert (decoded.images.dtype, decoded.labels.dtype) == (np.uint8, np.int64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], "does not fill the shape"),
        (lambda b: b + b"x", "does not fill the shape"),
        (lambda b: b"\0\0\x0d\x03" + b[4:], "starts with 00000d03"),
        (lambda b: b[:4] + b"\xff" * 12 + b[16:], "does not fill the shape"),
        (lambda b: b[:6], "cannot be read"),
        (lambda b: b"", "starts with"),
        (lambda b: gzip.compress(b)[:-30], "cannot be read"),
    ],
)
def test_broken_idx_is_one_line_naming_the_file(tmp_path: Path, change, message: str) -> None:
    path = write_idx(tmp_path / "images", RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FedReproError, match=message) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_usps_converts_as_torchvision_does(tmp_path: Path) -> None:
    values = np.round(RNG.uniform(-1, 1, (10, 256)), 6)
    values[0, :3] = [-1, 1, 0]
    path = write_libsvm(tmp_path / "usps.bz2", values, np.arange(10))
    images, labels = read_libsvm(path)
    written = np.array([[f"{v:.6f}" for v in row] for row in values]).astype(np.float32)
    expected = ((written + 1) / 2 * 255).astype(np.uint8).reshape(10, 16, 16)
    np.testing.assert_array_equal(images, expected)
    assert images[0, 0, :3].tolist() == [0, 255, 127]
    np.testing.assert_array_equal(labels, np.arange(10))


def test_usps_libsvm_refuses_wrong_ranges(tmp_path: Path) -> None:
    good = np.zeros((2, 256))
    with pytest.raises(FedReproError, match=r"labels run 0\.\.10"):
        read_libsvm(write_libsvm(tmp_path / "a", good, np.array([0, 10])))
    with pytest.raises(FedReproError, match=r"labels run -1\.\.0"):
        read_libsvm(write_libsvm(tmp_path / "b", good, np.array([0, -1])))
    with pytest.raises(FedReproError, match="pixel values run"):
        read_libsvm(write_libsvm(tmp_path / "c", good + 1.5, np.array([0, 1])))
    with pytest.raises(FedReproError, match="cannot be read"):
        read_libsvm(write_libsvm(tmp_path / "d", np.zeros((2, 257)), np.array([0, 1])))
    (tmp_path / "e").write_bytes(bz2.compress(b"1 1:0.5\n2 1:0."))
    with pytest.raises(FedReproError, match="middle of a line"):
        read_libsvm(tmp_path / "e")
    (tmp_path / "f").write_bytes(b"1 1:0.5\n")
    with pytest.raises(FedReproError, match="cannot be read"):
        read_libsvm(tmp_path / "f")


def write_h5(path: Path, target: np.ndarray, width: int = 256, scale: float = 1.0) -> Path:
    with h5py.File(path, "w") as file:
        for name in ("train", "test"):
            data = np.linspace(0, scale, len(target) * width).reshape(len(target), width)
            file[f"{name}/data"], file[f"{name}/target"] = data.astype(np.float32), target
    return path


def test_usps_h5(tmp_path: Path) -> None:
    decoded = read("usps-h5", 16, h5=write_h5(tmp_path / "usps.h5", np.arange(10)))
    assert decoded.images.shape == (20, 1, 16, 16)
    assert decoded.images[0, 0, 0, 0] == 0 and decoded.images[9, 0, 15, 15] == 255
    np.testing.assert_array_equal(decoded.part, [0] * 10 + [1] * 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": np.arange(11)}, "labels run 0..10"),
        ({"target": np.arange(10), "width": 255}, "has the shapes"),
        ({"target": np.arange(10), "scale": 2.0}, "pixel values run"),
        (None, "cannot be read"),
    ],
)
def test_usps_h5_refuses(tmp_path: Path, options: dict | None, message: str) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(b"no h5 at all") if options is None else write_h5(path, **options)
    with pytest.raises(FedReproError, match=message):
        read("usps-h5", 16, h5=path)


def write_mat(path: Path, y: np.ndarray, shape: tuple[int, ...] | None = None) -> Path:
    images = RNG.integers(0, 256, shape or (32, 32, 3, len(y)), dtype=np.uint8)
    savemat(path, {"X": images, "y": y.reshape(-1, 1).astype(np.uint8)})
    return path


def test_svhn_label_ten_is_the_digit_zero_and_axes_move(tmp_path: Path) -> None:
    path = write_mat(tmp_path / "test.mat", np.array([10, 1, 9]))
    images, labels = read_mat(path)
    assert images.shape == (3, 32, 32, 3)
    assert labels.tolist() == [0, 1, 9]
    decoded = read("svhn", 32, test=path)
    for n in range(3):
        np.testing.assert_array_equal(decoded.images[n].transpose(1, 2, 0), images[n])
    assert decoded.part.tolist() == [1, 1, 1]
    # SynthDigits is seen with labels from 0
    assert read_mat(write_mat(path, np.arange(10)))[1].tolist() == list(range(10))
    savemat(path, {"Z": np.zeros(3)})
    with pytest.raises(FedReproError, match="cannot be read"):
        read_mat(path)


@pytest.mark.parametrize(
    ("y", "shape", "message"),
    [
        (np.array([0, 10]), None, "both 0 and 10"),
        (np.array([1, 11]), None, "labels run 1..11"),
        (np.array([1, 2]), (32, 32, 3, 3), "2 labels for 3 images"),
        (np.array([1, 2]), (28, 28, 3, 2), "expected uint8"),
    ],
)
def test_mat_refuses(tmp_path: Path, y: np.ndarray, shape, message: str) -> None:
    with pytest.raises(FedReproError, match=message):
        read_mat(write_mat(tmp_path / "x.mat", y, shape))


@pytest.mark.parametrize("keep", [0, 100, 900])
def test_cut_mat(tmp_path: Path, keep: int) -> None:
    path = write_mat(tmp_path / "x.mat", np.array([1, 2]))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FedReproError, match=r"x\.mat"):
        read_mat(path)


def test_mnistm_npz(tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    y = np.arange(10)
    np.savez(tmp_path / "m.npz", train_x=x, train_y=y, test_x=x[:4], test_y=y[:4])
    decoded = read("mnistm-npz", 32, npz=tmp_path / "m.npz")
    np.testing.assert_array_equal(decoded.images[:10].transpose(0, 2, 3, 1), x)
    assert decoded.part.tolist() == [0] * 10 + [1] * 4


def test_npz_with_pickled_or_huge_arrays_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.empty(2, dtype=object)
    np.savez(tmp_path / "m.npz", train_x=x, train_y=x, test_x=x, test_y=x)
    with pytest.raises(FedReproError, match="cannot be read"):
        read("mnistm-npz", 32, npz=tmp_path / "m.npz")
    monkeypatch.setattr("fedrepro.data.readers.digits.MAX_NPZ", 100)
    with pytest.raises(FedReproError, match="bytes long"):
        read("mnistm-npz", 32, npz=tmp_path / "m.npz")
    (tmp_path / "n.npz").write_bytes((tmp_path / "m.npz").read_bytes()[:200])
    with pytest.raises(FedReproError, match="cannot be read"):
        read("mnistm-npz", 32, npz=tmp_path / "n.npz")


def test_resizing_is_pillows_bilinear() -> None:
    stack = RNG.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    small = resize_stack(stack, 28)
    expected = np.asarray(Image.fromarray(stack[1]).resize((28, 28), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(small[1].transpose(1, 2, 0), expected)
    flat = resize_stack(np.full((1, 16, 16), 77, np.uint8), 28)
    assert flat.shape == (1, 1, 28, 28) and (flat == 77).all()
