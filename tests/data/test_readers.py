"""Readers on small files made in each format: pixels, order, labels, parts, what is refused."""

import bz2
import gzip
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedrepro.data.manifest import COLLECTIONS
from fedrepro.data.pictures import files_in
from fedrepro.data.readers import Decoded
from tests.data.conftest import idx
from tests.data.made import Members, one_line, pack, picture, put, read, refused

OFFICE, NET = COLLECTIONS["office10"], COLLECTIONS["domainnet"]
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


def test_mnistm_npz(tmp_path):
    path, x, y = tmp_path / "m.npz", RNG.integers(0, 256, (10, 32, 32, 3), np.uint8), np.arange(10)
    np.savez(path, train_x=x, train_y=y, test_x=x[:4], test_y=y[:4])
    found = read("mnistm-npz", 32, {"npz": path})
    np.testing.assert_array_equal(found.images[:10].transpose(0, 2, 3, 1), x)
    assert found.part.tolist() == [0] * 10 + [1] * 4


def record(coarse: bytes, label: int, value: int) -> bytes:
    """An image of three flat planes (value, value + 1, value + 2); row 0, column 1 is 0."""
    planes = np.repeat(np.arange(value, value + 3, dtype=np.uint8)[:, None], 1024, axis=1)
    planes[:, 1] = 0
    return coarse + bytes([label]) + planes.tobytes()


def cifar(name: str) -> Members:
    ten, coarse = name == "cifar10", b"" if name == "cifar10" else b"\7"
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)] if ten else ["train.bin"]
    members = {
        f"c/{batch}": record(coarse, i, 10 * i) + record(coarse, 9, 200)
        for i, batch in enumerate(batches)
    }
    members["c/test_batch.bin" if ten else "c/test.bin"] = record(coarse, 3, 100)
    return {**members, "c/readme.html": b"<html>"}


def test_cifar_records(tmp_path):
    for name, batches in (("cifar100", 1), ("cifar10", 5)):
        known = COLLECTIONS[name], name
        path = pack(tmp_path / "c.tar.gz", cifar(name))
        found = read(f"{name}-binary", 32, {"archive": path}, *known)
        assert found.labels.tolist() == [y for i in range(batches) for y in (i, 9)] + [3]
        assert found.part.tolist() == [0] * 2 * batches + [1]
        assert found.images[-1, :, 31, 31].tolist() == [100, 101, 102]
        assert np.argwhere(found.images[-1] == 0).tolist() == [[plane, 0, 1] for plane in range(3)]


def office(path: Path) -> Decoded:
    return read("class-tar", 8, {"images": path}, OFFICE, "caltech")


@pytest.mark.parametrize("images", ["", "images/"])
@pytest.mark.parametrize("spelling", ["backpack", "Back-Pack", "003.backpack"])
def test_folder_tar_and_zip_agree_in_every_spelling(tmp_path, spelling, images):
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
        assert found.images[:, :, 0, 0].tolist() == [[1, 1, 1], [2, 0, 255], [3, 0, 255]]
        assert found.part.tolist() == [-1, -1, -1]


def test_all_grey_stays_grey_and_an_empty_folder_is_refused(tmp_path):
    with one_line("holds no pictures of caltech"):
        office(pack(tmp_path / "x.zip", {"caltech/ruler/a.png": picture(5)}))
    put(tmp_path / "caltech/bike/a.png", picture(5, "L"))
    assert office(tmp_path / "caltech").images.shape == (1, 1, 8, 8)


def hostile(path: Path, message: str) -> None:
    with one_line(message):
        list(files_in(path))


