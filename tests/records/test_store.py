"""The store: runs are found, resumed or trained, never half written; all damage is seen."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.spatial.distance import pdist

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.files import CHECKOUT
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import DataSpec, Protocol
from fedrepro.data.federation import build_federation
from fedrepro.federated import metrics
from fedrepro.records import Record, RunSpec, store as store_module
from fedrepro.records.packed import Pack, check
from fedrepro.records.record import compact, run_id, tsne
from fedrepro.records.store import FileCheckpoint
from tests import toys
from tests.data.made import one_line
from tests.records.conftest import obtain, spec
from tests.toys import damages, numbers

pytestmark = pytest.mark.usefixtures("toy_data")


def test_a_record_holds_what_the_design_promises(tmp_path, monkeypatch):
    federation = replace(toys.federation(), subsets=("a",))
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: federation)
    record = obtain(tmp_path)
    stamp = (record.folder / "done").stat().st_mtime_ns
    assert obtain(tmp_path).folder == record.folder
    assert (record.folder / "done").stat().st_mtime_ns == stamp
    assert record.config["method"]["name"] == "FedAvg" and record.protocol == toys.protocol()
    assert record.environment["threads"] >= 1 and "commit" in record.environment
    assert record.data["hashes"] and record.data["counts"] and record.data["subsets"] == ["a"]
    assert record.features["features"].shape[0] == len(record.features["labels"]) == 36


def test_kept_features_are_the_networks_own(tmp_path):
    """PCA keeps distances: what is read back must lie as far apart as what the network gave."""
    record, training = obtain(tmp_path), toys.start()
    training.run(Silent())
    features, labels, _ = training.embed()
    assert record.features["labels"].tolist() == labels.tolist()
    wide = np.hstack([features.numpy(), np.random.default_rng(0).random((len(features), 60))])
    save_file({"x": compact(wide)}, tmp_path / "x")  # it writes bytes in memory order
    kept = (record.features["features"], features.numpy()), (load_file(tmp_path / "x")["x"], wide)
    for read, given in kept:
        near = pdist(given)
        assert np.allclose(pdist(read.astype(float)), near, atol=0.05 * near.max())


def test_the_id_follows_everything_that_changes_numbers():
    base, hashes = spec().config(), toys.federation().hashes
    assert spec(engine="auto").config() == base and "code" not in base["method"]
    stronger = RunSpec(methods.create("FedProx", mu=1.0), toys.protocol(), 0)
    others = spec(seed=1), spec("FedBN"), spec(rounds=4), spec("FedProx"), stronger
    ids = {run_id(other.config(), hashes) for other in others}
    ids |= {run_id(base, hashes), run_id(base, {**hashes, "allocation": "other"})}
    assert len(ids) == 7
    assert run_id(base, dict(reversed(hashes.items()))) == run_id(base, hashes)


def test_auto_takes_any_engines_record_and_a_named_engine_only_its_own(tmp_path):
    fused = obtain(tmp_path, spec(engine="fused"))
    assert obtain(tmp_path, spec(engine="auto")).run_id == fused.run_id
    assert obtain(tmp_path).run_id != fused.run_id
    assert obtain(tmp_path, spec(engine="auto")).config["engine"] == "reference"


@pytest.mark.parametrize(("took", "every"), [(0.01, 30.0), (10.0, 200.0), (1e5, 1800.0)])
def test_a_slow_save_delays_the_next_by_half_an_hour_at_most(tmp_path, monkeypatch, took, every):
    clock = Mock(side_effect=[0.0, 0.0, took, took + every - 1, took + every])
    monkeypatch.setattr(store_module, "time", Mock(monotonic=clock))
    checkpoint = FileCheckpoint(tmp_path)
    checkpoint.save({}, {})
    assert [checkpoint.due(), checkpoint.due()] == [False, True]


def test_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch):
    def full(self, file, **kwargs):
        Path(file).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with one_line("No space left on device"):
        obtain(tmp_path)
    folder = next(tmp_path.iterdir())
    assert not (folder / "curve.parquet").exists() and not list(folder.glob(".*.part"))
    assert (folder / "checkpoint.safetensors").exists() or not (folder / "done").exists()


CHILD = """
import sys
from fedrepro.base.progress import Silent
from fedrepro.records import store
from tests import toys
from tests.records.conftest import spec
store.federation_of = lambda *_: toys.federation()
store.FileCheckpoint.due = lambda self: True
class Telling(Silent):
    def round(self, number, accuracy):
        print(number, flush=True)
