"""Readers of arrays on small files made in each format: pixels, labels, parts, what is refused."""

import bz2
import gzip
from pathlib import Path

import numpy as np
from scipy.io import savemat

from fedrepro.data.manifest import COLLECTIONS
from tests.data.conftest import idx
from tests.data.made import Members, pack, put, read, refused

RNG = np.random.default_rng(0)


def test_mnist_joins_train_then_test_and_tells_packing_by_content(tmp_path):
    files, pixels = {}, b""
    for part, n in (("train", 12), ("test", 11)):
        images = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        files[f"{part}-images"] = put(tmp_path / f"{part}.gz", idx(images))  # not packed at all
        labels = gzip.compress(idx(np.arange(n, dtype=np.uint8) % 10))
        files[f"{part}-labels"] = put(tmp_path / f"{part}-labels", labels)
        pixels += images.tobytes()
    found = read("mnist", 28, files)
    assert found.images.tobytes() == pixels and found.images.shape == (23, 1, 28, 28)
    assert found.labels.tolist() == [*np.arange(12) % 10, *np.arange(11) % 10]
    assert found.part.tolist() == [0] * 12 + [1] * 11
    path = files["train-images"]
    whole = path.read_bytes()
    for content, message in (
        (whole[:-1], "does not fill the shape"),
        (b"\0\0\x0d\x03" + whole[4:], "starts with 00000d03"),
        (whole[:6], "cannot be read"),
        (gzip.compress(whole)[:-30], "cannot be read"),
    ):
        refused(message, put(path, content), "mnist", files)


def usps(path: Path, values: np.ndarray, labels: list[int]) -> dict[str, Path]:
    rows = [
        " ".join([str(label + 1), *(f"{i}:{v:.6f}" for i, v in enumerate(row, 1))]) + "\n"
        for row, label in zip(values, labels, strict=True)
    ]
    put(path, bz2.compress("".join(rows).encode()))
    return {"train": path, "test": path}


def test_usps_converts_as_torchvision_does(tmp_path):
    values = np.round(RNG.uniform(-1, 1, (10, 256)), 6)
    values[0, :3] = [-1, 1, 0]
    found = read("usps-libsvm", 16, usps(tmp_path / "usps.bz2", values, [*range(10)]))
    expected = ((values.astype(np.float32) + 1) / 2 * 255).astype(np.uint8)
    np.testing.assert_array_equal(found.images[:10, 0], expected.reshape(10, 16, 16))
    assert found.images[0, 0, 0, :3].tolist() == [0, 255, 127]
    assert found.labels.tolist() == [*range(10), *range(10)]
    good, path = np.zeros((2, 256)), tmp_path / "u.bz2"
    for values, labels, message in (
        (good, [0, 10], r"labels run 0\.\.10"),
        (good + 1.5, [0, 1], "pixel values run"),
        (np.zeros((2, 257)), [0, 1], "cannot be read"),
    ):
        refused(message, path, "usps-libsvm", usps(path, values, labels))
    cut = put(path, bz2.compress(b"1 1:0.5\n2 1:0."))
    refused("middle of a line", cut, "usps-libsvm", {"train": path})


def test_svhn_label_ten_is_the_digit_zero_and_axes_move(tmp_path):
    path = tmp_path / "test.mat"

    def mat(labels, *shape):
        images = RNG.integers(0, 256, shape or (32, 32, 3, len(labels)), dtype=np.uint8)
        savemat(path, {"X": images, "y": np.array(labels, np.uint8)[:, None]})
        return images

    def bad(message, labels, *shape):
        mat(labels, *shape)
        refused(message, path, "svhn", {"test": path})

    images = mat([10, 1, 9])
    found = read("svhn", 32, {"test": path})
    np.testing.assert_array_equal(found.images, images.transpose(3, 2, 0, 1))
    assert found.labels.tolist() == [0, 1, 9] and found.part.tolist() == [1, 1, 1]
    mat([*range(10)])  # SynthDigits is seen with labels from 0
    assert read("svhn", 32, {"test": path}).labels.tolist() == [*range(10)]
    bad("both 0 and 10", [0, 10])
    bad(r"labels run 1\.\.11", [1, 11])
    bad("2 labels for 3 images", [1, 2], 32, 32, 3, 3)
    bad("expected uint8", [1, 2], 28, 28, 3, 2)
    refused("test.mat", put(path, path.read_bytes()[:900]), "svhn", {"test": path})


