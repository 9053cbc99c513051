"""Readers on small files made in each format: pixels, labels, parts, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedrepro.base.errors import FedReproError
from fedrepro.data.manifest import default_manifest
from fedrepro.data.readers import READERS, Decoded, ReadSpec
from fedrepro.data.readers.common import files_in, resize_stack
from tests.data.conftest import idx

RNG = np.random.default_rng(0)
DIGITS = tuple("0123456789")
OFFICE = default_manifest().collections["office10"]
NET = default_manifest().collections["domainnet"]
Members = dict[str, bytes]


def read(reader: str, size: int, files: dict[str, Path], **known: Any) -> Decoded:
    told = {"domain": "made", "folders": ("made",), "classes": DIGITS, "spellings": {}, **known}
    return READERS[reader](ReadSpec(files=files, size=size, **told))


def refused(message: str, path: Path, reader: str, files: dict[str, Path], **known: Any) -> None:
    """Reading is one line that names the file and says what is wrong."""
    with pytest.raises(FedReproError, match=message) as caught:
        read(reader, 8, files, **known)
    assert "\n" not in str(caught.value) and path.name in str(caught.value)


def picture(value: int, mode: str = "RGB", side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 255)).save(buffer, "PNG")
    return buffer.getvalue()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def pack(path: Path, members: Members) -> Path:
    """A tar, a zip, or a folder of that name."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in members.items():
                info = zipfile.ZipInfo("x")
                info.filename = name  # the constructor would mend a hostile name
                packed.writestr(info, content)
    elif path.name.endswith((".tar", ".tar.gz")):
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    else:
        for name, content in members.items():
            put(path.parent / name, content)
    return path


# Arrays.


def mnist(tmp_path: Path) -> dict[str, Path]:
    files = {}
    for part, n in (("train", 12), ("test", 11)):
        images = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        files[f"{part}-images"] = put(tmp_path / f"{part}.gz", idx(images))  # not packed at all
        labels = gzip.compress(idx(np.arange(n, dtype=np.uint8) % 10))
        files[f"{part}-labels"] = put(tmp_path / f"{part}-labels", labels)
    return files


def test_mnist_joins_train_then_test_and_tells_packing_by_content(tmp_path: Path) -> None:
    files = mnist(tmp_path)
    found = read("mnist", 28, files)
    pixels = b"".join(files[f"{part}-images"].read_bytes()[16:] for part in ("train", "test"))
    assert found.images.tobytes() == pixels and found.images.shape == (23, 1, 28, 28)
    assert found.labels.tolist() == [*np.arange(12) % 10, *np.arange(11) % 10]
    assert found.part.tolist() == [0] * 12 + [1] * 11
    types = (found.images.dtype, found.labels.dtype, found.part.dtype)
    assert types == (np.uint8, np.int64, np.int8)


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
def test_broken_idx(tmp_path: Path, change: Any, message: str) -> None:
    files = mnist(tmp_path)
    path = files["train-images"]
    path.write_bytes(change(path.read_bytes()))
    refused(message, path, "mnist", files)


def usps(path: Path, values: np.ndarray, labels: np.ndarray) -> dict[str, Path]:
    rows = [
        " ".join([str(label + 1), *(f"{i}:{v:.6f}" for i, v in enumerate(row, 1))]) + "\n"
        for row, label in zip(values, labels, strict=True)
    ]
    put(path, bz2.compress("".join(rows).encode()))
    return {"train": path, "test": path}


def test_usps_converts_as_torchvision_does(tmp_path: Path) -> None:
    values = np.round(RNG.uniform(-1, 1, (10, 256)), 6)
    values[0, :3] = [-1, 1, 0]
    found = read("usps-libsvm", 16, usps(tmp_path / "usps.bz2", values, np.arange(10)))
    expected = ((values.astype(np.float32) + 1) / 2 * 255).astype(np.uint8)
    np.testing.assert_array_equal(found.images[:10, 0], expected.reshape(10, 16, 16))
    assert found.images[0, 0, 0, :3].tolist() == [0, 255, 127]
    assert found.labels.tolist() == [*range(10), *range(10)]