def test_hostile_names_links_devices_locked_and_huge_members_are_refused(tmp_path, monkeypatch):
    for name in ("/etc/x.png", "photo/../../x.png", "photo\\dog\\x.png"):
        for kind in ("x.tar", "x.zip"):
            hostile(pack(tmp_path / kind, {name: picture(1)}), "leaves the archive")
    info = tarfile.TarInfo("photo/dog/a.png")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
        info.type, info.linkname = kind, "/etc/passwd"
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            tar.addfile(info)
        hostile(tmp_path / "x.tar", "link or a device")
    info = tarfile.TarInfo("photo/dog/a.png")
    info.size = 2**40
    hostile(put(tmp_path / "huge.tar", info.tobuf()), "bytes long")
    link = zipfile.ZipInfo("clipart/bird/a.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as packed:
        packed.writestr(link, b"/etc/passwd")
    hostile(tmp_path / "link.zip", "is a link")
    content = bytearray(pack(tmp_path / "x.zip", {"a.png": picture(1)}).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of an encrypted member
    hostile(put(tmp_path / "locked.zip", bytes(content)), "or locked")
    for limit, value in (("MAX_ARCHIVE_BYTES", 10), ("MAX_MEMBERS", 0)):
        monkeypatch.setattr(f"fedrepro.data.pictures.{limit}", value)
        hostile(tmp_path / "x.zip", "members or over 16 GiB")
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_cut_archives_and_broken_altered_or_huge_pictures(tmp_path, monkeypatch, name):
    member, zipped = "made/1/a.png", name == "x.zip"

    def bad(message, path):
        refused(message, path, "class-tar", {"images": path})

    path = pack(tmp_path / name, {member: picture(1, side=64)})
    content = path.read_bytes()
    for keep in (0, 50, len(content) // 2 if zipped else 600):
        bad(name, put(path, content[:keep]))
    bad(member, pack(path, {member: picture(1)[:50]}))
    if zipped:  # an altered member fails its sum
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
            packed.writestr(member, picture(1))
        altered = bytearray(path.read_bytes())
        altered[altered.index(b"IDAT") + 6] ^= 1
        bad(member, put(path, bytes(altered)))
    monkeypatch.setattr("fedrepro.data.pictures.MAX_PIXELS", 63)
    bad("too large a picture", pack(path, {member: picture(1)}))


TRAIN, HELD = "made/5/c.png 6\nmade/0/a.png 1\n", "made/0/b.png 1\n"


def pacs(tmp_path: Path, *lists: str) -> Decoded:
    members = {f"made/{name}.png": picture(1) for name in ("0/a", "0/b", "5/c")}
    files = {"images": pack(tmp_path / "p.tar", members)}
    for name, text in zip(("train", "crossval", "test"), lists, strict=True):
        files[f"{name}-list"] = put(tmp_path / f"{name}.txt", text.encode())
    return read("class-tar", 8, files)


def test_pacs_lists_give_parts(tmp_path):
    found = pacs(tmp_path, TRAIN, HELD, TRAIN + HELD)
    assert found.labels.tolist() == [0, 0, 5] and found.part.tolist() == [0, 2, 0]
    for train, held, test, message in (
        (TRAIN, "made/0/q.png 1\n", TRAIN + "made/0/q.png 1\n", "does not name"),
        (TRAIN.replace("c.png 6", "c.png 5"), HELD, TRAIN, "label 5 does not fit"),
        ("made/0/a.png\n", HELD, TRAIN, "cannot be read"),
        ("", HELD, TRAIN, "is empty"),
        (HELD + HELD, HELD, TRAIN, "repeats a file"),
    ):
        with one_line(message):
            pacs(tmp_path, train, held, test)


def test_mnistm_folders_follow_the_list(tmp_path):
    def mnistm(rows):
        files = {}
        for part in ("train", "test"):
            files[part] = tmp_path / f"mnist_m_{part}"
            for n in range(3):
                put(files[part] / f"{n:08d}.png", picture(n, side=32))
            files[f"{part}-labels"] = put(tmp_path / f"mnist_m_{part}_labels.txt", rows.encode())
        return read("mnistm-folders", 32, files)

    rows = "00000002.png 7\n00000000.png 5\n00000001.png 0\n"
    found = mnistm(rows)
    assert found.labels.tolist() == [7, 5, 0] * 2
    assert found.images[:, 0, 0, 0].tolist() == [2, 0, 1] * 2
    assert found.part.tolist() == [0] * 3 + [1] * 3
    for text in (rows[:15], rows + "00000003.png 1\n"):
        with one_line("pictures are only here or in"):
            mnistm(text)


def test_part_folders_on_disk_and_in_an_archive(tmp_path):
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
    return read("domainnet-zip", 8, files, NET, domain)


def test_domainnet_keeps_its_classes_and_its_lists_give_parts(tmp_path):
    ten = net(tmp_path)
    assert ten.labels.tolist() == [0, 0, 9]  # bird, bird, zebra; by class, then file name
    assert ten.images[:, 0, 0, 0].tolist() == [20, 40, 180] and ten.part.tolist() == [-1] * 3
    lists = {"train": NET_TRAIN, "test": NET_TEST}
    assert net(tmp_path, **lists).part.tolist() == [0, -1, 1]
    fifty = net(tmp_path, "clipart-50", **lists)
    assert (fifty.labels.tolist(), fifty.part.tolist()) == ([1, 31, 31], [0, 0, -1])
    assert len(set(NET.classes)) == 345 and NET.classes.index("zebra") == 343
    for train, test, message in (
        (NET_TRAIN, NET_TRAIN, "names pictures of the other list too"),
        (NET_TRAIN.replace(" 31", " 0"), NET_TEST, "label 0 does not fit clipart/bird"),
        (NET_TRAIN + "clipart/bird/x.jpg 31\n", NET_TEST, "lacks 1 listed pictures"),
        ("real/bird/x.jpg 31\n", NET_TEST, "does not fit"),
    ):
        with one_line(message):
            net(tmp_path, train=train, test=test)