def test_mnistm_npz(tmp_path, monkeypatch):
    path, x, y = tmp_path / "m.npz", RNG.integers(0, 256, (10, 32, 32, 3), np.uint8), np.arange(10)
    np.savez(path, train_x=x, train_y=y, test_x=x[:4], test_y=y[:4])
    found = read("mnistm-npz", 32, {"npz": path})
    np.testing.assert_array_equal(found.images[:10].transpose(0, 2, 3, 1), x)
    assert found.part.tolist() == [0] * 10 + [1] * 4
    pickled = np.empty(2, dtype=object)
    np.savez(path, train_x=pickled, train_y=pickled, test_x=pickled, test_y=pickled)
    refused("cannot be read", path, "mnistm-npz", {"npz": path})
    monkeypatch.setattr("fedrepro.data.readers.official.MAX_NPZ", 100)
    refused("bytes long", path, "mnistm-npz", {"npz": path})
    refused("cannot be read", put(path, path.read_bytes()[:200]), "mnistm-npz", {"npz": path})


def record(coarse: bytes, label: int, value: int) -> bytes:
    """An image of three flat planes (value, value + 1, value + 2); row 0, column 1 is 0."""
    planes = np.repeat(np.arange(value, value + 3, dtype=np.uint8)[:, None], 1024, axis=1)
    planes[:, 1] = 0
    return coarse + bytes([label]) + planes.tobytes()


def cifar(name: str) -> Members:
    ten, coarse = name == "cifar10", b"" if name == "cifar10" else b"\7"
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)] if ten else ["train.bin"]
    names = "batches.meta.txt" if ten else "fine_label_names.txt"
    members = {
        f"c/{batch}": record(coarse, i, 10 * i) + record(coarse, 9, 200)
        for i, batch in enumerate(batches)
    }
    members["c/test_batch.bin" if ten else "c/test.bin"] = record(coarse, 3, 100)
    text = "\n".join(COLLECTIONS[name].classes)
    return {**members, f"c/{names}": text.encode(), "c/readme.html": b"<html>"}


def test_cifar_records(tmp_path):
    for name, batches in (("cifar100", 1), ("cifar10", 5)):
        classes = COLLECTIONS[name].classes
        path = pack(tmp_path / "c.tar.gz", cifar(name))
        found = read(f"{name}-binary", 32, {"archive": path}, classes=classes)
        assert found.labels.tolist() == [y for i in range(batches) for y in (i, 9)] + [3]
        assert found.part.tolist() == [0] * 2 * batches + [1]
        assert found.images[-1, :, 31, 31].tolist() == [100, 101, 102]
        assert np.argwhere(found.images[-1] == 0).tolist() == [[plane, 0, 1] for plane in range(3)]
    for member, change, message in (
        ("c/data_batch_1.bin", None, "has no member data_batch_1.bin"),
        ("c/data_batch_1.bin", lambda b: b[:-1], "not made of 3073-byte records"),
        ("c/data_batch_1.bin", lambda b: b"\x0a" + b[1:], r"labels run 9\.\.10"),
        ("c/batches.meta.txt", lambda b: b"cat\ndog\n", "lists other classes"),
    ):
        members = cifar("cifar10")
        content = members.pop(member)
        path = pack(tmp_path / "c.tar.gz", members | ({member: change(content)} if change else {}))
        refused(message, path, "cifar10-binary", {"archive": path}, classes=classes)
