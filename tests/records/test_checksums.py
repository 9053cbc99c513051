"""Damage to any kind of file is seen, wherever it falls; what a checkpoint is."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedrepro.base.errors import FedReproError
from fedrepro.data import cache, embeddings
from fedrepro.data.readers.common import Decoded
from fedrepro.records import Record
from fedrepro.records import checkpoint as checkpoints
from fedrepro.records import store as store_module
from fedrepro.records.checkpoint import FileCheckpoint
from tests import toys
from tests.records.conftest import obtain

TRIES = 20


def damages(path: Path) -> Iterator[str]:
    """The file empty, cut, or with one bit flipped anywhere; whole again in the end."""
    whole = path.read_bytes()
    draws = random.Random(path.name)
    broken = {"empty": b"", "cut": whole[:-5]}
    for place in [0, len(whole) - 1, *(draws.randrange(len(whole)) for _ in range(TRIES))]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draws.randrange(8)
        broken[f"byte {place}"] = bytes(flipped)
    for how, content in {**broken, "whole": whole}.items():
        path.write_bytes(content)
        cache._is_whole.cache_clear()  # two writes may fall on one tick of the file's clock
        if how != "whole":
            yield how


def must_fail(path: Path, read: Callable[[], object]) -> None:
    """However damaged, reading it is one line that names the file and the way out."""
    for how in damages(path):
        with pytest.raises(FedReproError, match="delete") as caught:
            read()
        assert str(path) in str(caught.value) and "\n" not in str(caught.value), how
    read()


# Records.


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "federation_of", lambda spec, root: toys.federation())
        yield obtain(tmp_path_factory.mktemp("runs"))


KINDS = ["config.json", "data.json", "curve.parquet", "features.safetensors"]


@pytest.mark.parametrize("file", KINDS)
def test_a_file_of_a_record(record, file):
    name = file.partition(".")[0]
    must_fail(record.folder / file, lambda: getattr(Record(record.folder), name))


def test_the_list_itself(record):
    def everything() -> None:
        again = Record(record.folder)
        for file in (*KINDS, "environment.json", "predictions.safetensors"):
            again.read(file)

    for how in damages(record.folder / "done"):
        with pytest.raises(FedReproError, match="delete its folder and run again"):
            everything()
            pytest.fail(how)
    everything()


# Checkpoints.

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3).T,
    "b": torch.tensor([True, False]),
    "c": torch.tensor(7),
    "empty": torch.zeros(0, 4, dtype=torch.float64),
}
FACTS = {"round": 2, "rows": [[1, "a", 0.5]]}


def saved(folder: Path) -> FileCheckpoint:
    FileCheckpoint(folder).save(TENSORS, FACTS)
    return FileCheckpoint(folder)


def test_a_checkpoint_is_what_the_library_reads_and_whole_or_refused(tmp_path):
    checkpoint = saved(tmp_path / "0")
    must_fail(checkpoint.path, checkpoint.load)
    stored, facts = checkpoint.load()
    for read in (load_file(checkpoint.path), stored):
        assert read.keys() == TENSORS.keys() and facts == FACTS
        assert all(torch.equal(read[n], v) and read[n].dtype == v.dtype for n, v in TENSORS.items())


def test_another_runs_checkpoint_is_refused(tmp_path):
    one, other = saved(tmp_path / "seed0"), saved(tmp_path / "seed1")
    one.path.write_bytes(other.path.read_bytes())
    with pytest.raises(FedReproError, match=r"seed0.* is of another run, seed1; delete it"):
        one.load()


def test_a_checkpoint_the_disk_has_no_room_for_is_a_warning(tmp_path, monkeypatch):
    checkpoint = saved(tmp_path)
    free = type("Usage", (), {"free": 10})
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda path: free)
    with pytest.warns(UserWarning, match="not saved; make room"):
        checkpoint.save({"a": torch.zeros(99)}, {"round": 3})
    assert checkpoint.load()[1] == FACTS


# Caches.


DAMAGED = "warning: {} is damaged (its checksum does not fit); it is made again\n"


def test_a_cache_of_images_or_embeddings(tmp_path, capsys):
    images = np.arange(6 * 3 * 64, dtype=np.uint8).reshape(6, 3, 8, 8)
    arrays = Decoded(images, np.arange(6), np.zeros(6, dtype=np.int8))
    path = tmp_path / "a.safetensors"
    cache.write_signed(path, vars(arrays), {"hash": "h", "told": 'a "word"'})
    for how in damages(path):
        assert cache.open_arrays(path, "h") is None, how
        assert capsys.readouterr().err == DAMAGED.format(path), how
    assert np.array_equal(cache.open_arrays(path, "h").images, images)

    path = tmp_path / "e.safetensors"
    values = np.random.default_rng(0).random((5, 4), dtype=np.float32)
    cache.write_signed(path, {"rows": np.arange(5), "embeddings": values}, {"domain": "d"})
    for how in damages(path):
        assert len(embeddings._read(path, 4).rows) == 0, how
        assert capsys.readouterr().err == DAMAGED.format(path), how
    assert np.array_equal(embeddings._read(path, 4).values, values)
