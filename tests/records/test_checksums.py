"""Damage to any kind of file is seen, wherever it falls; what a checkpoint is."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from fedrepro.base.errors import FedReproError
from fedrepro.data import domains
from fedrepro.records import Record
from fedrepro.records import store as store_module
from fedrepro.records.store import FileCheckpoint
from tests import toys
from tests.data.made import one_line
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
        domains._is_whole.cache_clear()  # two writes may fall on one tick of the file's clock
        if how != "whole":
            yield how


def must_fail(path: Path, read: Callable[[], object]) -> None:
    """However damaged, reading it is one line that names the file and the way out."""
    for how in damages(path):
        with pytest.raises(FedReproError, match="delete") as caught:
            read()
        assert str(path) in str(caught.value) and "\n" not in str(caught.value), how
    read()


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Record]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "federation_of", lambda spec, root: toys.federation())
        yield obtain(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("file", ["config.json", "curve.parquet", "features.safetensors"])
def test_a_file_of_a_record(record, file):
    name = file.partition(".")[0]
    must_fail(record.folder / file, lambda: getattr(Record(record.folder), name))


def test_the_list_itself(record):
    files = [path.name for path in record.folder.iterdir() if path.suffix]
    assert len(files) == 6

    def everything() -> None:
        again = Record(record.folder)
        for file in files:
            again.read(file)

    for how in damages(record.folder / "done"):
        with pytest.raises(FedReproError, match="delete its folder and run again"):
            everything()
            pytest.fail(how)


WHOLE = torch.arange(6.0).reshape(2, 3)
TENSORS = {
    "a": WHOLE.T,
    "alias": WHOLE[1:],
    "bfloat": WHOLE.bfloat16(),
    "b": torch.tensor([True, False]),
    "c": torch.tensor(7),
    "empty": torch.zeros(0, 4, dtype=torch.float64),
}
FACTS = {"round": 2, "rows": [[1, "a", 0.5]]}


def test_a_checkpoint_is_what_was_saved_or_refused(tmp_path, monkeypatch):
    checkpoint, other = FileCheckpoint(tmp_path / "seed0"), FileCheckpoint(tmp_path / "seed1")
    checkpoint.save(TENSORS, FACTS), other.save(TENSORS, FACTS)
    must_fail(checkpoint.path, checkpoint.load)
    stored, facts = checkpoint.load()
    assert stored.keys() == TENSORS.keys() and facts == FACTS
    for name, value in TENSORS.items():
        assert torch.equal(stored[name], value) and stored[name].dtype == value.dtype
    monkeypatch.setattr(store_module, "serialize_file", Mock(side_effect=OSError("no space left")))
    with pytest.warns(UserWarning, match=r"\(no space left\); make room, or"):
        checkpoint.save({"a": torch.zeros(99)}, {"round": 3})
    assert checkpoint.load()[1] == FACTS
    checkpoint.path.write_bytes(other.path.read_bytes())
    with one_line(r"seed0.* is of another run, seed1; delete it"):
        checkpoint.load()
