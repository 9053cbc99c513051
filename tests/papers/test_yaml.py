"""The printed numbers and the YAML files hold together."""

from pathlib import Path

import pytest
import yaml

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.papers import FOLDER, read_paper
from fedrepro.papers.schema import parse_cell
from tests.data.made import one_line

NAMES = papers.names()


def test_printed_digits_survive():
    trailing = papers.load("adcol").table("table-1").cell("FedProx", "SVHN")
    assert trailing == ("59.8±0.6", 59.8, 0.6)
    alone = papers.load("fedapc").table("table-1-office10").cell("FedAPC", "DSLR")
    assert alone == ("60.00", 60.0, None) and parse_cell("-") == ("-", None, None)


@pytest.mark.parametrize("name", [*NAMES, papers.COMMON])
def test_the_parts_of_a_paper_fit_together(name):
    paper = papers.load(name)
    ids = [experiment.id for experiment in paper.experiments]
    assert len(set(ids)) == len(ids)
    if (file := FOLDER / f"{name}.tables.yaml").exists():
        text = file.read_text("utf-8")
        rows = {id(table["rows"]): table["rows"] for table in yaml.safe_load(text)["tables"]}
        assert sum(map(len, rows.values())) == text.count('\n      "')  # no row stands twice
    assert {table.id for table in paper.tables} == {e.table for e in paper.experiments} - {None}
    for experiment in paper.experiments:
        assert experiment.arms_of is None or experiment.arms_of in ids
        assert experiment.reason or experiment.state == "runs", experiment.id
        assert not experiment.can_run or set(experiment.datasets) <= set(paper.protocols)
        labels = {spec.label for spec in paper.arm_specs(experiment.id)}
        target = experiment.target
        if target is not None:
            assert (target.accuracy is None) == bool(target.lowest_of)
            assert set(target.lowest_of) <= labels
        for one in experiment.differences:
            assert one.of in labels and (one.minus is None or one.minus in labels)
            assert one.dataset in experiment.datasets
            assert one.row in paper.table(experiment.table or experiment.id).rows
    for claim in paper.claims:
        tested = [name for test in claim.tests for name in (test.experiment, test.against) if name]
        assert (claim.experiments or tested) and {*claim.experiments, *tested} <= set(ids)
    assert {spec.protocol for spec in paper.datasets.values()} <= set(paper.protocols)
    assert set(paper.method_settings_on) <= set(paper.protocols)

    for table in paper.tables:
        assert len(set(table.columns)) == len(table.columns), table.id
        assert set(map(len, table.rows.values())) == {len(table.columns)}, table.id


def broken(folder: Path, old: str, new: str) -> Path:
    """A copy of ADCOL's files with one edit in one of them."""
    found = 0
    for name in ("adcol.yaml", "adcol.tables.yaml"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        found += old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    assert found
    return folder / "adcol.yaml"


BATCH = "    batch_size: {value: 64,"
MISTAKES = [
    ("short: ADCOL", "short: [ADCOL", "adcol.yaml is not readable YAML"),
    ("\nexperiments:\n", "\nexperiments:\n  - table-1\n", "adcol.yaml, experiments"),
    ("    rounds: {value: 100,", "    rounds: {values: 100,", "adcol.yaml, .*rounds"),
    (f'{BATCH} source: "paper, Sec. 5.1", status', f"{BATCH} status", r"batch_size\.source"),
    ("status: stated", "status: rumoured", "'stated', 'code', 'inferred' or 'decided'"),
    ('"87.9±0.4 ', '"about ', "adcol.yaml, .*could not convert"),
    ("data.flip: {value: false", "data.flips: {value: false", r"data\.flips"),
    ("value: 743,", "value: many,", "per_client"),
]


@pytest.mark.parametrize(("old", "new", "says"), MISTAKES)
def test_a_mistake_in_a_file_is_one_line(tmp_path, old, new, says):
    with one_line(says):
        read_paper(broken(tmp_path, old, new)).protocol("digits5")


def test_missing_files_and_names_are_one_line(tmp_path):
    with pytest.raises(FedReproError, match="not readable YAML"):
        read_paper(tmp_path / "adcol.yaml")
    for text in ("", "- a list"):
        (tmp_path / "adcol.yaml").write_text(text)
        with pytest.raises(FedReproError, match="not readable YAML"):
            read_paper(tmp_path / "adcol.yaml")
