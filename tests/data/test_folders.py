"""A folder of one's own as a data set: what is read, what identifies it, and what is refused."""

import io
import shutil
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from fedrepro import methods, papers
from fedrepro.data import folders, prepare, status
from fedrepro.data.domains import load_dataset
from fedrepro.data.pictures import decode_image
from fedrepro.quantities.base import study
from fedrepro.records import RunSpec, run_id
from tests.data.made import one_line, picture, put

CLASSES = ("cat", "ein Löwe")


def tree(root: Path, order: int = 1) -> Path:
    """Two domains of two classes, a picture's red 100 d + 50 c + its number; written in order."""
    for d, domain in [*enumerate(("photo", "sketch"))][::order]:
        for c, name in [*enumerate(CLASSES)][::order]:
            own = normalize(("NFC", "NFD")[d], name)
            for n in range(8)[::order]:
                put(root / domain / own / f"{n:02}.png", picture(100 * d + 50 * c + n))
    return root


@pytest.fixture
def mine(tmp_path):
    return tree(tmp_path / "mine")


def refused(path: Path, said: str, size: int = 8) -> None:
    with one_line(said):
        load_dataset(folders.named(f"folder:{path}"), size)


def test_pictures_by_class_then_name_with_their_domains_and_classes(mine):
    put(mine / "photo" / "cat" / ".DS_Store", b"hidden")
    put(mine / "readme.txt", b"beside the domains")
    put(mine / "photo" / ".thumbs" / "a.png", b"hidden too")
    for n, kind in enumerate(("gif", "TIFF", "webp", "bmp")):  # with all pixels unchanged
        (mine / "photo" / "cat" / f"{n:02}.png").unlink()
        Image.new("RGB", (8, 8), (n, 0, 255)).save(mine / f"photo/cat/{n:02}.{kind}", lossless=True)
    found = load_dataset(folders.named(f"folder:{mine}"), 8)
    assert list(found) == ["photo", "sketch"]
    for d, arrays in enumerate(found.values()):
        assert arrays.classes == CLASSES and arrays.labels.tolist() == [0] * 8 + [1] * 8
        expected = [100 * d + 50 * c + n for c in range(2) for n in range(8)]
        assert arrays.images[:, 0, 0, 0].tolist() == expected
        assert set(arrays.part) == {-1} and not arrays.deviations and not arrays.standin


def test_a_picture_stands_as_its_camera_says(mine):
    held, turned = Image.new("RGB", (8, 8)), Image.Exif()
    held.paste((255, 0, 0), (0, 0, 8, 4))  # red above
    turned[0x0112] = 6  # to be turned by a quarter to the right
    content, ink = io.BytesIO(), io.BytesIO()
    Image.new("RGBA", (8, 8)).save(ink, "PNG")  # black that is not seen
    put(mine / "sketch" / "cat" / "00.png", ink.getvalue())
    put(mine / "sketch" / ".thumbs" / "cat" / "1.png", ink.getvalue())
    held.save(content, "PNG", exif=turned)
    put(mine / "photo" / "cat" / "00.png", content.getvalue())
    found = load_dataset(name := folders.named(f"folder:{mine}"), 8)
    assert (found["sketch"].images[0] == 255).all()  # on white, as a viewer shows it
    shutil.rmtree(mine / "sketch" / ".thumbs")
    assert folders.named(f"folder:{mine}") == name
    red = found["photo"].images[0, 0]
    assert (red[:, 4:] == 255).all() and not red[:, :4].any()
    assert (decode_image(content.getvalue(), "official", 8)[0][:4] == 255).all()  # as stored


def identity(place: Path) -> tuple[str, str]:
    one = study("common", f"folder:{place}")
    spec = RunSpec(methods.create("FedAvg"), one.protocol(), 0)
    assert str(place) not in f"{spec.config()} {one.dataset}"
    return run_id(spec.config(), one.federation().hashes), one.dataset


