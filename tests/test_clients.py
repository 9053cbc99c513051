"""Where clients' tensors lie, several runs in one loop, and what a checkpoint costs."""

import json

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from fedrepro import clients, methods
from fedrepro.clients import Shelf
from fedrepro.progress import Silent
from fedrepro.rounds import Training
from fedrepro.runs import checkpoint as checkpoint_module
from fedrepro.runs.checkpoint import FileCheckpoint
from fedrepro.together import run_together
from tests import toys

KEEPING = ("ADCOL", "SOLO", "FedBN")


def start(name="ADCOL", folder=None, seed=0, engine="reference", **changes):
    return Training(
        methods.create(name),
        toys.protocol(**changes),
        toys.federation(),
        seed,
        engine=engine,
        folder=folder,
    )


def numbers(curve):
    return curve[curve.measure != "seconds"].reset_index(drop=True)


def same(a, b):
    pd.testing.assert_frame_equal(numbers(a), numbers(b), check_exact=True)


@pytest.fixture
def no_memory(monkeypatch):
    monkeypatch.setattr(clients, "SHARE", 0.0)


@pytest.mark.parametrize("engine", ["reference", "fused"])
@pytest.mark.parametrize("name", KEEPING)
def test_clients_in_files_have_the_same_numbers(name, engine, tmp_path, monkeypatch):
    expected = start(name, engine=engine).run(Silent())
    monkeypatch.setattr(clients, "SHARE", 0.0)
    run = start(name, tmp_path / "clients", engine=engine)
    same(run.run(Silent()), expected)
    assert run.shelf.in_files
    assert sorted(p.name for p in (tmp_path / "clients").iterdir()) == ["0.bin", "1.bin", "2.bin"]


def test_files_hold_what_clients_keep(no_memory, tmp_path):
    run = start("FedBN", tmp_path)
    run.run(Silent())
    needed = sum(-(-v.nbytes // 64) * 64 for v in run.clients[0].kept.values())
    assert (tmp_path / "0.bin").stat().st_size == needed
    raw = torch.from_file(str(tmp_path / "0.bin"), size=needed, dtype=torch.uint8)
    first = next(iter(run.clients[0].kept.values()))
    assert torch.equal(raw[: first.nbytes].view(first.dtype), first.flatten())


def test_a_temporary_folder_goes_with_its_run(no_memory):
    run = start()
    run.one_round()
    folder = run.shelf._path(0).parent
    assert (folder / "0.bin").exists()
    del run
    assert not folder.exists()


def test_tensors_that_change_their_form_get_a_new_file(tmp_path, no_memory):
    shelf = Shelf(torch.device("cpu"), 1, tmp_path)
    shelf.put(0, {"kept": {"a": torch.ones(3)}})
    held = shelf.put(0, {"kept": {"a": torch.arange(5.0), "b": torch.tensor([True, False])}})
    assert held["kept"]["a"].tolist() == [0, 1, 2, 3, 4]
    assert held["kept"]["b"].tolist() == [True, False]


class Interrupt(Exception):
    pass


def test_clients_in_files_resume_from_a_checkpoint(no_memory, tmp_path):
    expected = start(folder=tmp_path / "whole").run(Silent())

    class StopAfterTwo(FileCheckpoint):
        def due(self):
            return True

        def save(self, tensors, facts):
            super().save(tensors, facts)
            if facts["round"] == 2:
                raise Interrupt

    with pytest.raises(Interrupt):
        start(folder=tmp_path / "cut").run(Silent(), StopAfterTwo(tmp_path))
    resumed = start(folder=tmp_path / "cut")
    same(resumed.run(Silent(), FileCheckpoint(tmp_path)), expected)


def test_a_round_cut_in_the_middle_is_not_saved_from_files(no_memory, tmp_path, monkeypatch):
    """Some clients' files are a round ahead by then: the older checkpoint stands."""
    run, checkpoint = start(folder=tmp_path / "clients"), FileCheckpoint(tmp_path)
    monkeypatch.setattr(checkpoint, "due", lambda: True)
    train = run.engine.train

    def interrupted(method, jobs):
        for position, trained in train(method, jobs):
            yield position, trained
            if run.server.round == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(run.engine, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run(Silent(), checkpoint)
    assert FileCheckpoint(tmp_path).load()[1]["round"] == 2
    resumed = start(folder=tmp_path / "clients")
    same(resumed.run(Silent(), FileCheckpoint(tmp_path)), start().run(Silent()))


# Several seeds in one loop.


@pytest.mark.parametrize("name", ["FedAvg", "Per-FedAvg", "ADCOL"])
def test_seeds_together_have_the_bits_of_seeds_apart(name):
    """Under the plain loop; the fused engine's own tests say how near it comes."""
    apart = [start(name, seed=seed).run(Silent()) for seed in (0, 1)]
    runs = [start(name, seed=seed) for seed in (0, 1)]
    for one, both in zip(apart, run_together(runs, Silent(), [None, None]), strict=True):
        same(one, both)


def test_fused_seeds_together_have_the_numbers_of_seeds_apart():
    settings = {"engine": "fused", "precision": "float64", "data__normalise": "half"}
    apart = [numbers(start(seed=seed, **settings).run(Silent())) for seed in (0, 1)]
    runs = [start(seed=seed, **settings) for seed in (0, 1)]
    for one, both in zip(apart, run_together(runs, Silent(), [None, None]), strict=True):
        pd.testing.assert_frame_equal(one, numbers(both), check_exact=False, rtol=1e-8, atol=1e-8)


def test_seeds_that_stop_early_leave_the_others(monkeypatch):
    runs = [start("FedAvg", seed=seed) for seed in (0, 1)]
    monkeypatch.setattr(runs[0].log, "stopped", lambda number: number == 1)
    curves = run_together(runs, Silent(), [None, None])
    assert [curve["round"].max() for curve in curves] == [1, 3]
    same(curves[1], start("FedAvg", seed=1).run(Silent()))


def test_seeds_at_different_rounds_go_on_together(tmp_path):
    ahead = start("FedAvg", seed=0)
    ahead.one_round()
    ahead.save(FileCheckpoint(tmp_path))
    runs = [start("FedAvg", seed=seed) for seed in (0, 1)]
    curves = run_together(runs, Silent(), [FileCheckpoint(tmp_path), None])
    for seed, curve in enumerate(curves):
        same(curve, start("FedAvg", seed=seed).run(Silent()))


# Checkpoints.


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
