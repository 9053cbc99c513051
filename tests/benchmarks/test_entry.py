"""How benchmark scripts end on bad input."""

import runpy
import sys

import pytest
import torch

from tests.benchmarks.conftest import FOLDER

REFUSED = [
    ("at_once", "--threads 1", ""),
    ("cross_device", "--peers nobody", ""),
    ("drift", "--domains nowhere", ""),
    ("end_to_end", "nowhere", "name a clone"),
    ("gpu", "--device cuda", ""),
    ("growth", "--values 3 5", "belong to one axis"),
    ("growth", "--axis clients --values 7", "two or more"),
    ("growth", "--axis clients --values 0 5", "from 1 on"),
    ("growth", "--images 1", "2 or more"),
    ("peak", "--results nowhere/peak.md", "no folder nowhere"),
    ("phases", "--model nothing", ""),
    ("precision", "--precision tf32", "a CPU has no tf32"),
    ("rounds", "--images 9 --batch 8", ""),
    ("shared_images", "--papers nobody", ""),
    ("verdict_words", "--out nowhere/words.md", ""),
]
NUMBERS = [("rounds", f"--repeat={n}", "is no whole number from 1 on") for n in ("0", "two", "1.5")]
NUMBERS += [("precision", f"--seeds={n}", "different seeds") for n in ("0", "0,0", "0,x")]


@pytest.mark.parametrize(("name", "words", "says"), [*REFUSED, *NUMBERS])
def test_bad_input_is_one_line_and_status_2(name, words, says, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert caught.value.code == 2
    *usage, line = capsys.readouterr().err.splitlines()
    assert says in line
    if (name, words, says) in REFUSED:  # argparse shows the usage too
        assert line.startswith("error: ") and not usage


def test_every_script_is_tried_and_named_in_the_readme():
    found = {path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert found == {name for name, *_ in REFUSED}
    text = (FOLDER / "README.md").read_text("utf-8")
    assert [name for name in found if f"`{name}.py`" not in text] == []