def test_usps_files_that_are_refused(tmp_path: Path) -> None:
    good, path = np.zeros((2, 256)), tmp_path / "u.bz2"
    for values, labels, message in (
        (good, [0, 10], r"labels run 0\.\.10"),
        (good, [0, -1], r"labels run -1\.\.0"),
        (good + 1.5, [0, 1], "pixel values run"),
        (np.zeros((2, 257)), [0, 1], "cannot be read"),
    ):
        refused(message, path, "usps-libsvm", usps(path, values, np.array(labels)))
    put(path, bz2.compress(b"1 1:0.5\n2 1:0."))
    refused("middle of a line", path, "usps-libsvm", {"train": path})
    put(path, b"1 1:0.5\n")
    refused("cannot be read", path, "usps-libsvm", {"train": path})


def h5(path: Path, labels: int = 10, width: int = 256, scale: float = 1.0) -> dict[str, Path]:
    with h5py.File(path, "w") as file:
        for name in ("train", "test"):
            data = np.linspace(0, scale, labels * width).reshape(labels, width)
            file[f"{name}/data"], file[f"{name}/target"] = data, np.arange(labels)
    return {"h5": path}


def test_usps_h5(tmp_path: Path) -> None:
    path = tmp_path / "usps.h5"
    found = read("usps-h5", 16, h5(path))
    assert found.images[0, 0, 0, 0] == 0 and found.images[9, 0, 15, 15] == 255
    assert found.part.tolist() == [0] * 10 + [1] * 10
    refused(r"labels run 0\.\.10", path, "usps-h5", h5(path, labels=11))
    refused("has the shapes", path, "usps-h5", h5(path, width=255))
    refused("pixel values run", path, "usps-h5", h5(path, scale=2.0))
    put(path, b"no h5 at all")
    refused("cannot be read", path, "usps-h5", {"h5": path})


def mat(path: Path, labels: list[int], shape: tuple[int, ...] | None = None) -> dict[str, Path]:
    images = RNG.integers(0, 256, shape or (32, 32, 3, len(labels)), dtype=np.uint8)
    savemat(path, {"X": images, "y": np.array(labels, np.uint8)[:, None]})
    return {"test": path}


def test_svhn_label_ten_is_the_digit_zero_and_axes_move(tmp_path: Path) -> None:
    path = tmp_path / "test.mat"
    images = RNG.integers(0, 256, (32, 32, 3, 3), dtype=np.uint8)
    savemat(path, {"X": images, "y": np.array([[10], [1], [9]], np.uint8)})
    found = read("svhn", 32, {"test": path})
    np.testing.assert_array_equal(found.images, images.transpose(3, 2, 0, 1))
    assert found.labels.tolist() == [0, 1, 9] and found.part.tolist() == [1, 1, 1]
    # SynthDigits is seen with labels from 0
    assert read("svhn", 32, mat(path, [*range(10)])).labels.tolist() == [*range(10)]
    refused("both 0 and 10", path, "svhn", mat(path, [0, 10]))
    refused(r"labels run 1\.\.11", path, "svhn", mat(path, [1, 11]))
    refused("2 labels for 3 images", path, "svhn", mat(path, [1, 2], (32, 32, 3, 3)))
    refused("expected uint8", path, "svhn", mat(path, [1, 2], (28, 28, 3, 2)))
    content = mat(path, [1, 2])["test"].read_bytes()
    for keep in (0, 100, 900):
        refused("test.mat", put(path, content[:keep]), "svhn", {"test": path})


