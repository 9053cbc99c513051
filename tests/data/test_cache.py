"""The prepared arrays: memory-mapped, written once, whole or not at all."""

import resource
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from fedrepro.data import load_domain, prepare, status
from tests.data.made import one_line
from tests.toys import damages


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDREPRO_CACHE", str(tmp_path / "c"))
    return tmp_path / "c"


def load(tiny, size: int = 28):
    return load_domain("mnist", size, tiny.root)


def seen(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_arrays_are_memory_mapped_and_made_once_from_a_root_that_is_only_read(tiny_mnist, cache):
    official = seen(tiny_mnist.root)
    with ThreadPool(2) as pool:  # one of both reads the files
        domain, other = pool.map(load, [tiny_mnist] * 2)
    assert domain.fresh != other.fresh
    assert not domain.images.flags.writeable
    np.testing.assert_array_equal(domain.images[:, 0, 5, 5], [*range(20), *range(10)])
    np.testing.assert_array_equal(domain.labels, [*range(10)] * 3)
    np.testing.assert_array_equal(domain.part, [0] * 20 + [1] * 10)
    assert domain.classes == tuple("0123456789")
    assert (domain.standin, domain.cut, domain.deviations) == (False, None, ())
    (path,) = cache.glob("*.safetensors")
    assert str(path) in {area.path for area in psutil.Process().memory_maps()}
    np.testing.assert_array_equal(load_file(path)["images"], domain.images)
    arguments = (["mnist"], [32], tiny_mnist.root)
    assert all("30 images, prepared" in line for line in prepare(*arguments))
    before = seen(cache)
    assert all("30 images, already there" in line for line in prepare(*arguments))
    assert seen(cache) == before and seen(tiny_mnist.root) == official
    assert domain.hash != load(tiny_mnist, 32).hash


def test_a_damaged_cache_file_is_named_once_and_made_again(tiny_mnist, cache, capsys):
    load(tiny_mnist)
    assert "damaged" not in capsys.readouterr().err  # an absent file is no damage
    (path,) = cache.glob("*.safetensors")
    content = path.read_bytes()
    for how in damages(path):
        assert load(tiny_mnist).images.shape == (30, 1, 28, 28), how
        assert f"{path} is damaged" in (said := capsys.readouterr().err) and said.count("\n") == 1
        assert path.read_bytes() == content


def test_a_full_disk_leaves_no_half_file(tiny_mnist, cache):
    status(["mnist"], tiny_mnist.root)  # hashes are noted
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # writes beyond fail as on a full disk
    try:
        with one_line("cannot be written"):
            load(tiny_mnist)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.suffix for path in cache.iterdir()} == {"", ".lock"}
    assert load(tiny_mnist).images.shape[0] == 30


def test_folders_sizes_and_counts_that_cannot_be_used(tiny_mnist, tmp_path, monkeypatch, known):
    (tmp_path / "file").touch()
    for place, message in (
        ("file", "cannot be made"),
        ("file/below", "cannot be made"),
        *[("/sys/kernel", "cannot be written")][: Path("/sys/kernel").is_dir()],  # not by root
    ):
        with monkeypatch.context() as there, one_line(message):
            there.setenv("FEDREPRO_CACHE", str(tmp_path / place))
            load(tiny_mnist)
    for size in (0, -1, 100_000):
        with one_line(f"image size {size}"):
            load(tiny_mnist, size=size)
    source = known["mnist"].sources[0].model_copy(update={"totals": ((20, 11, 0),)})
    known["mnist"] = known["mnist"].model_copy(update={"sources": (source,)})
    with one_line("20 training and 10 test images, expected 20 and 11"):  # a cut set
        load(tiny_mnist)
