"""The command line as other programs and people meet it: JSON, errors, statuses, one run."""

import json
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

from typer.testing import CliRunner, Result

import fedrepro
from fedrepro import cli, commands, papers

COMMANDS = "data methods experiments run sweep campaign verdicts claims book bench"


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def listed(*words: str) -> list[dict[str, Any]]:
    return json.loads(call(*words, "--json").stdout)


def test_help_and_version():
    shown = {line.split()[0] for line in call().stdout.splitlines() if line.startswith("  ")}
    assert set(COMMANDS.split()) <= shown
    assert call("--version").stdout == f"fedrepro {fedrepro.__version__}\n"


HEAVY = {"torch", "pandas", "papermill", "scrapbook", "sklearn"}
WRONG = (  # what is typed wrong, and what the one line names
    ("verdict", "Did you mean"), ("--wrong", "--help"), ("bench", "clone"),
    ("run", "paper"), ("run nopaper", "adcol"), ("run adcol table-99", "table-1"),
    ("run adcol figure-1", "blocked"), ("run fedapc figure-1", "FedAPC figure-1 is blocked"),
    *((f"run adcol {words}", named) for words, named in (
        ("table-1 --dataset cifar", "cifar10, cifar100"), ("table-4 --dataset digits5", "office10"),
        ("--seed -1", "seed -1"), ("--seed one", "--seed"), ("--engine warp", "reference"),
        ("--scale huge", "smoke, reduced, paper"), ("--device tpu", "cpu"),
        ("--set rounds", "name=value"), ("--set rounds=many", "rounds = 'many'"),
        ("--set data.colour=red", "no such name"), ("--rounds 3", "run --help`"),
        ("--set data.allocation.count=3", "add data.allocation.rule=dirichlet"),
        ("--set data.allocation.clients.mini-font=3", "add data.allocation.rule=table"),
        ("--set scale=paper", "own options"), ("--set data.dataset=mnist", "own options"),
        ("figure-7 --set local_epochs=2", "with local_epochs changed, rows of"),
        ("--dataset minidigits --dataset office9", "office10"),
        ("--scale paper --dataset office10 --set rounds=3", "reduced"), ("--methods ,", "commas"),
        ("figure-2c --methods FedBN", "has no row for FedBN"), ("--methods FedAvgg", "FedAvg"),
        ("--dataset cifar10", "name one"), ("--set round=3", "choose from rounds"),
    )),
    ("sweep nopaper", "adcol"), *((f"sweep adcol {words}", named) for words, named in (
        ("--experiment table-99", "table-1"), ("--scale huge", "smoke"), ("--device tpu", "cpu"),
        ("--seeds x", "--seeds x"), ("--seeds=-1", "--seeds -1"), ("--seeds 2-0", "--seeds 2-0"),
        ("--seeds 1,,2", "--seeds 1,,2"), ("--set rounds=many", "many"), ("--jobs 0", "--jobs"),
        ("--on sun", "local, dask"), ("", "clone the repository and install"),
    )),
    ("methods FedAvgg", "FedAvg"), ("claims --paper adcool", "adcol"),
    ("experiments --paper adcool", "adcol"), ("verdicts --paper adcool", "adcol"),
    ("verdicts --notebooks /no/folder", "--notebooks"), ("data status imagenet", "minidigits"),
    ("records check --runs /no/folder", "--runs"), ("book", "clone the repository and install"),
)  # fmt: skip