def test_mnistm_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x, y = tmp_path / "m.npz", RNG.integers(0, 256, (10, 32, 32, 3), np.uint8), np.arange(10)
    np.savez(path, train_x=x, train_y=y, test_x=x[:4], test_y=y[:4])
    found = read("mnistm-npz", 32, {"npz": path})
    np.testing.assert_array_equal(found.images[:10].transpose(0, 2, 3, 1), x)
    assert found.part.tolist() == [0] * 10 + [1] * 4
    small = resize_stack(x, 28)[1].transpose(1, 2, 0)
    expected = Image.fromarray(x[1]).resize((28, 28), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(small, np.asarray(expected))
    pickled = np.empty(2, dtype=object)
    np.savez(path, train_x=pickled, train_y=pickled, test_x=pickled, test_y=pickled)
    refused("cannot be read", path, "mnistm-npz", {"npz": path})
    monkeypatch.setattr("fedrepro.data.readers.arrays.MAX_NPZ", 100)
    refused("bytes long", path, "mnistm-npz", {"npz": path})
    put(path, path.read_bytes()[:200])
    refused("cannot be read", path, "mnistm-npz", {"npz": path})


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
    text = "\n".join(default_manifest().collections[name].classes)
    return {**members, f"c/{names}": text.encode(), "c/readme.html": b"<html>"}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_records(tmp_path: Path, name: str) -> None:
    classes = default_manifest().collections[name].classes
    path = pack(tmp_path / "c.tar.gz", cifar(name))
    found = read(f"{name}-binary", 32, {"archive": path}, classes=classes)
    batches = 5 if name == "cifar10" else 1
    assert found.labels.tolist() == [y for i in range(batches) for y in (i, 9)] + [3]
    assert found.part.tolist() == [0] * 2 * batches + [1]
    assert found.images[-1, :, 31, 31].tolist() == [100, 101, 102]
    assert np.argwhere(found.images[-1] == 0).tolist() == [[plane, 0, 1] for plane in range(3)]


@pytest.mark.parametrize(
    ("member", "change", "message"),
    [
        ("c/data_batch_1.bin", None, "has no member data_batch_1.bin"),
        ("c/data_batch_1.bin", lambda b: b[:-1], "not made of 3073-byte records"),
        ("c/data_batch_1.bin", lambda b: b"\x0a" + b[1:], r"labels run 9\.\.10"),
        ("c/batches.meta.txt", lambda b: b"cat\ndog\n", "lists other classes"),
    ],
)
def test_altered_cifar(tmp_path: Path, member: str, change: Any, message: str) -> None:
    members = cifar("cifar10")
    content = members.pop(member)
    path = pack(tmp_path / "c.tar.gz", members | ({member: change(content)} if change else {}))
    classes = default_manifest().collections["cifar10"].classes
    refused(message, path, "cifar10-binary", {"archive": path}, classes=classes)


# Pictures.


def office(path: Path) -> Decoded:
    known = {"folders": OFFICE.domains["caltech"].folders, "classes": OFFICE.classes}
    return read("class-tar", 8, {"images": path}, spellings=OFFICE.spellings, **known)


@pytest.mark.parametrize("images", ["", "images/"])
@pytest.mark.parametrize("spelling", ["backpack", "Back-Pack", "003.backpack"])
def test_folder_tar_and_zip_agree_in_every_spelling(
    tmp_path: Path, spelling: str, images: str
) -> None:
    members = {
        f"caltech10/{images}laptop_computer/b.png": picture(3),
        f"caltech10/{images}{spelling}/z.png": picture(2),
        f"caltech10/{images}{spelling}/a.png": picture(1, "L"),
        f"caltech10/{images}{spelling}/._a.png": b"left by another system",
        f"amazon/{images}{spelling}/a.png": picture(9),
        f"caltech10/{images}ruler/a.png": picture(9),
        "caltech10/readme.txt": b"not a picture",
    }
    for name in ("caltech10", "set.tar.gz", "set.zip"):
        found = office(pack(tmp_path / name, members))
        assert found.labels.tolist() == [0, 0, 5]  # sorted by class, then file name
        # a grey picture among coloured ones is repeated over the channels
        assert found.images[:, :, 0, 0].tolist() == [[1, 1, 1], [2, 0, 255], [3, 0, 255]]
        assert found.part.tolist() == [-1, -1, -1]


def test_all_grey_stays_grey_and_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "caltech").mkdir()
    with pytest.raises(FedReproError, match="holds no pictures of made"):
        office(tmp_path / "caltech")
    put(tmp_path / "caltech/bike/a.png", picture(5, "L"))
    assert office(tmp_path / "caltech").images.shape == (1, 1, 8, 8)


@pytest.mark.parametrize("kind", ["x.tar", "x.zip"])
@pytest.mark.parametrize("name", ["/etc/x.png", "photo/../../x.png", "photo\\dog\\x.png"])
def test_hostile_names_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    archive = pack(tmp_path / kind, {name: picture(1)})
    with pytest.raises(FedReproError, match="leaves the archive"):
        list(files_in(archive))


