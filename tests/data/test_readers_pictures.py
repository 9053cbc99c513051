"""Picture folders and tars, made small; hostile tars."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrepro.base.errors import FedReproError
from fedrepro.data.manifest import default_manifest
from fedrepro.data.readers import READERS, Decoded, ReadSpec
from fedrepro.data.readers.trees import tar_files

DIGITS = tuple("0123456789")
OFFICE = default_manifest().collection("caltech")
PACS = default_manifest().collection("photo")


def png(value: int, mode: str = "RGB", side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 255)).save(buffer, "PNG")
    return buffer.getvalue()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def office(reader: str, path: Path) -> Decoded:
    folders = OFFICE.domains["caltech"].folders
    spec = ReadSpec("caltech", {"images": path}, 8, folders, OFFICE.classes, OFFICE.spellings)
    return READERS[reader](spec)


def pacs(files: dict[str, Path]) -> Decoded:
    return READERS["class-tar"](ReadSpec("photo", files, 8, ("photo",), PACS.classes, {}))


@pytest.mark.parametrize("images", ["", "images/"])
@pytest.mark.parametrize("spelling", ["backpack", "back_pack", "Back-Pack", "003.backpack"])
def test_folder_and_tar_agree_in_every_spelling(tmp_path: Path, spelling: str, images: str) -> None:
    members = {
        f"caltech10/{images}laptop_computer/b.png": png(3),
        f"caltech10/{images}{spelling}/z.png": png(2),
        f"caltech10/{images}{spelling}/a.png": png(1),
        f"amazon/{images}{spelling}/a.png": png(9),
        f"caltech10/{images}ruler/a.png": png(9),
        "caltech10/readme.txt": b"not a picture",
    }
    for name, content in members.items():
        put(tmp_path / "set" / name, content)
    tar = write_tar(tmp_path / "set.tar.gz", members, "w:gz")
    folder = office("class-folders", tmp_path / "set" / "caltech10")
    packed = office("class-tar", tar)
    for decoded in (folder, packed):
        assert decoded.labels.tolist() == [0, 0, 5]  # sorted by class, then file name
        assert decoded.images[:, 0, 0, 0].tolist() == [1, 2, 3]
        assert decoded.part.tolist() == [-1, -1, -1]
    np.testing.assert_array_equal(folder.images, packed.images)


def test_grey_among_coloured_is_repeated_and_all_grey_stays_grey(tmp_path: Path) -> None:
    put(tmp_path / "caltech/bike/a.png", png(5, "L"))
    assert office("class-folders", tmp_path / "caltech").images.shape == (1, 1, 8, 8)
    put(tmp_path / "caltech/bike/b.png", png(6))
    mixed = office("class-folders", tmp_path / "caltech").images
    assert mixed.shape == (2, 3, 8, 8)
    assert mixed[:, :, 0, 0].tolist() == [[5, 5, 5], [6, 0, 255]]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("/etc/x.png", "leaves the archive"),
        ("photo/../../x.png", "leaves the archive"),
        ("photo\\dog\\x.png", "leaves the archive"),
    ],
)
def test_hostile_names_are_refused(tmp_path: Path, name: str, problem: str) -> None:
    tar = write_tar(tmp_path / "x.tar", {"photo/dog/a.png": png(1), name: png(1)})
    with pytest.raises(FedReproError, match=problem):
        list(tar_files(tar))
    assert [p.name for p in tmp_path.iterdir()] == ["x.tar"]  # nothing was extracted


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        info = tarfile.TarInfo("photo/dog/a.png")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(FedReproError, match="link or a device"):
        list(tar_files(tmp_path / "x.tar"))


def test_a_huge_member_is_refused_by_its_header(tmp_path: Path) -> None:
    info = tarfile.TarInfo("photo/dog/a.png")
    info.size = 2**40
    (tmp_path / "x.tar").write_bytes(info.tobuf())
    with pytest.raises(FedReproError, match="bytes long"):
        list(tar_files(tmp_path / "x.tar"))


def test_a_repeated_name_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for value in (1, 2):
            info = tarfile.TarInfo("photo/dog/a.png")
            info.size = len(png(value))
            tar.addfile(info, io.BytesIO(png(value)))
    with pytest.raises(FedReproError, match="occurs twice"):
        list(tar_files(tmp_path / "x.tar"))


@pytest.mark.parametrize("keep", [0, 100, 600])
def test_cut_tar(tmp_path: Path, keep: int) -> None:
    tar = write_tar(tmp_path / "x.tar", {"photo/dog/a.png": png(1, side=64)})
    tar.write_bytes(tar.read_bytes()[:keep])
    with pytest.raises(FedReproError, match=r"x\.tar"):
        pacs({"images": tar})


def test_a_broken_or_huge_picture_names_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = write_tar(tmp_path / "x.tar", {"photo/dog/a.png": png(1)[:50]})
    with pytest.raises(FedReproError, match=r"photo/dog/a\.png"):
        pacs({"images": tar})
    monkeypatch.setattr("fedrepro.data.readers.common.MAX_PIXELS", 63)
    with pytest.raises(FedReproError, match="too large a picture"):
        pacs({"images": write_tar(tmp_path / "y.tar", {"photo/dog/a.png": png(1)})})


def pacs_files(tmp_path: Path, **lists: str) -> dict[str, Path]:
    members = {
        f"photo/{c}/{f}.png": png(1) for c, f in (("dog", "a"), ("dog", "b"), ("house", "c"))
    }
    files = {"images": write_tar(tmp_path / "p.tar", members)}
    for name, text in lists.items():
        files[f"{name}-list"] = put(tmp_path / f"{name}.txt", text.encode())
    return files


TRAIN = "photo/house/c.png 6\nphoto/dog/a.png 1\n"
CROSSVAL = "photo/dog/b.png 1\n"


def test_pacs_lists_give_parts(tmp_path: Path) -> None:
    decoded = pacs(pacs_files(tmp_path, train=TRAIN, crossval=CROSSVAL, test=TRAIN + CROSSVAL))
    assert decoded.labels.tolist() == [0, 0, 5]
    assert decoded.part.tolist() == [0, 2, 0]
    assert pacs(pacs_files(tmp_path)).part.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("train", "crossval", "test", "message"),
    [
        (TRAIN, TRAIN, TRAIN, "share files"),
        (TRAIN, CROSSVAL, TRAIN, "not the train and crossval lists together"),
        (TRAIN, "photo/dog/q.png 1\n", TRAIN + "photo/dog/q.png 1\n", "does not name"),
        (TRAIN.replace("c.png 6", "c.png 5"), CROSSVAL, TRAIN, "label 5 does not fit"),
        ("photo/dog/a.png\n", CROSSVAL, TRAIN, "line 1 is not"),
        ("", CROSSVAL, TRAIN, "is empty"),
    ],
)
def test_pacs_lists_that_do_not_fit(
    tmp_path: Path, train: str, crossval: str, test: str, message: str
) -> None:
    with pytest.raises(FedReproError, match=message):
        pacs(pacs_files(tmp_path, train=train, crossval=crossval, test=test))


def mnistm(tmp_path: Path, rows: str) -> dict[str, Path]:
    files = {}
    for part in ("train", "test"):
        folder = tmp_path / f"mnist_m_{part}"
        for n in range(3):
            put(folder / f"{n:08d}.png", png(n, side=32))
        files[part] = folder
        files[f"{part}-labels"] = put(tmp_path / f"mnist_m_{part}_labels.txt", rows.encode())
    return files


def test_mnistm_folders_follow_the_list(tmp_path: Path) -> None:
    files = mnistm(tmp_path, "00000002.png 7\n00000000.png 5\n00000001.png 0\n")
    decoded = READERS["mnistm-folders"](ReadSpec("mnistm", files, 32, (), DIGITS, {}))
    assert decoded.labels.tolist() == [7, 5, 0] * 2
    assert decoded.images[:, 0, 0, 0].tolist() == [2, 0, 1] * 2
    assert decoded.part.tolist() == [0] * 3 + [1] * 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("00000000.png 1\n00000001.png 1\n", "1 pictures that"),
        ("00000000.png 1\n00000001.png 1\n00000002.png 1\n00000003.png 1\n", "1 listed"),
        ("00000000.png 1\n00000001.png 1\n00000002.png 10\n", r"labels run 1\.\.10"),
        ("00000000.png 1\n00000000.png 1\n", "names a file twice"),
    ],
)
def test_mnistm_lists_that_do_not_fit(tmp_path: Path, rows: str, message: str) -> None:
    spec = ReadSpec("mnistm", mnistm(tmp_path, rows), 32, (), DIGITS, {})
    with pytest.raises(FedReproError, match=message):
        READERS["mnistm-folders"](spec)


def test_syn_folders(tmp_path: Path) -> None:
    for digit in range(10):
        put(tmp_path / f"imgs_train/{digit}/a.png", png(digit))
    put(tmp_path / "imgs_valid/4/._a.png", b"left by another system")
    put(tmp_path / "imgs_valid/4/a.jpg", png(40))
    files = {"train": tmp_path / "imgs_train", "test": tmp_path / "imgs_valid"}
    decoded = READERS["digit-folders"](ReadSpec("syn", files, 8, ("syn",), DIGITS, {}))
    assert decoded.labels.tolist() == [*range(10), 4]
    assert decoded.images[:, 0, 0, 0].tolist() == [*range(10), 40]
    assert decoded.part.tolist() == [0] * 10 + [1]


def test_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "caltech").mkdir()
    with pytest.raises(FedReproError, match="holds no pictures of caltech"):
        office("class-folders", tmp_path / "caltech")
