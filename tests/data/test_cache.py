"""The prepared arrays: memory-mapped, written once, whole or not at all."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.data import load_domain, prepare
from fedrepro.data.domains import make_plan
from fedrepro.data.manifest import Manifest


def load(tiny, cache: Path | None = None, size: int = 28):
    return load_domain("mnist", size, tiny.root, cache, tiny.manifest)


def test_arrays_are_memory_mapped_from_plain_safetensors(tiny_mnist, tmp_path: Path) -> None:
    domain = load(tiny_mnist, tmp_path / "cache")
    assert isinstance(domain.images, np.memmap) and not domain.images.flags.writeable
    np.testing.assert_array_equal(domain.images[:, 0, 5, 5], [*range(20), *range(10)])
    np.testing.assert_array_equal(domain.labels, [*range(10)] * 3)
    np.testing.assert_array_equal(domain.part, [0] * 20 + [1] * 10)
    assert (domain.labels.dtype, domain.part.dtype) == (np.int64, np.int8)
    assert domain.classes == tuple("0123456789")
    assert (domain.standin, domain.cut, domain.deviations) == (False, None, ())
    (path,) = (tmp_path / "cache").glob("*.safetensors")
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["images"]["dtype"] == "U8" and header["images"]["shape"] == [30, 1, 28, 28]
    assert json.loads(header["__metadata__"]["fedrepro"])["hash"] == domain.hash


def test_a_second_prepare_writes_nothing(tiny_mnist, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    arguments = (["mnist"], [28, 32], tiny_mnist.root, cache, tiny_mnist.manifest)
    first = list(prepare(*arguments))
    before = {p: p.stat().st_mtime_ns for p in cache.rglob("*")}
    second = list(prepare(*arguments))
    assert {p: p.stat().st_mtime_ns for p in cache.rglob("*")} == before
    assert all("30 images, prepared" in line for line in first)
    assert all("30 images, already there" in line for line in second)
    # the hash follows the size
    hashes = [load(tiny_mnist, cache, size).hash for size in (28, 32, 28)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_cut_cache_file_is_made_anew(tiny_mnist, tmp_path: Path) -> None:
    load(tiny_mnist, tmp_path / "c")
    (path,) = (tmp_path / "c").glob("*.safetensors")
    content = path.read_bytes()
    for broken in (content[:-5], content[:20], b""):
        path.write_bytes(broken)
        assert load(tiny_mnist, tmp_path / "c").images.shape == (30, 1, 28, 28)
        assert path.read_bytes() == content


def test_a_full_disk_leaves_no_half_file(tiny_mnist, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    make_plan("mnist", 28, tiny_mnist.root, cache, tiny_mnist.manifest)  # hashes are noted
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # writes beyond fail as on a full disk
    try:
        with pytest.raises(FedReproError, match="cannot be written") as caught:
            load(tiny_mnist, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert [p.name for p in cache.iterdir()] == ["verified"]
    assert load(tiny_mnist, cache).images.shape[0] == 30


def test_folders_and_sizes_that_cannot_be_used(tiny_mnist, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FedReproError, match="is a file"):
        load(tiny_mnist, tmp_path / "file")
    with pytest.raises(FedReproError, match="cannot be made"):
        load(tiny_mnist, tmp_path / "file" / "below")
    for size in (0, -1, 100_000):
        with pytest.raises(FedReproError, match=f"image size {size}"):
            load(tiny_mnist, size=size)


def test_a_read_only_root_is_only_read(tiny_mnist, tmp_path: Path) -> None:
    folder = tiny_mnist.root / "mnist"
    folder.chmod(0o555)
    tiny_mnist.root.chmod(0o555)
    before = {p: p.stat().st_mtime_ns for p in [folder, tiny_mnist.root, *folder.iterdir()]}
    try:
        assert load(tiny_mnist, tmp_path / "c").images.shape[0] == 30
        assert {p: p.stat().st_mtime_ns for p in before} == before
        assert set(os.listdir(tiny_mnist.root)) == {"mnist"}
    finally:
        tiny_mnist.root.chmod(0o755)
        folder.chmod(0o755)


def test_wrong_counts_are_a_cut_set(tiny_mnist, tmp_path: Path) -> None:
    collection = tiny_mnist.manifest.collections["mnist"]
    source = collection.sources[0].model_copy(update={"totals": ((20, 11, 0),)})
    manifest = Manifest({"mnist": collection.model_copy(update={"sources": (source,)})})
    with pytest.raises(FedReproError, match="20 training and 10 test images, expected 20 and 11"):
        load_domain("mnist", 28, tiny_mnist.root, tmp_path / "c", manifest)


def test_generated_domains_need_no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "absent"))
    domain = load_domain("mini-scanned", 8, cache=tmp_path / "c")
    assert domain.images.shape == (1797, 1, 8, 8) and not domain.standin
