"""Packed records: what was in the folders, in few files that only grow, each damage named."""

import gzip
import json
import runpy
import shutil
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pandas as pd
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from fedrepro import cli, commands
from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.records import Probe, Record, Store
from fedrepro.records.packed import INDEX, SHARED, Pack, PackedRecord, check, light, pack, unpack
from fedrepro.records.record import CHECKPOINT
from fedrepro.report.results import STUDIES
from tests import toys
from tests.records.conftest import obtain, spec

pytestmark = pytest.mark.usefixtures("toy_data")
PROBE = Probe("size", lambda training: {"clients": len(training.clients)})


def run(root: Path, seed: int, probe: Probe | None = None) -> Record:
    return obtain(root, spec("SOLO", seed, "auto", rounds=2, local_epochs=1), probe=probe)


def facts(record: Record) -> tuple[object, ...]:
    predictions = {name: values.tolist() for name, values in record.predictions.items()}
    curve = light(record).to_dict()
    return record.config, record.environment, record.data, predictions, curve


def test_a_packed_run_is_found_with_all_but_its_features(tmp_path):
    whole, drawn = run(tmp_path, 0, PROBE), run(tmp_path, 1)
    before, whole_curve = facts(whole), whole.curve
    assert pack(tmp_path, [drawn.run_id]) == 2
    assert not list(tmp_path.glob("*/done")) and not whole.folder.exists()
    found = run(tmp_path, 0, PROBE)
    assert found.run_id == whole.run_id and facts(found) == before
    gap = (found.curve.value - whole_curve.value).abs()
    rounded = whole_curve.measure.isin(["term", "loss", "seconds"])
    share = whole_curve.measure.map({"seconds": 5e-2}).fillna(5e-3)  # two digits, else three
    assert (gap <= share * whole_curve.value.abs())[rounded].all() and gap[rounded].any()
    assert not gap[~rounded].any()
    for one in ({"early_stop": {}}, {"early_stop": None, "data": {"encoder": "a"}}):
        whole.config["protocol"].update(one)  # then a round is chosen by its validation loss
        kept = whole_curve.split == "validation"
        gap = light(whole).value[kept] - whole_curve.value[kept]
        assert len(gap) and not gap.any()
    log = whole_curve.assign(measure=whole_curve.measure.replace("term", "server"))
    rounds = [one.assign(round=n) for n in range(1, 121) for one in (whole_curve, log)]
    vars(whole)["curve"] = pd.concat(rounds)
    thinned = light(whole).groupby(["measure", "split"])["round"].unique()  # of 120 rounds
    for loss in (("term", "train"), ("loss", "test"), ("server", "train")):
        assert {1, 120} < {*thinned[loss]} and len(thinned[loss]) == 51
    assert len(thinned["accuracy", "test"]) == len(thinned["loss", "validation"]) == 120
    assert found.measured("size") == {"clients": 3} and found.probes == ["size"]
    assert {r.run_id for r in toys.records(tmp_path)} == {whole.run_id, drawn.run_id}
    points = run(tmp_path, 1).points
    assert len(points) == 36 and set(points.domain) == {"domain0", "domain1", "domain2"}
    assert found.points.empty
    with pytest.raises(FedReproError, match="were not packed"):
        _ = found.features


