"""A folder of one's own as a data set: what is read, what identifies it, and what is refused."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedrepro
from fedrepro import methods, papers
from fedrepro.base.errors import FedReproError
from fedrepro.data import folders, prepare, status
from fedrepro.data.domains import load_dataset
from fedrepro.quantities.paper_run import study
from fedrepro.records import RunSpec, run_id
from tests.data.made import picture, put

CLASSES = ("cat", "ein Hund")


def tree(root: Path, each: int = 8, order: int = 1) -> Path:
    """Two domains of two classes; a picture's red is 100 d + 50 c + its number. `order` -1 writes
    the last file first."""
    for d, domain in [*enumerate(("photo", "sketch"))][::order]:
        for c, name in [*enumerate(CLASSES)][::order]:
            for n in range(each)[::order]:
                put(root / domain / name / f"{n:02}.png", picture(100 * d + 50 * c + n))
    return root


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return tree(tmp_path / "mine")


def refused(path: Path, said: str) -> None:
    """Naming the folder, or reading it, is one line that says so."""
    with pytest.raises(FedReproError, match=said) as caught:
        load_dataset(folders.named(f"folder:{path}"), 8)
    assert "\n" not in str(caught.value)


def test_pictures_by_class_then_name_with_their_domains_and_classes(mine: Path) -> None:
    put(mine / "photo" / "cat" / ".DS_Store", b"hidden")
    put(mine / "readme.txt", b"beside the domains")
    put(mine / "photo" / ".thumbs" / "a.png", b"hidden too")
    found = load_dataset(folders.named(f"folder:{mine}"), 8)
    assert list(found) == ["photo", "sketch"]
    for d, arrays in enumerate(found.values()):
        assert arrays.classes == CLASSES and arrays.labels.tolist() == [0] * 8 + [1] * 8
        expected = [100 * d + 50 * c + n for c in range(2) for n in range(8)]
        assert arrays.images[:, 0, 0, 0].tolist() == expected
        assert set(arrays.part) == {-1} and not arrays.deviations and not arrays.standin


def identity(place: Path, method: str = "FedAvg") -> str:
    one = study("common", f"folder:{place}")
    spec = RunSpec(methods.create(method), one.protocol(), 0)
    assert str(place) not in str(spec.config())
    return run_id(spec.config(), one.federation().hashes)


def test_a_run_is_known_by_content_wherever_it_lies(mine: Path, tmp_path: Path) -> None:
    first, name = identity(mine), study("common", f"folder:{mine}").dataset
    elsewhere = tree(tmp_path / "deeper" / "other name", order=-1)
    assert identity(elsewhere) == first
    same = shutil.copytree(mine, tmp_path / "deeper" / "mine")
    assert study("common", f"folder:{same}").dataset == name
    assert name.startswith("folder:mine-") and str(tmp_path) not in name
    put(mine / "photo" / "cat" / "00.png", picture(9))  # in the same process, no restart
    assert identity(mine) != first and study("common", f"folder:{mine}").dataset != name
    os.rename(elsewhere / "photo", elsewhere / "picture")
    assert identity(elsewhere) not in (first, identity(mine))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: shutil.rmtree(p), r"mine does not exist; mend the path"),
        (lambda p: (shutil.rmtree(p), p.write_text("")), r"mine is a file; name a folder"),
        (lambda p: shutil.rmtree(p / "photo"), r"mine holds one domain, sketch; two or more"),
        (lambda p: [shutil.rmtree(d / "cat") for d in p.iterdir()], "holds one class, ein Hund;"),
        (lambda p: [shutil.rmtree(d) for d in p.iterdir()], "mine holds no domain;"),
        (lambda p: shutil.rmtree(p / "photo" / "cat"), r"photo has no picture of cat; every"),
        (lambda p: put(p / "photo" / "cat" / "x.webp", b""), r"x\.webp is no picture \(\.png"),
        (lambda p: put(p / "photo" / "x.png", picture(1)), r"x\.png lies in no class of a domain"),
        (lambda p: put(p / "photo/cat/a/x.png", picture(1)), "cat/a is a folder inside a class"),
        (lambda p: put(p / "sketch/cat/01.png", b"x"), r"sketch/cat/01\.png: cannot be read"),
        (lambda p: put(p / "sketch/cat/01.png", picture(1)[:50]), r"cat/01\.png: cannot be read"),
        (lambda p: os.rename(p / "photo", p / "avg"), "avg has the name of a column; rename"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(
    mine: Path, change: Callable[[Path], Any], said: str
) -> None:
    change(mine)
    refused(mine, said)


@pytest.mark.parametrize("target", ["outside.png", "outside", "nothing", "mine/sketch/cat"])
def test_links_that_leave_the_folder_are_refused(mine: Path, tmp_path: Path, target: str) -> None:
    put(tmp_path / "outside.png", picture(1))
    (tmp_path / "outside").mkdir()
    (mine / "photo" / "cat" / "link.png").symlink_to(tmp_path / target)
    refused(mine, r"link\.png is a link that leaves the folder")


def test_a_link_to_a_picture_inside_is_that_picture(mine: Path) -> None:
    (mine / "photo" / "cat" / "99.png").symlink_to(mine / "sketch" / "cat" / "00.png")
    found = load_dataset(folders.named(f"folder:{mine}"), 8)["photo"]
    assert found.images[8, 0, 0, 0] == 100 and found.labels[8] == 0


def test_bombs_and_deep_colours_are_refused_before_they_are_unpacked(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mine / "photo" / "cat" / "03.png"
    bomb = io.BytesIO()
    Image.new("1", (8_000, 8_000)).save(bomb, "PNG")  # 8 kB on disk
    put(path, bomb.getvalue())
    refused(mine, r"cat/03\.png: is too large a picture; mend or remove it")
    deep = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(deep, "PNG")
    put(path, deep.getvalue())
    refused(mine, r"cat/03\.png: has more than 8 bits a colour")
    monkeypatch.setattr(folders.common, "MAX_MEMBERS", 5)
    refused(mine, "mine holds over 5 files")


def test_status_says_what_it_holds_or_what_is_wrong(mine: Path) -> None:
    put(mine / "photo" / "cat" / "99.png", picture(7))
    rows = status(["mini-font", f"folder:{mine}"])
    assert [(r.domain, r.images, r.present) for r in rows[1:]] == [
        (f"folder:{mine}", 33, True),
        ("photo", 17, True),
        ("sketch", 16, True),
    ]
    assert rows[1].note == "2 domains, 2 classes (cat, ein Hund), 33 images"
    assert rows[0].domain == "mini-font" and not rows[2].note
    with pytest.raises(FedReproError, match="is read when a run needs it"):
        list(prepare([f"folder:{mine}"]))
    shutil.rmtree(mine / "photo" / "cat")
    (row,) = status([f"folder:{mine}"])
    assert row.hash == "bad" and "photo has no picture of cat; every" in row.note
    (row,) = status([f"folder:{mine / 'absent'}"])
    assert row.hash == "missing" and not row.present and "does not exist" in row.note


def test_a_paper_refuses_and_names_the_common_protocol(mine: Path) -> None:
    for paper in papers.list():
        with pytest.raises(FedReproError, match="own; name `common` in its place"):
            study(paper, f"folder:{mine}")
    for wrong in ("folder", "folder:"):
        with pytest.raises(FedReproError, match="needs its path: write folder:PATH"):
            study("common", wrong)
    with pytest.raises(FedReproError, match=r"no protocol .* 'office10:.*folder:PATH"):
        study("common", f"office10:{mine}")
    with pytest.raises(FedReproError, match="does not run on 'folder:mine-"):
        study("common", f"folder:{mine}").arms("frozen")


def test_python_runs_and_compares_on_it_by_a_relative_path(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(mine, 10)
    monkeypatch.chdir(tmp_path)
    assert len(fedrepro.federation("folder:mine").clients) == 2
    table = fedrepro.compare(["FedAvg"], "folder:mine", seeds=[0, 1], runs=tmp_path / "runs")
    assert list(table.columns) == ["photo", "sketch", "avg", "seeds", "low", "high"]
    one = study("common", "folder-frozen:mine", runs_dir=tmp_path / "runs")
    assert {row["method"] for row in one.cells("frozen") if row["value"] is not None} >= {"MPFT"}
