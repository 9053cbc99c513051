"""How benchmark scripts end on bad input."""

import runpy
import sys

import pytest
import torch

from tests.benchmarks.conftest import FOLDER, script

REFUSED = {
    "at_once": "--threads 1",
    "cross_device": "--peers nobody",
    "drift": "--domains nowhere",
    "gpu": "--device cuda",
    "growth": "--values 1 2",
    "phases": "--model nothing",
    "precision": "--precision tf32",
    "rounds": "--images 9 --batch 8",
    "shared_digits": "--papers nobody",
    "verdict_words": "--out nowhere/words.md",
}


def ended(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """The status a script leaves with."""
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return caught.value.code


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line_and_status_2(name, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ended(name, REFUSED[name], monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


def test_every_script_is_tried():
    found = {path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert found == set(REFUSED)


@pytest.mark.parametrize("number", ["0", "-1", "two", "1.5"])
def test_a_count_is_a_whole_number_from_1_on(number, monkeypatch, capsys):
    assert ended("rounds", f"--repeat={number}", monkeypatch) == 2
    assert f"'{number}' is no whole number from 1 on" in capsys.readouterr().err


def test_a_stored_call_names_no_place():
    words = ["--runs", "/a", "--repeat", "2", "--json=/b", "--data-root", "/c", "--table"]
    command = script("entry").command("rounds", words)
    assert command == "python benchmarks/rounds.py --repeat 2 --table"