def test_links_devices_locked_and_huge_members_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_fail(path: Path, message: str) -> None:
        with pytest.raises(FedReproError, match=message):
            list(files_in(path))

    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            info = tarfile.TarInfo("photo/dog/a.png")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        must_fail(tmp_path / "x.tar", "link or a device")
    info = tarfile.TarInfo("photo/dog/a.png")
    info.size = 2**40
    must_fail(put(tmp_path / "huge.tar", info.tobuf()), "bytes long")
    link = zipfile.ZipInfo("clipart/bird/a.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as packed:
        packed.writestr(link, b"/etc/passwd")
    must_fail(tmp_path / "link.zip", "is a link")
    content = bytearray(pack(tmp_path / "x.zip", {"a.png": picture(1)}).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of an encrypted member
    must_fail(put(tmp_path / "locked.zip", bytes(content)), "or locked")
    for limit, value in (("MAX_ARCHIVE_BYTES", 10), ("MAX_MEMBERS", 0)):
        monkeypatch.setattr(f"fedrepro.data.readers.common.{limit}", value)
        must_fail(tmp_path / "x.zip", "members or over 16 GiB")
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_cut_archives_and_broken_or_huge_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    member = "made/1/a.png"
    path = pack(tmp_path / name, {member: picture(1, side=64)})
    content = path.read_bytes()
    for keep in (0, 50, len(content) // 2 if name == "x.zip" else 600):
        refused(name, put(path, content[:keep]), "class-tar", {"images": path})
    pack(path, {member: picture(1)[:50]})
    refused(member, path, "class-tar", {"images": path})
    monkeypatch.setattr("fedrepro.data.readers.common.MAX_PIXELS", 63)
    pack(path, {member: picture(1)})
    refused("too large a picture", path, "class-tar", {"images": path})


def test_an_altered_member_of_a_zip_fails_its_sum(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr("made/1/a.png", picture(1))
    content = bytearray(path.read_bytes())
    content[content.index(b"IDAT") + 6] ^= 1
    put(path, bytes(content))
    refused(r"a\.png", path, "domainnet-zip", {"images": path})


TRAIN, HELD = "made/5/c.png 6\nmade/0/a.png 1\n", "made/0/b.png 1\n"


def pacs(tmp_path: Path, **lists: str) -> dict[str, Path]:
    members = {f"made/{name}.png": picture(1) for name in ("0/a", "0/b", "5/c")}
    files = {"images": pack(tmp_path / "p.tar", members)}
    for name, text in lists.items():
        files[f"{name}-list"] = put(tmp_path / f"{name}.txt", text.encode())
    return files


def test_pacs_lists_give_parts(tmp_path: Path) -> None:
    found = read("class-tar", 8, pacs(tmp_path, train=TRAIN, crossval=HELD, test=TRAIN + HELD))
    assert found.labels.tolist() == [0, 0, 5] and found.part.tolist() == [0, 2, 0]


@pytest.mark.parametrize(
    ("train", "held", "test", "message"),
    [
        (TRAIN, TRAIN, TRAIN, "share files"),
        (TRAIN, HELD, TRAIN, "not the train and crossval lists together"),
        (TRAIN, "made/0/q.png 1\n", TRAIN + "made/0/q.png 1\n", "does not name"),
        (TRAIN.replace("c.png 6", "c.png 5"), HELD, TRAIN, "label 5 does not fit"),
        ("made/0/a.png\n", HELD, TRAIN, "cannot be read"),
        ("", HELD, TRAIN, "is empty"),
        (HELD + HELD, HELD, TRAIN, "repeats a file"),
    ],
)
def test_pacs_lists_that_do_not_fit(
    tmp_path: Path, train: str, held: str, test: str, message: str
) -> None:
    with pytest.raises(FedReproError, match=message):
        read("class-tar", 8, pacs(tmp_path, train=train, crossval=held, test=test))


def mnistm(tmp_path: Path, rows: str) -> dict[str, Path]:
    files = {}
    for part in ("train", "test"):
        folder = files[part] = tmp_path / f"mnist_m_{part}"
        for n in range(3):
            put(folder / f"{n:08d}.png", picture(n, side=32))
        files[f"{part}-labels"] = put(tmp_path / f"mnist_m_{part}_labels.txt", rows.encode())
    return files


def test_mnistm_folders_follow_the_list(tmp_path: Path) -> None:
    rows = "00000002.png 7\n00000000.png 5\n00000001.png 0\n"
    found = read("mnistm-folders", 32, mnistm(tmp_path, rows))
    assert found.labels.tolist() == [7, 5, 0] * 2
    assert found.images[:, 0, 0, 0].tolist() == [2, 0, 1] * 2
    assert found.part.tolist() == [0] * 3 + [1] * 3
    for cut in (rows[:15], rows + "00000003.png 1\n"):
        with pytest.raises(FedReproError, match="pictures are only here or in"):
            read("mnistm-folders", 32, mnistm(tmp_path, cut))
    with pytest.raises(FedReproError, match=r"labels run 0\.\.70"):
        read("mnistm-folders", 32, mnistm(tmp_path, rows.replace(" 7", " 70")))


def test_part_folders_on_disk_and_in_an_archive(tmp_path: Path) -> None:
    members = {f"imgs_train/{digit}/a.png": picture(digit) for digit in range(10)}
    pack(tmp_path / "x", {**members, "imgs_valid/4/a.jpg": picture(40)})
    files = {"train": tmp_path / "imgs_train", "test": tmp_path / "imgs_valid"}
    syn = read("digit-folders", 8, files)
    both = {f"train/{digit}/a.png": picture(digit) for digit in range(10)}
    archive = pack(tmp_path / "c.tar.gz", {**both, "test/4/0.png": picture(40)})
    for found in (syn, read("cifar-jpeg-tar", 8, {"archive": archive})):
        assert found.labels.tolist() == [*range(10), 4]
        assert found.images[:, 0, 0, 0].tolist() == [*range(10), 40]
        assert found.part.tolist() == [0] * 10 + [1]


# DomainNet: the official numbers are those of a class among all 345.
PICTURES = {
    "clipart/zebra/clipart_344_000001.jpg": 9,
    "clipart/bird/clipart_032_000002.jpg": 2,
    "clipart/bird/clipart_032_000001.jpg": 1,
    "clipart/The_Mona_Lisa/clipart_308_000001.jpg": 7,
    "clipart/airplane/clipart_002_000001.jpg": 5,
}
NET_TRAIN = "clipart/bird/clipart_032_000001.jpg 31\nclipart/airplane/clipart_002_000001.jpg 1\n"
NET_TEST = "clipart/zebra/clipart_344_000001.jpg 343\n"


def net(tmp_path: Path, domain: str = "clipart-10", **lists: str) -> Decoded:
    files = {"images": tmp_path / "clipart.zip"}
    pack(files["images"], {name: picture(20 * value) for name, value in PICTURES.items()})
    for name, text in lists.items():
        files[f"{name}-list"] = put(tmp_path / f"clipart_{name}.txt", text.encode())
    classes = NET.classes_of(domain)
    return read(
        "domainnet-zip", 8, files, folders=("clipart",), classes=classes, all_classes=NET.classes
    )


def test_domainnet_keeps_its_classes_and_its_lists_give_parts(tmp_path: Path) -> None:
    ten = net(tmp_path)
    assert ten.labels.tolist() == [0, 0, 9]  # bird, bird, zebra; by class, then file name
    assert ten.images[:, 0, 0, 0].tolist() == [20, 40, 180] and ten.part.tolist() == [-1] * 3
    lists = {"train": NET_TRAIN, "test": NET_TEST}
    assert net(tmp_path, **lists).part.tolist() == [0, -1, 1]
    fifty = net(tmp_path, "clipart-50", **lists)
    assert (fifty.labels.tolist(), fifty.part.tolist()) == ([1, 31, 31], [0, 0, -1])
    assert len(set(NET.classes)) == 345 and NET.classes.index("zebra") == 343


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (NET_TRAIN, NET_TRAIN, "names pictures of the other list too"),
        (NET_TRAIN.replace(" 31", " 0"), NET_TEST, "label 0 does not fit clipart/bird"),
        (NET_TRAIN + "clipart/bird/x.jpg 31\n", NET_TEST, "lacks 1 listed pictures"),
        ("real/bird/x.jpg 31\n", NET_TEST, "does not fit"),
    ],
)
def test_domainnet_lists_that_do_not_fit(
    tmp_path: Path, train: str, test: str, message: str
) -> None:
    with pytest.raises(FedReproError, match=message):
        net(tmp_path, train=train, test=test)


def test_pictures_that_are_not_wanted_are_never_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = zipfile.ZipFile.open

    def spy(self: zipfile.ZipFile, member: Any, *rest: Any) -> Any:
        opened.append(getattr(member, "filename", member))
        return real(self, member, *rest)

    net(tmp_path)
    monkeypatch.setattr(zipfile.ZipFile, "open", spy)
    classes = NET.classes_of("clipart-10")
    files = {"images": tmp_path / "clipart.zip"}
    read("domainnet-zip", 8, files, folders=("clipart",), classes=classes)
    assert sorted(opened) == sorted(n for n in PICTURES if "/bird/" in n or "/zebra/" in n)
