"""Packed records: what was in the folders, in few files that only grow, each damage named."""

import json
from pathlib import Path

import pandas as pd
import pytest

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.records import Probe, Record, RunSpec, Store
from fedrepro.records import store as store_module
from fedrepro.records.packed import Pack, PackedRecord, check, pack, unpack
from tests import toys

PROBE = Probe("size", lambda training: {"clients": len(training.clients)})


@pytest.fixture(autouse=True)
def toy_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: toys.federation())


def obtain(root: Path, seed: int, name: str = "SOLO", probe: Probe | None = None) -> Record:
    protocol = toys.protocol(rounds=2, local_epochs=1)
    spec = RunSpec(methods.create(name), protocol, seed)
    return Store(root).obtain(spec, device="cpu", progress=Silent(), probe=probe)


def facts(record: Record) -> tuple[object, ...]:
    predictions = {name: values.tolist() for name, values in record.predictions.items()}
    return record.config, record.environment, record.data, predictions


def test_a_packed_run_is_found_with_all_but_its_features(tmp_path: Path) -> None:
    whole = obtain(tmp_path, 0, probe=PROBE)
    drawn = obtain(tmp_path, 1)
    before, curve = facts(whole), whole.curve
    assert pack(tmp_path, [drawn.run_id]) == 2
    assert not list(tmp_path.glob("*/done")) and not whole.folder.exists()
    found = obtain(tmp_path, 0, probe=PROBE)
    assert found.run_id == whole.run_id and facts(found) == before
    pd.testing.assert_frame_equal(found.curve, curve)
    assert found.measured("size") == {"clients": 3} and found.probes == ["size"]
    assert sorted(r.run_id for r in Store(tmp_path).records()) == sorted(
        [whole.run_id, drawn.run_id]
    )
    points = obtain(tmp_path, 1).points
    assert len(points) == 36 and set(points.domain) == {"domain0", "domain1", "domain2"}
    assert found.points.empty
    with pytest.raises(FedReproError, match="were not packed"):
        _ = found.features


def test_new_runs_add_files_and_lines(tmp_path: Path) -> None:
    obtain(tmp_path, 0)
    pack(tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    obtain(tmp_path, 1)
    assert pack(tmp_path) == 1 and pack(tmp_path) == 0
    for name, content in first.items():
        assert (tmp_path / name).read_bytes().startswith(content)
    assert len(Pack(tmp_path).runs) == 2 and check(tmp_path) == []
    assert {line["file"] for line in Pack(tmp_path).runs.values()} == {"toy-smoke", "toy-smoke-2"}


def test_unpacked_runs_are_as_before_packing(tmp_path: Path) -> None:
    whole = obtain(tmp_path / "runs", 0, probe=PROBE)
    before, curve = facts(whole), whole.curve
    pack(tmp_path / "runs")
    assert unpack(tmp_path / "runs", tmp_path / "out") == 1
    found = obtain(tmp_path / "out", 0, probe=PROBE)
    assert type(found) is Record and facts(found) == before
    pd.testing.assert_frame_equal(found.curve, curve)
    assert type(Store(tmp_path / "runs").find(found.run_id)) is PackedRecord
    unpack(tmp_path / "runs", tmp_path / "runs")  # a folder comes before what is packed
    assert type(Store(tmp_path / "runs").find(found.run_id)) is Record


def test_every_damage_is_named(tmp_path: Path) -> None:
    run = obtain(tmp_path, 0).run_id
    pack(tmp_path)
    index = (tmp_path / "runs.jsonl").read_text()
    other = json.loads(index)
    other["config"]["seed"] = 7
    (tmp_path / "runs.jsonl").write_text(json.dumps(other) + "\n")
    assert check(tmp_path) == [f"{run} is not the id of its config and data"]
    (tmp_path / "runs.jsonl").write_text(index)
    curve = tmp_path / "toy-smoke.parquet"
    content = curve.read_bytes()
    curve.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(FedReproError, match="cannot be read"):
        _ = Store(tmp_path).find(run).curve  # type: ignore[union-attr]
    curve.unlink()
    assert check(tmp_path) == ["toy-smoke.parquet is missing", f"{run} has no curve"]
    shared = tmp_path / "shared.jsonl"
    curve.write_bytes(content)
    shared.write_text(shared.read_text().replace('"rounds": 2', '"rounds": 3'))
    assert any("is not what was written" in line for line in check(tmp_path))
    shared.write_text("{")
    with pytest.raises(FedReproError, match="restore the file"):
        check(tmp_path)
