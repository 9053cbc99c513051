"""The prepared arrays: memory-mapped, written once, whole or not at all."""

import json
import resource
from pathlib import Path

import numpy as np

from fedrepro.data import load_domain, prepare
from fedrepro.data.domains import make_plan
from fedrepro.data.manifest import Manifest
from tests.data.made import one_line


def load(tiny, cache: Path | None = None, size: int = 28):
    return load_domain("mnist", size, tiny.root, cache, tiny.manifest)


def test_arrays_are_memory_mapped_from_plain_safetensors(tiny_mnist, tmp_path):
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


def test_a_second_prepare_writes_nothing(tiny_mnist, tmp_path):
    cache = tmp_path / "cache"
    arguments = (["mnist"], [28, 32], tiny_mnist.root, cache, tiny_mnist.manifest)
    assert all("30 images, prepared" in line for line in prepare(*arguments))
    before = {p: p.stat().st_mtime_ns for p in cache.rglob("*")}
    assert all("30 images, already there" in line for line in prepare(*arguments))
    assert {p: p.stat().st_mtime_ns for p in cache.rglob("*")} == before
    # the hash follows the size
    assert load(tiny_mnist, cache, 28).hash != load(tiny_mnist, cache, 32).hash


def test_a_cut_cache_file_is_made_anew(tiny_mnist, tmp_path):
    load(tiny_mnist, tmp_path / "c")
    (path,) = (tmp_path / "c").glob("*.safetensors")
    content = path.read_bytes()
    for broken in (content[:-5], content[:20], b""):
        path.write_bytes(broken)
        assert load(tiny_mnist, tmp_path / "c").images.shape == (30, 1, 28, 28)
        assert path.read_bytes() == content


def test_a_full_disk_leaves_no_half_file(tiny_mnist, tmp_path):
    cache = tmp_path / "c"
    make_plan("mnist", 28, tiny_mnist.root, cache, tiny_mnist.manifest)  # hashes are noted
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # writes beyond fail as on a full disk
    try:
        with one_line("cannot be written"):
            load(tiny_mnist, cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.name for p in cache.iterdir()] == ["verified"]
    assert load(tiny_mnist, cache).images.shape[0] == 30


def test_folders_sizes_and_counts_that_cannot_be_used(tiny_mnist, tmp_path):
    (tmp_path / "file").touch()
    for place, message in (("file", "is a file"), ("file/below", "cannot be made")):
        with one_line(message):
            load(tiny_mnist, tmp_path / place)
    for size in (0, -1, 100_000):
        with one_line(f"image size {size}"):
            load(tiny_mnist, size=size)
    collection = tiny_mnist.manifest.collections["mnist"]
    source = collection.sources[0].model_copy(update={"totals": ((20, 11, 0),)})
    manifest = Manifest({"mnist": collection.model_copy(update={"sources": (source,)})})
    with one_line("20 training and 10 test images, expected 20 and 11"):  # a cut set
        load_domain("mnist", 28, tiny_mnist.root, tmp_path / "c", manifest)


def test_a_read_only_root_is_only_read_and_generated_domains_need_none(
    tiny_mnist, tmp_path, monkeypatch
):
    root, folder = tiny_mnist.root, tiny_mnist.root / "mnist"
    before = {p: p.stat().st_mtime_ns for p in [root, *root.rglob("*")]}
    folder.chmod(0o555), root.chmod(0o555)
    try:
        assert load(tiny_mnist, tmp_path / "c").images.shape[0] == 30
        assert {p: p.stat().st_mtime_ns for p in [root, *root.rglob("*")]} == before
    finally:
        root.chmod(0o755), folder.chmod(0o755)
    monkeypatch.setenv("FEDREPRO_DATA", str(tmp_path / "absent"))
    domain = load_domain("mini-scanned", 8, cache=tmp_path / "c")
    assert domain.images.shape == (1797, 1, 8, 8) and not domain.standin
