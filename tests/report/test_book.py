"""What the book makes from code and records: pages of methods, the page of runs, docstrings."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fedrepro import methods
from fedrepro.base import files
from fedrepro.federated import metrics
from fedrepro.methods.base import Method
from fedrepro.records.packed import INDEX, SHARED, Pack
from fedrepro.report import results
from fedrepro.report.book import MODEL, page, write_scripts
from fedrepro.report.results import FOLDER, SHORT, STUDIES

STUDY = "fedpall-table-1-office10-office10-reduced-seed0"


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The book's records, cut to one study: its runs, one that it does not use, and one that it
    now holds in the place of MOON's, with settings that MOON's row has not got."""
    root = tmp_path_factory.mktemp("few")
    (study,) = [one for one in files.read_lines(FOLDER / STUDIES) if one["name"] == STUDY]
    lines = files.read_lines(FOLDER / INDEX)
    used = {run for run, *_ in study["runs"]}
    replaced, unused, *_ = (line["run"] for line in lines if line["run"] not in used)
    study["runs"].append([replaced, "table-1-office10", "MOON"])
    kept = {run for run, *_ in study["runs"]} | {unused}
    files.write_lines(root / STUDIES, [study])
    files.write_lines(root / INDEX, [line for line in lines if line["run"] in kept])
    for file in (FOLDER / SHARED, *FOLDER.glob("*.parquet")):
        (root / file.name).symlink_to(file)
    return root


@pytest.fixture(scope="module")
def shown(few: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All scripts together, as the page puts them together."""
    folder = tmp_path_factory.mktemp("scripts")
    write_scripts(folder, few)
    whole: dict[str, Any] = {}
    for file in folder.glob("*.js"):
        text = file.read_text("utf-8").strip()
        assert text.startswith("recorded(") and text.endswith(");")
        for key, value in json.loads(text[len("recorded(") : -2]).items():
            assert key != "runs" or {run[0] for run in value} == {file.stem}
            whole.setdefault(key, {}).update(value)
    return whole


def test_every_packed_run_is_there_with_what_its_record_says(few, shown):
    packed, every = Pack(few), Pack(FOLDER).runs
    assert set(shown["runs"]) == set(packed.runs) and len(packed.runs) > 5
    assert set(shown["rules"]) == set(metrics.SCORE_RULES)
    assert len({run[:SHORT] for run in every}) == len(every), "addresses tell all apart"
    for run, found in shown["runs"].items():
        config, curve = packed.facts(run)["config"], packed.rows(run)
        assert found["method"] == config["method"] and found["seed"] == config["seed"]
        assert shown["protocols"][found["protocol"]] == config["protocol"]
        assert found["environment"] == packed.facts(run)["environment"]
        assert shown["data"][found["data"]]["hashes"] == packed.facts(run)["data"]["hashes"]
        last = metrics.scores(curve, "last")
        assert found["scores"]["last"] == pytest.approx(last, abs=0.00501)
        assert found["curve"][-1][1] == pytest.approx(last["avg"], abs=0.00501)
        assert len(found["curve"]) == len(metrics.accuracies(curve))
        sent = curve.value[curve.measure == "bytes"].sum()
        clients = len(packed.facts(run)["data"]["clients"])
        assert found["traffic"] == pytest.approx(sent / clients, abs=0.5)


def test_a_run_has_the_command_that_repeats_it_or_is_said_to_be_of_the_past(shown):
    uses = [each for run in shown["runs"].values() for each in run["uses"]]
    again = "fedrepro run fedpall table-1-office10 --dataset office10 --methods MOON --seed 0"
    for of_today in (True, False):
        assert ["FedPall, table-1-office10, MOON", f"{again} --scale reduced", of_today] in uses
    assert [run["uses"] for run in shown["runs"].values()].count([]) == 1


def test_each_number_leads_to_the_runs_of_its_seeds():
    found = results.recorded("fedapc").where(dataset="office10", scale="reduced")
    links = found.links("table-1-office10")
    runs = [r.record.run_id for *_, r in found.runs("table-1-office10") if r.label == "MOON"]
    moon = "-".join(run[:SHORT] for run in runs)
    assert len(runs) > 1
    assert links["office10", "reduced", "MOON", "avg"] == f"../../run.html#run-{moon}"
    assert {row["method"] for row in found.cells("table-1-office10")} == {k[2] for k in links}
    where = {"dataset": "office10", "scale": "reduced", "seed": 0}
    found = results.recorded("adcol").where(**where)  # a ratio: to all arms
    (to,) = found.links("prose-relative-gain").values()
    runs = {r.record.run_id[:SHORT] for *_, r in found.runs("prose-relative-gain")}
    assert set(to.partition("#run-")[2].split("-")) == runs and len(runs) > 1


def test_a_method_of_the_package_has_its_own_source_for_every_field():
    fields = {name: set(dataclasses.fields(methods.get(name))) for name in methods.names()}
    assert [name for name in fields if fields[name] & set(dataclasses.fields(Method))] == []


@pytest.mark.parametrize("name", ["FedAvg", "ADCOL"])
def test_a_page_holds_every_field_with_its_source_and_what_travels(name):
    text = page(name)
    for row in methods.get(name).describe():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{row['name']}`"))
        assert repr(row["default"]) in line and f"| {row['status']} | {row['source']} |" in line
        assert all(repr(value) in line for value in row["alternatives"])
    assert MODEL in text and "server to client" in text and "client to server" in text
    if name == "ADCOL":  # images x features x 4 bytes
        assert f"| {20 * 128 * 4:,} |" in text[text.index("| representations |") :]
    assert "Not counted on images" in page("MPFT")