def test_new_runs_add_files_and_lines(tmp_path):
    run(tmp_path, 0)
    pack(tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    run(tmp_path, 1)
    assert pack(tmp_path) == 1 and pack(tmp_path) == 0
    for name, content in first.items():
        assert (tmp_path / name).read_bytes().startswith(content)
    assert len(Pack(tmp_path).runs) == 2 and check(tmp_path) == []
    assert (unpack(tmp_path, tmp_path), pack(tmp_path), [*tmp_path.glob("*/done")]) == (2, 0, [])
    assert {line["file"] for line in Pack(tmp_path).runs.values()} == {"toy-smoke", "toy-smoke-2"}


def test_unpacked_runs_are_as_before_packing(tmp_path):
    packed, out = tmp_path / "runs", tmp_path / "out"
    before = facts(run(packed, 0, PROBE))
    pack(packed)
    assert unpack(packed, out) == 1
    found = run(out, 0, PROBE)
    assert type(found) is Record and facts(found) == before
    assert type(Store(packed).find(found.run_id)) is PackedRecord
    assert [unpack(packed, packed) for _ in "ab"] == [1, 0]  # a folder comes before what is packed
    assert type(Store(packed).find(found.run_id)) is Record
    (found.folder / "predictions.safetensors").unlink()  # as in old records
    files.list_sums(found.folder)
    assert Record(found.folder).predictions == {}
    with pytest.raises(FedReproError, match="has no features"):
        _ = Record(found.folder).features


def test_a_packed_run_that_was_trained_again_for_a_measurement_is_packed_again(tmp_path):
    name = run(tmp_path, 0).run_id
    with FileLock(tmp_path / ".lock"), pytest.raises(FedReproError, match="another call packs"):
        pack(tmp_path)
    pack(tmp_path)
    unpack(tmp_path, tmp_path)
    stopped = Probe("size", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 0, stopped)
    folder = tmp_path / name
    assert Record(folder).curve.size and (folder / CHECKPOINT).exists()  # nothing is lost
    assert pack(tmp_path) == 0 and (folder / CHECKPOINT).exists()
    (folder / "done").unlink()  # as if it had been stopped in its first training
    facts = files.read_json(folder / "environment.json") | {"device": "another machine"}
    files.write_json(folder / "environment.json", facts)
    assert run(tmp_path, 0, PROBE).environment["before"] == [facts]
    files.write_json(folder / "diverged.json", {})  # as a measurement that diverges leaves it
    assert pack(tmp_path) == 1 and pack(tmp_path) == 0 and check(tmp_path) == []
    found = Store(tmp_path).find(name, PROBE)
    assert type(found) is PackedRecord and found.measured("size") == {"clients": 3}


def test_an_index_may_hold_any_letter(tmp_path):
    files.write_lines(tmp_path / INDEX, [{"domain": "a\u2028b\x85"}])
    assert files.read_lines(tmp_path / INDEX) == [{"domain": "a\u2028b\x85"}]


def test_every_damage_is_named(tmp_path):
    name = run(tmp_path, 0).run_id
    pack(tmp_path)
    index, curve, shared = (tmp_path / file for file in (INDEX, "toy-smoke.parquet", SHARED))
    whole, content = index.read_bytes(), curve.read_bytes()
    other = json.loads(gzip.decompress(whole))
    other["config"]["seed"] = 7
    index.write_bytes(gzip.compress(json.dumps(other).encode()))
    assert check(tmp_path) == [f"{name} is not the id of its config and data"]
    index.rename(index.with_suffix("")).write_bytes(gzip.decompress(whole))  # as it once was
    curve.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(FedReproError, match="its checksum differs"):
        _ = Store(tmp_path).find(name).curve
    curve.unlink()
    assert check(tmp_path) == ["toy-smoke.parquet is missing", f"{name} has no curve"]
    with pytest.raises(FedReproError, match="has no curve of run"):
        _ = Store(tmp_path).find(name).curve
    curve.write_bytes(content)
    text = gzip.decompress(shared.read_bytes()).replace(b'"rounds": 2', b'"rounds": 3')
    shared.write_bytes(gzip.compress(text))
    assert any("is not what was written" in line for line in check(tmp_path))
    shared.write_text("{")
    with pytest.raises(FedReproError, match="restore the file"):
        check(tmp_path)


def test_the_command_checks_the_runs_or_in_a_fresh_clone_the_books_records(tmp_path, monkeypatch):
    runs, book = tmp_path / "runs", tmp_path / "book"
    run(book, 0)
    pack(book)
    monkeypatch.setattr(commands, "RUNS", runs)
    monkeypatch.setattr(commands, "RECORDS", book)
    told = CliRunner().invoke(cli.app, ["records", "check"]).stdout
    assert told == f"1 packed runs in {book} are complete\n"
    runs.mkdir()
    told = CliRunner().invoke(cli.app, ["records", "check"]).stderr
    assert told.startswith(f"error: no packed runs in {runs}")


def test_publishing_loses_only_what_no_notebook_uses_any_more_and_joins_no_damage(tmp_path):
    tool = Path(__file__).resolve().parents[2] / "tools" / "publish_records.py"
    publish, book, runs = runpy.run_path(str(tool))["publish"], tmp_path / "book", tmp_path / "runs"

    def use(root: Path, used: str) -> None:
        study = dict(paper="adcol", dataset="minidigits", scale="smoke", seed=0, experiments=[])
        line = dict(name="one", study=study, runs=[[used, "", ""]], trials=[], counted={})
        files.write_lines(root / STUDIES, [line])

    used, waiting = (run(book, seed).run_id for seed in (0, 1))
    pack(book)
    use(book, used)
    cell = nbformat.v4.new_markdown_cell("# One\n\ntwo", metadata={"papermill": {"duration": 1}})
    kept = book / "notebooks" / "one.ipynb"
    kept.parent.mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), kept)
    shutil.copytree(book, runs)
    packed = run(runs, 3).run_id  # in a campaign, and no notebook has it yet
    pack(runs)
    use(runs, new := run(runs, 2).run_id)
    (path,) = runs.glob("*smoke.parquet")
    whole = path.read_bytes()
    pd.read_parquet(path).iloc[::-1].to_parquet(path)  # it can be read for all that
    with pytest.raises(FedReproError, match=r"smoke.parquet is not what was written"):
        publish(runs, book)
    path.write_bytes(whole)
    assert publish(runs, book).startswith("3 runs published, 1 left out that no notebook uses any")
    assert set(Pack(book).runs) == {waiting, new, packed} and check(book) == []
    (cell,) = nbformat.read(kept, as_version=4).cells
    assert cell.source == "# One\n\ntwo" and not cell.metadata, "only times are left out"