def test_a_mistake_is_one_line_before_anything_heavy_is_imported():
    """Seconds would flicker. Of a wheel without a checkout; help is as fast."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom fedrepro.base import files\n"
        "files.CHECKOUT = Path('/wheel')\nfrom fedrepro import cli\n"
        f"for line in ['run --help', *{[line for line, _ in WRONG]!r}]:\n"
        "    try: cli.app(line.split())\n"
        "    except SystemExit as end: assert end.code == 2 * (line[-6:] != '--help'), line\n"
        f"    heavy = {HEAVY} & set(sys.modules)\n"
        "    assert not heavy or line == 'book', (line, heavy)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=commands.CHECKOUT)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(WRONG)
    for (words, named), line in zip(WRONG, lines, strict=True):
        assert line.startswith("error: ") and named in line, (words, line)


def test_methods_and_experiments():
    rows = listed("methods")
    assert all(list(row) == ["name", "paper", "fields"] for row in rows)
    fields = [field for row in rows for field in row["fields"]]
    assert all(list(f) == ["name", "default", "status", "source", "alternatives"] for f in fields)
    adcol = next(row for row in rows if row["name"] == "ADCOL")
    mu = next(field for field in adcol["fields"] if field["name"] == "mu")
    assert mu["default"] == 1.0 and 0.1 in mu["alternatives"]
    shown = call("methods", "ADCOL").stdout
    assert shown.startswith("ADCOL  (") and "mu = 1.0" in shown and "\nFedAvg" not in shown

    rows = listed("experiments")
    keys = ["paper", "id", "dataset", "caption", "state", "reason"]
    assert all(list(row) == keys for row in rows)
    assert {row["paper"] for row in rows} == set(papers.names())
    own = sum(row["paper"] == "adcol" for row in rows) + 1
    assert call("experiments", "--paper", "adcol").stdout.count("\n") == own


def test_verdicts_list_every_printed_cell_once(tmp_path):
    rows = listed("verdicts", "--notebooks", str(tmp_path))
    keys = "paper table dataset method column published published_std ours ours_std seeds scale"
    keys += " verdict why difference low high"
    assert all(list(row) == keys.split() for row in rows)
    printed = [
        (name, table.id, method, column)
        for name in papers.names()
        for table in papers.load(name).tables
        for method in table.rows
        for column in table.columns
    ]
    found = [(row["paper"], row["table"], row["method"], row["column"]) for row in rows]
    assert sorted(found) == sorted(printed)
    assert {row["verdict"] for row in rows} == {"not run"}
    solo = rows[found.index(("adcol", "table-1", "SOLO", "MNIST"))]
    assert (solo["published"], solo["published_std"], solo["ours"]) == (87.9, 0.4, None)
    shown = call("verdicts", "--paper", "adcol", "--notebooks", str(tmp_path)).stdout
    of_adcol = sum(row["paper"] == "adcol" for row in rows)
    assert f"{of_adcol:,} cells: {of_adcol:,} not run" in shown.splitlines()[-1]


def test_claims_answer_what_the_records_say():
    rows = listed("claims", "--paper", "fedapc")
    keys = "paper id claim where scale verdict effect interval p printed least_seen evidence"
    assert all(list(row) == keys.split() for row in rows)
    assert {row["verdict"] for row in rows} <= {"holds", "contradicted", "open"}
    assert [row["id"] for row in rows] == [claim.id for claim in papers.load("fedapc").claims]
    assert "fedapc best-mean: " in call("claims", "--paper", "fedapc").stdout


def test_lists_of_seeds_and_of_names_that_may_hold_commas(tmp_path):
    assert cli._seeds("0-2,5,1") == [0, 1, 2, 5]
    row = "I2PFL, earlier constants"
    assert cli._split([row, "FedAvg,FedProx"], {row}) == [row, "FedAvg", "FedProx"]
    assert cli._split([f"{row};FedAvg", "A (b=1, c=2),D"]) == [row, "FedAvg", "A (b=1, c=2)", "D"]
    (tmp_path / "a,b").mkdir()
    folder = f"folder:{tmp_path}/a,b"
    assert cli._split([folder, "pacs,office10"]) == [folder, "pacs", "office10"]


def test_data_status_and_prepare(tmp_path):
    status = call("data", "status", "minidigits", "mnist", "--root", str(tmp_path))
    lines = status.stdout.splitlines()
    assert lines[0].split() == ["domain", "here", "hash", "images", "source", "licence", "path"]
    assert [line.split()[1] for line in lines[1:6]] == ["yes"] * 4 + ["no"]
    assert lines[6].startswith("mnist: ") and lines[6].count("mnist: ") == 1
    twice = [call("data", "prepare", "mini-scanned", "--size", "16").stdout for _ in range(2)]
    assert "1797 images" in twice[0] and "already there" in twice[1]
    office = call("data", "fetch", "office10", "--root", str(tmp_path)).stdout.splitlines()
    assert "Download Office-Caltech-10" in office[0]
    assert office[1:] == [f"{one}: as for amazon" for one in ("caltech", "dslr", "webcam")]


def test_of_a_checkout(tmp_path):
    assert "\ndrift " in call("bench").stdout
    assert call("bench", "peak", "--repeat", "0").exit_code == 2  # the script's own status
    for words, named in (("bench nothing", "drift"), (f"book --runs {tmp_path}/none", "--runs")):
        result = call(*words.split())
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.startswith("error: ") and named in result.stderr


def test_surprises_and_ctrl_c_are_one_line_and_a_traceback_needs_debug(monkeypatch):
    failing = Mock(side_effect=ZeroDivisionError("by zero,\nalas"))
    monkeypatch.setattr(papers, "experiments", failing)
    result = call("experiments")
    assert result.exit_code == 1
    assert result.stderr == "error: ZeroDivisionError: by zero,; --debug shows where\n"
    for words in (["--debug", "experiments"], ["experiments", "--debug"]):
        traced = call(*words)
        assert traced.exit_code == 1 and "Traceback" in traced.stderr
    monkeypatch.setattr(papers, "experiments", Mock(side_effect=KeyboardInterrupt))
    result = call("experiments")
    assert result.exit_code == 130
    assert result.stderr.startswith("interrupted: ") and result.stderr.count("\n") == 1


def test_run_prints_the_table_and_finds_the_run_again(tmp_path):
    words = ["run", "adcol", "table-1", "--methods", "ADCOL", "--runs", str(tmp_path)]
    first = call(*words)
    assert first.exit_code == 0, first.output
    lines = first.stdout.splitlines()
    assert lines[0].startswith("ADCOL table-1: ") and "minidigits" in lines[0]
    assert "tests the code, not a result" in lines[0]
    assert lines[2].startswith("method") and lines[2].endswith("avg (%)")
    row = next(line for line in lines[3:] if line.startswith("ADCOL"))
    assert row.count("(one run)") == 5 and "round 2/2" in first.stderr
    again = call(*words)
    assert again.stdout == first.stdout and "round" not in again.stderr