def test_a_run_is_known_by_content_wherever_it_lies(mine, tmp_path):
    first, name = identity(mine)
    assert name.startswith("folder:mine-")
    elsewhere = tree(tmp_path / "deeper" / "other name", order=-1)
    assert identity(elsewhere)[0] == first
    assert identity(shutil.copytree(mine, tmp_path / "deeper" / "mine")) == (first, name)
    put(mine / "photo" / "cat" / "00.png", picture(9))  # in the same process, no restart
    changed, other = identity(mine)
    (elsewhere / "photo").rename(elsewhere / "picture")
    assert len({first, changed, identity(elsewhere)[0]}) == 3 and other != name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: shutil.rmtree(p), r"mine does not exist; correct the path"),
        (lambda p: (shutil.rmtree(p), p.write_text("")), r"mine is a file; name a folder"),
        (lambda p: shutil.rmtree(p / "photo"), r"mine holds one domain, sketch; two or more"),
        (lambda p: shutil.rmtree(p / "photo" / "cat"), r"photo has no picture of cat; every"),
        (lambda p: put(p / "photo" / "cat" / "x.svg", b""), r"x\.svg is not a picture \(\.png"),
        (lambda p: put(p / "photo" / "x.png", picture(1)), r"x\.png is not in a class of a domain"),
        (lambda p: put(p / "photo/cat/a/x.png", picture(1)), "cat/a is a folder inside a class"),
        (lambda p: put(p / "sketch/cat/01.png", picture(1)[:50]), r"cat/01\.png: cannot be read"),
        (lambda p: (p / "photo").rename(p / "avg"), "avg has the name of a column; rename"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(mine, change, said):
    change(mine)
    refused(mine, said)


@pytest.mark.parametrize("target", ["outside.png", "nothing", "mine/sketch/cat"])
def test_links_that_leave_the_folder_are_refused_and_others_are_a_picture(mine, tmp_path, target):
    link = mine / "photo" / "cat" / "99.png"
    link.symlink_to(mine / "sketch" / "cat" / "00.png")
    found = load_dataset(folders.named(f"folder:{mine}"), 8)["photo"]
    assert found.images[8, 0, 0, 0] == 100 and found.labels[8] == 0
    link.unlink()
    put(tmp_path / "outside.png", picture(1))
    link.symlink_to(tmp_path / target)
    refused(mine, r"99\.png is a link out of the folder")


def test_bombs_and_deep_colours_are_refused_before_they_are_unpacked(mine, monkeypatch):
    path = mine / "photo" / "cat" / "03.png"
    bomb = io.BytesIO()
    Image.new("1", (8_000, 8_000)).save(bomb, "PNG")  # 8 kB on disk
    put(path, bomb.getvalue())
    for most in (Image.MAX_IMAGE_PIXELS, 1_000):  # then Pillow refuses it first
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        refused(mine, r"cat/03\.png: is too large a picture, over 50 megapixels; repair or remove")
    deep = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(deep, "PNG")
    put(path, deep.getvalue())
    refused(mine, r"cat/03\.png: has more than 8 bits per colour")
    path.unlink(), refused(mine, "image size 200000 is not in 1..1024", 200_000)
    monkeypatch.setattr(folders.pictures, "MAX_MEMBERS", 5)
    refused(mine, "mine holds over 5 files")


def test_status_says_what_it_holds_or_what_is_wrong(mine):
    put(mine / "photo" / "cat" / "99.png", picture(7))
    rows = status([f"folder:{mine}"])
    images = {f"folder:{mine}": 33, "photo": 17, "sketch": 16}
    assert {r.domain: r.images for r in rows} == images and all(r.present for r in rows)
    assert rows[0].note == "2 domains, 2 classes (cat, ein Löwe), 33 images"
    with one_line("is read when a run needs it"):
        list(prepare([f"folder:{mine}"]))
    with one_line("needs its path: write folder:PATH"):
        study("common", "folder:")
    shutil.rmtree(mine / "photo" / "cat")
    row, *gone = status([f"folder-frozen:{mine}", f"folder:{mine / 'absent'}", "folder:~nobody1/x"])
    assert row.hash == "bad" and "photo has no picture of cat; every" in row.note
    assert all(r.hash == "missing" and not r.present and "correct the path" in r.note for r in gone)


def test_a_papers_methods_run_on_it_under_the_papers_own_training(mine, tmp_path):
    for name in papers.names():
        paper = papers.load(name)
        own = study(name, f"folder:{mine}", "reduced").protocol()
        assert own.data.allocation.rule == "domain" and own.data.allocation.per_client == "all"
        base = paper.datasets["folder"].protocol
        theirs = paper.protocol(next(n for n in paper.datasets if n.startswith(base)), "reduced")
        for setting in ("model", "rounds", "batch_size", "optimizer"):
            assert getattr(own, setting) == getattr(theirs, setting)
    rows = study("adcol", f"folder:{mine}", only=["FedAvg"], runs_dir=tmp_path).cells("table-4")
    assert {row["column"] for row in rows} == {"photo", "sketch", "avg"}
    assert all(row["caveats"] == ["your own images, not the paper's"] for row in rows)
    with one_line("does not run on 'folder:.*choose from"):
        study("adcol", f"folder:{mine}").arms("figure-2a")
    one = study("common", f"folder-frozen:{mine}", only=["MPFT"], runs_dir=tmp_path)
    assert None not in [row["value"] for row in one.cells("frozen")]
