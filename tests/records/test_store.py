"""Records and the store: found, resumed or trained; never half written, never silently altered."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file
from scipy.spatial.distance import pdist

from fedrepro import methods
from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.records import RunSpec, Store, embedding, run_id
from fedrepro.records import store as store_module
from tests import toys
from tests.toys import numbers

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def toy_data(monkeypatch):
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: toys.federation())


def spec(name="FedAvg", seed=0, **changes):
    return RunSpec(methods.create(name), toys.protocol(**changes), seed, "reference")


def obtain(place, wanted=None):
    return Store(place).obtain(wanted or spec(), device="cpu", progress=Silent())


def test_a_record_holds_what_the_design_promises(tmp_path):
    record = obtain(tmp_path)
    stamp = (record.folder / "done").stat().st_mtime_ns
    assert obtain(tmp_path).folder == record.folder
    assert (record.folder / "done").stat().st_mtime_ns == stamp
    names = {p.name for p in record.folder.iterdir() if not p.name.startswith(".")}
    assert names == {
        "config.json",
        "environment.json",
        "data.json",
        "curve.parquet",
        "features.safetensors",
        "predictions.safetensors",
        "done",
    }
    assert record.config["method"]["name"] == "FedAvg"
    assert record.environment["threads"] >= 1 and "commit" in record.environment
    assert record.data["hashes"] and record.data["counts"]
    assert record.features["features"].shape[0] == len(record.features["labels"]) == 36
    assert record.protocol == toys.protocol()


def test_subsets_are_recorded(tmp_path, monkeypatch):
    federation = replace(toys.federation(), subsets=("a",))
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: federation)
    assert obtain(tmp_path).data["subsets"] == ["a"]


def test_kept_features_are_the_networks_own(tmp_path):
    """PCA keeps distances: what is read back must lie as far apart as what the network gave."""
    record = obtain(tmp_path)
    training = store_module.Training(
        methods.create("FedAvg"), toys.protocol(), toys.federation(), 0
    )
    training.run(Silent())
    features, labels, _ = training.embed()
    assert record.features["labels"].tolist() == labels.tolist()
    wide = np.hstack([features.numpy(), np.random.default_rng(0).random((len(features), 60))])
    for given in (features.numpy(), wide):
        kept = embedding.compact(given)
        files.write(tmp_path / "x", lambda file, kept=kept: save_file({"x": kept}, file))
        read = load_file(tmp_path / "x")["x"].astype(float)
        assert np.allclose(pdist(read), pdist(given), atol=0.05 * pdist(given).max())
    most = np.finfo(np.float16).max
    beyond = embedding.compact(np.array([[1e6, -1e6], [1.0, 2.0]]))
    assert beyond.tolist() == [[most, -most], [1.0, 2.0]]


def test_the_id_follows_everything_that_changes_numbers():
    base = spec().config()
    hashes = toys.federation().hashes
    assert replace(spec(), engine="auto").config() == base and "code" not in base["method"]
    ids = {
        run_id(base, hashes),
        run_id(spec(seed=1).config(), hashes),
        run_id(spec("FedBN").config(), hashes),
        run_id(spec(rounds=4).config(), hashes),
        run_id(base, {**hashes, "allocation": "other"}),
        run_id(RunSpec(methods.create("FedProx", mu=1.0), toys.protocol(), 0).config(), hashes),
        run_id(RunSpec(methods.create("FedProx"), toys.protocol(), 0).config(), hashes),
    }
    assert len(ids) == 7
    assert run_id(base, dict(reversed(hashes.items()))) == run_id(base, hashes)


def test_auto_takes_any_engines_record_and_a_named_engine_only_its_own(tmp_path):
    fused = obtain(tmp_path, replace(spec(), engine="fused"))
    assert obtain(tmp_path, replace(spec(), engine="auto")).run_id == fused.run_id
    assert obtain(tmp_path).run_id != fused.run_id
    assert obtain(tmp_path, replace(spec(), engine="auto")).config["engine"] == "reference"


def test_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch):
    def full(self, file, **kwargs):
        Path(file).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(FedReproError, match="No space left on device") as caught:
        obtain(tmp_path)
    assert "\n" not in str(caught.value)
    folder = next(tmp_path.iterdir())
    assert not (folder / "curve.parquet").exists() and not list(folder.glob(".*.part"))
    assert (folder / "checkpoint.safetensors").exists() or not (folder / "done").exists()


CHILD = """
import sys
from pathlib import Path
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Protocol
from fedrepro.records import store as s
from tests import toys
from tests.records.test_store import spec
s.federation_of = lambda *_: toys.federation()
s.FileCheckpoint.due = lambda self: True
class Telling(Silent):
    def round(self, number, text):
        print(number, flush=True)
s.Store(sys.argv[1]).obtain(spec(rounds=400), device="cpu", progress=Telling())
"""


def test_kill_nine_in_a_round_then_resume_is_bit_identical(tmp_path, monkeypatch):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "cut")],
        stdout=subprocess.PIPE,
        cwd=REPO,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    for line in child.stdout:
        if int(line) >= 5:
            break
    time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    folder = next((tmp_path / "cut").iterdir())
    assert not (folder / "done").exists()
    saved = store_module.FileCheckpoint(folder).load()
    assert saved is not None and 0 < saved[1]["round"] < 400
    done = int(saved[1]["round"])
    # Compare with an uninterrupted run up to a few rounds past the kill.
    short = toys.protocol(rounds=done + 3)
    whole = store_module.Training(methods.create("FedAvg"), short, toys.federation(), 0)
    cut = store_module.Training(methods.create("FedAvg"), short, toys.federation(), 0)
    a = whole.run(Silent())
    b = cut.run(Silent(), store_module.FileCheckpoint(folder))
    pd.testing.assert_frame_equal(numbers(a), numbers(b), check_exact=True)
    assert json.loads((folder / "config.json").read_text())["seed"] == 0