store.Store(sys.argv[1]).obtain(spec(rounds=400), device="cpu", progress=Telling())
"""


def test_kill_nine_in_a_round_then_resume_is_bit_identical(tmp_path):
    words = [sys.executable, "-c", CHILD, str(tmp_path)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=CHECKOUT, text=True)
    next(line for line in child.stdout if int(line) >= 5)
    time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    folder = next(tmp_path.iterdir())
    assert not (folder / "done").exists()
    checkpoint = store_module.FileCheckpoint(folder)
    done = int(checkpoint.load()[1]["round"])
    assert 0 < done < 400
    whole, cut = toys.start(rounds=done + 3), toys.start(rounds=done + 3)
    a, b = whole.run(Silent()), cut.run(Silent(), checkpoint)
    pd.testing.assert_frame_equal(numbers(a), numbers(b), check_exact=True)


def points(m: int, d: int) -> pd.DataFrame:
    domain = np.arange(m) % 2
    values = np.random.default_rng(0).normal(size=(m, d)) + 20 * domain[:, None]
    features = {"features": values.astype(np.float16), "labels": np.arange(m) % 3, "domain": domain}
    return tsne(features, ("left", "right"), ("x", "y", "z"), seed=3)


def test_tsne_names_its_points_and_keeps_far_groups_apart():
    frame = points(60, 5)
    assert list(frame.domain[:2]) == ["left", "right"] and list(frame.cls[:4]) == list("xyzx")
    pd.testing.assert_frame_equal(frame, points(60, 5))
    left, right = (frame.loc[frame.domain == side, ["x", "y"]] for side in ("left", "right"))
    middle = (left.mean() + right.mean()) / 2
    sides = [(part - middle) @ (right.mean() - left.mean()) for part in (left, right)]
    assert (sides[0] < 0).all() and (sides[1] > 0).all()
    assert len(points(40, 1)) == 40 and len(points(5, 3)) == 5
    with one_line("at least 5"):
        points(4, 2)


@pytest.mark.parametrize(
    ("name", "engine"), [("FedAvg", "reference"), ("ADCOL", "reference"), ("FedAvg", "fused")]
)
def test_numbers_are_the_same_on_one_thread_and_two(name, engine, tmp_path, monkeypatch, request):
    """Of a network large enough that two threads share a product of its, and sum it otherwise."""
    federation = toys.federation((70, 40, 66))
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: federation)
    request.addfinalizer(lambda: torch.set_num_threads(1))
    large = {"model": "digit-cnn", "batch_size": 32, "local_epochs": 1, "rounds": 2}
    records = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        records.append(obtain(tmp_path / str(threads), spec(name, engine=engine, **large)))
        assert torch.get_num_threads() == threads
    one, two = records
    pd.testing.assert_frame_equal(numbers(one.curve), numbers(two.curve), check_exact=True)
    assert all((value == two.features[name]).all() for name, value in one.features.items())
    assert one.environment["threads"] == two.environment["threads"] == 1
    assert (one.environment["at_once"], two.environment["at_once"]) == (1, 2)


def from_predictions(training, rule_round):
    """Accuracy by domain in percent at a round, from the predictions alone."""
    shares = {}
    for name, predicted in training.predicted.items():
        number, subject, _, domain = name.split("/")
        if int(number) == rule_round and subject == training.evaluated[0]:
            labels = training.federation.tests[domain].labels
            hits = (predicted == labels[: len(predicted)]).double().mean()
            shares.setdefault(domain, []).append(100 * float(hits))
    return {domain: np.mean(found) for domain, found in shares.items()}


@pytest.mark.parametrize("name", ["FedAvg", "FedBN", "Ditto", "Per-FedAvg", "FedPall"])
def test_every_score_can_be_computed_from_the_predictions(name):
    training = toys.start(name, rounds=9, local_epochs=1)
    curve = training.run(Silent())
    table = metrics.accuracies(curve).drop(columns="avg")
    kept = sorted({int(name.partition("/")[0]) for name in training.predicted})
    assert kept[-5:] == [5, 6, 7, 8, 9] and len(kept) <= 7
    for number in kept:
        assert from_predictions(training, number) == pytest.approx(table.loc[number].to_dict())
    for rule in ("best-test", "validation"):
        scores = {d: v for d, v in metrics.scores(curve, rule).items() if d != "avg"}
        assert any(from_predictions(training, n) == pytest.approx(scores) for n in kept)


def test_a_record_keeps_them_small_with_the_images_they_are_of(tmp_path, monkeypatch):
    data = DataSpec(dataset="minidigits", size=28, validation=20, test_limit=30)
    federation = build_federation(data)
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: federation)
    settings = {"rounds": 2, "local_epochs": 1, "batch_size": 256}
    record = obtain(tmp_path, spec(data=data.model_dump(), **settings))
    kept, scores = record.predictions, metrics.scores(record.curve, "last")
    for domain in federation.domains:
        predicted = kept[f"predicted/2/global/server/{domain}"]
        assert predicted.dtype == np.uint8 and len(predicted) == 30
        share = 100 * float((predicted == kept[f"labels/{domain}"]).mean())
        assert share == pytest.approx(scores[domain])
        ((source, indices),) = federation.test_images[domain]
        assert kept[f"images/{domain}/{source}"].tolist() == indices.tolist()


def test_a_large_test_set_is_sampled_before_the_last_five_rounds():
    training, whole = (toys.start(rounds=7, local_epochs=1, tested_at=n) for n in (5, None))
    curves = [run.run(Silent()) for run in (training, whole)]
    tests = [c[(c.measure == "accuracy") & (c.split == "test")] for c in curves]
    sampled, full = (t.set_index(["round", "domain"]).value for t in tests)
    assert sampled.loc[3:].equals(full.loc[3:])  # the last five: all twelve images
    part = training.few_tests.tests["domain0"]
    assert len(part) == 5 and set(sampled.loc[:2]) <= {0.0, 20.0, 40.0, 60.0, 80.0, 100.0}
    again = toys.start(rounds=7, tested_at=5).few_tests.tests["domain0"]
    assert torch.equal(part.images, again.images)
    assert "5 of 12 tested" in training.few_tests.deviations["domain0"][0]


RECORDED = Pack(CHECKOUT / "book" / "records")


def test_the_packed_records_are_whole():
    assert len(RECORDED.runs) > 1000 and check(RECORDED.root) == []


@pytest.mark.parametrize("file", sorted({line["file"] for line in RECORDED.runs.values()}))
def test_recorded_runs_have_their_ids(file):
    moved = []
    for run, line in RECORDED.runs.items():
        if line["file"] == file:
            config = RECORDED.facts(run)["config"]
            method = methods.create(config["method"]["name"], **config["method"]["fields"])
            protocol = Protocol.model_validate(config["protocol"])
            spec = RunSpec(method, protocol, config["seed"], config["engine"])
            if run_id(spec.config(), RECORDED.facts(run)["data"]["hashes"]) != run:
                moved.append(run)
    assert moved == []


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
    for how in damages(record.folder / "done"):
        with pytest.raises(FedReproError, match="delete its folder and run again"):
            assert [Record(record.folder).read(file) for file in files]
            pytest.fail(how)


WHOLE = torch.arange(6.0).reshape(2, 3)
TENSORS = {"a": WHOLE.T, "alias": WHOLE[1:], "bfloat": WHOLE.bfloat16(), "c": torch.tensor(7)}
TENSORS |= {"b": torch.tensor([True, False]), "empty": torch.zeros(0, 4, dtype=torch.float64)}
FACTS = {"round": 2, "rows": [[1, "a", 0.5]]}


def test_a_checkpoint_is_what_was_saved_or_refused(tmp_path, monkeypatch):
    checkpoint, other = FileCheckpoint(tmp_path / "seed0"), FileCheckpoint(tmp_path / "seed1")
    checkpoint.save(TENSORS, FACTS), other.save(TENSORS, FACTS)
    must_fail(checkpoint.path, checkpoint.load)
    stored, facts = checkpoint.load()
    assert list(stored) == list(TENSORS) and facts == FACTS
    for name, value in TENSORS.items():
        assert torch.equal(stored[name], value) and stored[name].dtype == value.dtype
    monkeypatch.setattr(store_module, "serialize_file", Mock(side_effect=OSError("no space left")))
    with pytest.warns(UserWarning, match=r"\(no space left\); make room, or"):
        checkpoint.save({"a": torch.zeros(99)}, {"round": 3})
    assert checkpoint.load()[1] == FACTS
    checkpoint.path.write_bytes(other.path.read_bytes())
    with one_line(r"seed0.* is of another run, seed1; delete it"):
        checkpoint.load()
