"""Checkpoints: what the library reads, and a full disk."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fedrepro.records import checkpoint as checkpoint_module
from fedrepro.records.checkpoint import FileCheckpoint


def test_a_checkpoint_is_what_the_library_reads(tmp_path):
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3).T,
        "b": torch.tensor([True, False]),
        "c": torch.tensor(7),
        "empty": torch.zeros(0, 4, dtype=torch.float64),
    }
    FileCheckpoint(tmp_path).save(tensors, {"round": 3, "rows": []})
    found = load_file(tmp_path / checkpoint_module.NAME)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[n], v) and found[n].dtype == v.dtype for n, v in tensors.items())
    stored, facts = FileCheckpoint(tmp_path).load()
    assert facts == {"round": 3, "rows": []} and torch.equal(stored["a"], tensors["a"])
    json.dumps(facts)


def test_a_checkpoint_the_disk_has_no_room_for_is_a_warning(tmp_path, monkeypatch):
    checkpoint = FileCheckpoint(tmp_path)
    checkpoint.save({"a": torch.ones(2)}, {"round": 1})
    free = type("Usage", (), {"free": 10})
    monkeypatch.setattr(checkpoint_module.shutil, "disk_usage", lambda path: free)
    with pytest.warns(UserWarning, match="not saved; make room"):
        checkpoint.save({"a": torch.zeros(99)}, {"round": 2})
    assert checkpoint.load()[1] == {"round": 1}
