"""The printed numbers and the YAML files hold together."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.papers import Paper, Table, read_paper
from fedrepro.papers.registry import FOLDER
from fedrepro.papers.schema import parse_cell

NAMES = papers.list()
# Printed averages that are not the mean of the printed cells, rounded: (paper, table, method).
ROUNDED_EARLY = {  # the rounding of the cells can explain them
    ("adcol", "table-19", "Linear Function"),
    ("adcol", "table-20", "ADCOL"),
    ("i2pfl", "table-3-digits", "FedProto"),
    ("i2pfl", "table-8-office10", "FedAvg"),
}
MISPRINTS = {  # no rounding can
    ("i2pfl", "table-3-office10", "FedProc"),
    ("i2pfl", "table-4", "FedProc"),
}


def averages() -> list[tuple[str, Table, str]]:
    return [
        (name, table, row.method)
        for name in NAMES
        for table in papers.load(name).tables
        if "avg" in table.columns and table.unit == "percent"
        for row in table.rows
    ]


def test_the_five_papers() -> None:
    assert NAMES == ["adcol", "fedapc", "fedpall", "i2pfl", "mpft"]


def test_printed_averages_are_the_means_of_the_printed_cells() -> None:
    rounded_early, misprints, seen = set(), set(), 0
    for name, table, method in averages():
        cells = [table.cell(method, column) for column in table.columns if column != "avg"]
        printed = [Decimal(cell.printed.split("±")[0]) for cell in cells if cell is not None]
        average = table.cell(method, "avg")
        assert average is not None and len(printed) == len(table.columns) - 1
        shown = Decimal(average.printed.split("±")[0])
        half = Decimal(5).scaleb(int(shown.as_tuple().exponent) - 1)
        off = abs(sum(printed) / len(printed) - shown)
        seen += 1
        if off > 2 * half:
            misprints.add((name, table.id, method))
        elif off > half:
            rounded_early.add((name, table.id, method))
    assert seen == 180
    assert (misprints, rounded_early) == (MISPRINTS, ROUNDED_EARLY)


def test_printed_digits_survive() -> None:
    cell = papers.load("fedpall").table("table-1-office10").cell("ADCOL", "avg")
    assert cell is not None and cell.printed == "64.51±1.79"
    trailing = papers.load("adcol").table("table-1").cell("FedProx", "SVHN")
    assert trailing == ("59.8±0.6", 59.8, 0.6)
    assert papers.load("fedapc").table("table-1-office10").cell("FedAPC", "DSLR") == (
        "60.00",
        60.0,
        None,
    )


def test_cells() -> None:
    assert parse_cell("-") == ("-", None, None)
    with pytest.raises(ValueError):
        parse_cell("about 3")


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_listed_and_every_experiment_once(name: str) -> None:
    paper = papers.load(name)
    ids = [experiment.id for experiment in paper.experiments]
    assert len(set(ids)) == len(ids)
    assert {table.id for table in paper.tables} == {e.table for e in paper.experiments} - {None}
    assert all(claim.experiments for claim in paper.claims)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("adcol", ["1", "2a", "2b", "2c", *map(str, range(3, 9))]),
        ("fedpall", list(map(str, range(1, 7)))),
        ("i2pfl", list(map(str, range(1, 10)))),
        ("mpft", list(map(str, range(1, 10)))),
        ("fedapc", ["1", "2", "3"]),
    ],
)
def test_every_figure_is_listed(name: str, figures: list[str]) -> None:
    ids = {experiment.id for experiment in papers.load(name).experiments}
    assert {f"figure-{figure}" for figure in figures} <= ids


def test_adcol_tables_1_to_21_are_listed() -> None:
    ids = {experiment.id for experiment in papers.load("adcol").experiments}
    for number in range(1, 22):
        assert any(name == f"table-{number}" or name.startswith(f"table-{number}-") for name in ids)


def test_the_listing_is_what_the_command_line_prints() -> None:
    listed = papers.experiments("adcol")
    assert set(listed[0]) == {"paper", "id", "dataset", "caption", "state", "reason"}
    assert len(papers.experiments()) == sum(len(papers.experiments(name)) for name in NAMES)
    for row in papers.experiments():
        assert row["state"] in {"runs", "blocked"}  # nothing is left to be planned
        assert (row["reason"] == "") == (row["state"] == "runs")


def broken(folder: Path, old: str, new: str, suffix: str = "") -> Path:
    """A copy of ADCOL's files with one edit in ``adcol<suffix>.yaml``."""
    for name in ("adcol.yaml", "adcol.tables.yaml"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        if name == f"adcol{suffix}.yaml":
            assert text.count(old) >= 1
            text = text.replace(old, new, 1)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "adcol.yaml"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("short: ADCOL", "short: [ADCOL", "not readable YAML"),
        ("year: 2023", "year: soon", "year"),
        ("    rounds: {value: 100,", "    rounds: {values: 100,", "rounds"),
        (
            '    batch_size: {value: 64, source: "paper, Sec. 5.1", status',
            "    batch_size: {value: 64, status",
            "batch_size.source",
        ),
        (
            '    batch_size: {value: 64, source: "paper, Sec. 5.1", status: stated}',
            '    batch_size: {value: 64, source: "paper, Sec. 5.1"}',
            "batch_size.status",
        ),
        ("status: stated", "status: rumoured", "'stated', 'code', 'inferred' or 'decided'"),
        ("data.flip: {value: false", "data.flips: {value: false", "data.flips"),
        (
            '    optimizer.lr: {value: 0.01, source: "paper, Sec. 5.1", status: stated}\n',
            "",
            "optimizer.lr",
        ),
        ("value: 743,", "value: many,", "per_client"),
        ("- id: table-19\n", "- id: table-1\n", "twice"),
        ("arms_of: table-1,", "arms_of: table-99,", "table-99"),
        ("experiments: [table-13]", "experiments: [table-31]", "table-31"),
        (
            'reason: "a drawing of the method, no numbers to re-run"',
            'reason: ""',
            "without a reason",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(FedReproError) as caught:
        read_paper(broken(tmp_path, old, new))
    message = str(caught.value)
    assert says in message and "\n" not in message and "adcol.yaml" in message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("87.9±0.4 34.8±0.8", "87.9±0.4", "5 cells for 6 columns"),
        ('"87.9±0.4 ', '"about ', "could not convert"),
        ("  - id: table-14\n", "  - id: table-14b\n", "table-14b has no experiment"),
        ('{method: "FedBN"', '{method: "FedAvg"', "appears twice"),
    ],
)
def test_a_mistake_in_the_tables_is_one_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(FedReproError) as caught:
        read_paper(broken(tmp_path, old, new, suffix=".tables"))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_names_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(FedReproError, match="missing"):
        read_paper(tmp_path / "adcol.yaml")
    (tmp_path / "adcol.yaml").write_text("- 1\n", encoding="utf-8")
    with pytest.raises(FedReproError, match="not a mapping"):
        read_paper(tmp_path / "adcol.yaml")
    with pytest.raises(FedReproError, match="choose from adcol, fedapc"):
        papers.load("fedavg")


