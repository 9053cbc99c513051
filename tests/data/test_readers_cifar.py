"""CIFAR: small archives in the official binary format, hostile ones, and JPEG copies."""

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
from fedrepro.data.readers.cifar import HUNDRED, PIXELS, TEN

FORMATS = {"cifar10": (TEN, "cifar-10-batches-bin"), "cifar100": (HUNDRED, "cifar-100-binary")}


def classes(name: str) -> tuple[str, ...]:
    return default_manifest().collections[name].classes


def record(name: str, label: int, value: int) -> bytes:
    """An image of three flat planes (value, value + 1, value + 2), its corner pixel 0."""
    planes = np.repeat(np.arange(value, value + 3, dtype=np.uint8)[:, None], 1024, axis=1)
    planes[:, 1] = 0  # row 0, column 1
    coarse = bytes([7]) if name == "cifar100" else b""
    return coarse + bytes([label]) + planes.tobytes()


def members(name: str) -> dict[str, bytes]:
    (train, test, names), folder = FORMATS[name]
    content = {
        f"{folder}/{member}": record(name, i, 10 * i) + record(name, 9, 200)
        for i, member in enumerate(train)
    }
    content[f"{folder}/{test}"] = record(name, 3, 100)
    content[f"{folder}/{names}"] = ("\n".join(classes(name)) + "\n\n").encode()
    content[f"{folder}/readme.html"] = b"<html>"
    return content


def write(path: Path, content: dict[str, bytes], link: str | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        if link is not None:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info)
    return path


def read(name: str, archive: Path, size: int = 32, reader: str | None = None) -> Decoded:
    spec = ReadSpec(name, {"archive": archive}, size, (name,), classes(name), {})
    return READERS[reader or f"{name}-binary"](spec)


@pytest.mark.parametrize("name", list(FORMATS))
def test_binary_records(tmp_path: Path, name: str) -> None:
    decoded = read(name, write(tmp_path / "c.tar.gz", members(name)))
    batches = 5 if name == "cifar10" else 1
    assert decoded.labels.tolist() == [y for i in range(batches) for y in (i, 9)] + [3]
    assert decoded.part.tolist() == [0] * 2 * batches + [1]
    assert decoded.images.shape == (2 * batches + 1, 3, 32, 32)
    assert decoded.images[-1, :, 31, 31].tolist() == [100, 101, 102]
    black = np.argwhere(decoded.images[-1] == 0)
    assert black.tolist() == [[channel, 0, 1] for channel in range(3)]  # planes, row by row
    assert read(name, tmp_path / "c.tar.gz", 16).images.shape[2:] == (16, 16)


def test_the_classes_are_the_official_ones_in_their_order() -> None:
    ten, hundred = classes("cifar10"), classes("cifar100")
    assert (len(ten), len(hundred)) == (10, 100)
    assert ten == tuple(sorted(ten)) and hundred == tuple(sorted(hundred))


def altered(how: str) -> tuple[dict[str, bytes], str]:
    content = members("cifar10")
    folder = FORMATS["cifar10"][1]
    first = f"{folder}/data_batch_1.bin"
    if how == "missing":
        del content[first]
        return content, "has no member data_batch_1.bin"
    if how == "cut":
        content[first] = content[first][:-1]
        return content, f"not made of {PIXELS + 1}-byte records"
    if how == "label":
        content[first] = bytes([10]) + content[first][1:]
        return content, r"labels run 9\.\.10"
    if how == "names":
        content[f"{folder}/batches.meta.txt"] = b"cat\ndog\n"
        return content, "lists other classes"
    if how == "twice":
        content["elsewhere/data_batch_1.bin"] = content[first]
        return content, "holds data_batch_1.bin twice"
    content["../x.bin"] = b""
    return content, "leaves the archive"


@pytest.mark.parametrize("how", ["missing", "cut", "label", "names", "twice", "outside"])
def test_altered_archives_are_one_line(tmp_path: Path, how: str) -> None:
    content, message = altered(how)
    with pytest.raises(FedReproError, match=message) as caught:
        read("cifar10", write(tmp_path / "c.tar.gz", content))
    assert "\n" not in str(caught.value) and "c.tar.gz" in str(caught.value)


def test_links_long_members_and_cut_archives_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = write(tmp_path / "l.tar.gz", members("cifar10"), "cifar-10-batches-bin/x.bin")
    with pytest.raises(FedReproError, match="is a link"):
        read("cifar10", linked)
    whole = write(tmp_path / "c.tar.gz", members("cifar10"))
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole.read_bytes()[:200])
    with pytest.raises(FedReproError, match=r"cut\.tar\.gz: cannot be read"):
        read("cifar10", cut)
    monkeypatch.setattr("fedrepro.data.readers.cifar.MAX_BINARY", 2 * PIXELS)
    with pytest.raises(FedReproError, match="bytes long"):
        read("cifar10", whole)


def test_jpeg_copies(tmp_path: Path) -> None:
    content = {}
    for part, count in (("train", 2), ("test", 1)):
        for k, name in enumerate(classes("cifar10")):
            for i in range(count):
                buffer = io.BytesIO()
                Image.new("RGB", (32, 32), (20 * k, 0, 250)).save(buffer, "JPEG")
                content[f"{part}/{name}/{i:04d}.jpg"] = buffer.getvalue()
    decoded = read("cifar10", write(tmp_path / "j.tar.gz", content), 32, "cifar-jpeg-tar")
    assert decoded.labels.tolist() == [k for k in range(10) for _ in range(2)] + list(range(10))
    assert decoded.part.tolist() == [0] * 20 + [1] * 10
    red = decoded.images[:, 0].mean((1, 2))
    assert np.abs(red - 20 * decoded.labels).max() < 3
