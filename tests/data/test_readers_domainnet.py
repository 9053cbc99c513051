"""DomainNet in the official layout, made small: zips, folders, lists, subsets of classes."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import DataSpec
from fedrepro.data import DATASETS, federation, load_domain, status
from fedrepro.data.domains import all_domains, domain_names
from fedrepro.data.manifest import default_manifest
from fedrepro.data.readers import READERS, Decoded, ReadSpec
from fedrepro.data.readers.trees import zip_files

NET = default_manifest().collections["domainnet"]
# value of the first pixel, class; the official numbers are those of the class among all 345
PICTURES = {
    "clipart/zebra/clipart_344_000001.jpg": 9,
    "clipart/bird/clipart_032_000002.jpg": 2,
    "clipart/bird/clipart_032_000001.jpg": 1,
    "clipart/The_Mona_Lisa/clipart_308_000001.jpg": 7,
    "clipart/airplane/clipart_002_000001.jpg": 5,
    "clipart/t-shirt/clipart_327_000001.png": 6,
}
TRAIN = "clipart/bird/clipart_032_000001.jpg 31\nclipart/airplane/clipart_002_000001.jpg 1\n"
TEST = "clipart/zebra/clipart_344_000001.jpg 343\nclipart/t-shirt/clipart_327_000001.png 327\n"


def picture(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (20 * value, 0, 255)).save(buffer, "PNG")
    return buffer.getvalue()


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("clipart/", b"")
        for name, content in members.items():
            packed.writestr(name, content)
    return path


def official(tmp_path: Path, **lists: str) -> dict[str, Path]:
    members = {name: picture(value) for name, value in PICTURES.items()}
    members["clipart/bird/readme.txt"] = b"not a picture"
    files = {"images": write_zip(tmp_path / "DomainNet" / "clipart.zip", members)}
    for name, text in lists.items():
        files[f"{name}-list"] = tmp_path / "DomainNet" / f"clipart_{name}.txt"
        files[f"{name}-list"].write_text(text)
    return files


def read(files: dict[str, Path], domain: str = "clipart-10", reader: str = "zip") -> Decoded:
    entry, kept = NET.domains[domain], NET.classes_of(domain)
    return READERS[f"domainnet-{reader}"](
        ReadSpec(domain, files, 8, entry.folders, kept, {}, NET.classes)
    )


def test_the_ten_classes_are_fedbns_and_the_others_the_first_of_all() -> None:
    assert len(NET.classes) == 345 and len(set(NET.classes)) == 345
    assert NET.classes_of("real-10") == (
        *("bird", "feather", "headphones", "ice_cream", "teapot"),
        *("tiger", "whale", "windmill", "wine_glass", "zebra"),
    )
    for count in (50, 100, 150):
        assert NET.classes_of(f"sketch-{count}") == NET.classes[:count]
    assert NET.classes[:3] == ("aircraft_carrier", "airplane", "alarm_clock")
    assert [NET.classes.index(n) for n in ("zebra", "The_Mona_Lisa", "t-shirt")] == [343, 310, 327]


def test_the_published_sizes_split_as_the_paper_prints_them() -> None:
    """ADCOL, Table 3: a fifth of each domain is test."""
    printed = {
        "clipart-10": (2103, 526),
        "infograph-10": (2626, 657),
        "painting-10": (2472, 619),
        "quickdraw-10": (4000, 1000),
        "real-10": (4864, 1217),
        "sketch-10": (2213, 554),
    }
    assert set(printed) == set(DATASETS["domainnet"])
    for name, (train, test) in printed.items():
        published = NET.domains[name].published
        assert published == train + test and -(-published // 5) == test


def test_zip_and_folders_agree_and_only_kept_classes_are_read(tmp_path: Path) -> None:
    files = official(tmp_path)
    packed = read(files)
    assert packed.labels.tolist() == [0, 0, 9]  # bird, bird, zebra; by class, then file name
    assert packed.images[:, 0, 0, 0].tolist() == [20, 40, 180]
    assert packed.part.tolist() == [-1, -1, -1]
    with zipfile.ZipFile(files["images"]) as archive:
        archive.extractall(tmp_path / "unpacked")
    folder = read({"images": tmp_path / "unpacked" / "clipart"}, reader="folders")
    np.testing.assert_array_equal(folder.images, packed.images)
    first = read(files, "clipart-50")
    assert first.labels.tolist() == [1, 31, 31]  # as the official lists number them


def test_lists_give_parts_and_pictures_of_neither_have_none(tmp_path: Path) -> None:
    files = official(tmp_path, train=TRAIN, test=TEST)
    assert read(files).part.tolist() == [0, -1, 1]
    assert read(files, "clipart-50").part.tolist() == [0, 0, -1]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (TRAIN, TRAIN, "names pictures of the other list too"),
        (TRAIN.replace(" 31", " 0"), TEST, "label 0 does not fit clipart/bird"),
        (TRAIN + "clipart/bird/clipart_032_000009.jpg 31\n", TEST, "lacks 1 listed pictures"),
        ("clipart/birds/x.jpg 31\n", TEST, "does not fit"),
        ("real/bird/x.jpg 31\n", TEST, "does not fit"),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, train: str, test: str, message: str) -> None:
    with pytest.raises(FedReproError, match=message):
        read(official(tmp_path, train=train, test=test))


def test_a_list_without_the_other_is_a_cut_set(tmp_path: Path) -> None:
    official(tmp_path, train=TRAIN)
    located = default_manifest().locate("clipart-10", tmp_path)
    assert [entry.role for entry in located.missing] == ["test-list"]
    with pytest.raises(FedReproError, match=r"clipart_test\.txt is missing"):
        load_domain("clipart-10", 8, tmp_path)


def test_pictures_that_are_not_wanted_are_never_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = zipfile.ZipFile.read

    def spy(self: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
        opened.append(member.filename)
        return real(self, member)

    monkeypatch.setattr(zipfile.ZipFile, "read", spy)
    read(official(tmp_path))
    assert sorted(opened) == sorted(n for n in PICTURES if "/bird/" in n or "/zebra/" in n)


@pytest.mark.parametrize("name", ["/etc/x.png", "clipart/../../x.png", "clipart\\bird\\x.png"])
def test_hostile_names_are_refused(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        info = zipfile.ZipInfo("x")
        info.filename = name  # the constructor would mend it
        packed.writestr(info, picture(1))
    with pytest.raises(FedReproError, match="leaves the archive"):
        list(zip_files(archive))


def test_links_locked_huge_and_repeated_members_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = zipfile.ZipInfo("clipart/bird/a.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as packed:
        packed.writestr(link, b"/etc/passwd")
    with pytest.raises(FedReproError, match="is a link"):
        list(zip_files(tmp_path / "link.zip"))
    archive = write_zip(tmp_path / "x.zip", {"clipart/bird/a.png": picture(1)})
    content = bytearray(archive.read_bytes())
    central = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 1)
    content[central + 8] |= 1  # the flag of an encrypted member
    (tmp_path / "locked.zip").write_bytes(bytes(content))
    with pytest.raises(FedReproError, match="or locked"):
        list(zip_files(tmp_path / "locked.zip"))
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as packed, pytest.warns(UserWarning):
        packed.writestr("clipart/bird/a.png", picture(1))
        packed.writestr("clipart/bird/a.png", picture(2))
    with pytest.raises(FedReproError, match="occurs twice"):
        list(zip_files(tmp_path / "twice.zip"))
    monkeypatch.setattr("fedrepro.data.readers.trees.MAX_FILE_BYTES", 10)
    with pytest.raises(FedReproError, match="bytes long"):
        list(zip_files(archive))


@pytest.mark.parametrize("keep", [0, 50, -1, -60])
def test_a_cut_or_broken_zip_is_one_line(tmp_path: Path, keep: int) -> None:
    files = official(tmp_path)
    content = files["images"].read_bytes()
    files["images"].write_bytes(content[:keep])
    with pytest.raises(FedReproError, match=r"clipart\.zip") as caught:
        read(files)
    assert "\n" not in str(caught.value)


def test_an_altered_member_fails_its_sum(tmp_path: Path) -> None:
    archive = tmp_path / "clipart.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr("clipart/bird/a.png", picture(1))
    content = bytearray(archive.read_bytes())
    content[content.index(b"IDAT") + 6] ^= 1
    archive.write_bytes(bytes(content))
    with pytest.raises(FedReproError, match=r"clipart\.zip.*a\.png"):
        read({"images": archive})


def test_domains_through_the_manifest(tmp_path: Path) -> None:
    official(tmp_path)
    domain = load_domain("clipart-10", 8, tmp_path)
    assert domain.classes == NET.subsets["fedbn"]
    assert domain.deviations == ("clipart-10: 3 images, a paper counts 2,629",)
    other = load_domain("clipart-50", 8, tmp_path)
    assert other.hash != domain.hash and other.classes == NET.classes[:50]
    (row,) = status(["clipart-10"], tmp_path)
    assert (row.present, row.hash, row.source) == (True, "unknown", "zip")
    with pytest.raises(FedReproError, match=r"infograph-10: infograph\.zip is missing"):
        load_domain("infograph-10", 8, tmp_path)


def test_all_means_each_file_once(tmp_path: Path) -> None:
    everything = domain_names(())
    assert "clipart-10" in everything and "clipart-50" not in everything
    assert "clipart-50" in all_domains() and "clipart-50" in domain_names(["domainnet-50"])
    assert len({row.domain for row in status((), tmp_path)}) == len(everything)


def test_the_pacs_sketches_are_not_domainnets(tmp_path: Path) -> None:
    """Both releases have a folder called sketch."""
    os.makedirs(tmp_path / "DomainNet/sketch")
    assert default_manifest().locate("sketch-10", tmp_path).complete
    assert not default_manifest().locate("sketch", tmp_path).complete


def test_a_federation_of_two_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("clipart", "real")
    for domain in names:
        members = {
            f"{domain}/{name}/{domain}_{i:03d}.jpg": picture(k)
            for k, name in enumerate(NET.subsets["fedbn"])
            for i in range(5)
        }
        write_zip(tmp_path / "DomainNet" / f"{domain}.zip", members)
    monkeypatch.setitem(federation.DATASETS, "domainnet", ("clipart-10", "real-10"))
    fed = federation.build_federation(
        DataSpec(dataset="domainnet", size=8, split="random-fifth"), tmp_path
    )
    assert [len(c.train) for c in fed.clients] == [40, 40]
    assert [len(t) for t in fed.tests.values()] == [10, 10] and len(fed.classes) == 10
    for client in fed.clients:
        assert (client.train.images[:, 0, 0, 0] == 20 * client.train.labels).all()