def test_an_unbroken_copy_reads(tmp_path: Path) -> None:
    copy = read_paper(broken(tmp_path, "short: ADCOL", "short: ADCOL"))
    assert isinstance(copy, Paper) and copy == papers.load("adcol")


def test_printed_traffic_is_rounds_times_the_model_both_ways() -> None:
    """One client's model of 37,231,050 four-byte values, down and up, in the paper's gigabytes."""
    adcol = papers.load("adcol")
    a_round = 2 * 4 * 37_231_050 / adcol.reporting["gigabyte_bytes"].value
    off = set()
    for number in (2, 6, 7):
        rounds, size = adcol.table(f"table-{number}-rounds"), adcol.table(f"table-{number}-size")
        for method in rounds.methods:
            for column in rounds.columns:
                count, volume = rounds.cell(method, column), size.cell(method, column)
                assert count is not None and volume is not None
                assert (count.value is None) == (volume.value is None)
                if method == "ADCOL" or count.value is None or volume.value is None:
                    continue
                if abs(count.value * a_round - volume.value) > 0.005 + 0.001 * volume.value:
                    off.add((number, method, column, volume.printed))
    assert off == {(7, "PartialFed", "Real", "2.46")}  # 15 rounds cost 4.26: digits swapped


def test_printed_traffic_of_sampling_is_rounds_times_the_ratio() -> None:
    table = papers.load("adcol").table("table-15")
    for row in table.rows:
        ratio = float(row.method.removeprefix("sampling ratio ").removesuffix("%")) / 100
        _, rounds, size = (cell.value for cell in row.cells)
        assert rounds is not None and size is not None
        assert rounds * ratio * 0.0110 == pytest.approx(size, abs=0.0051)
