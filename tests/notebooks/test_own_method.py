"""A method in one file of somebody's own folder: known to the command line and to a notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scrapbook

from fedrepro import methods
from fedrepro.base.errors import FedReproError

ROOT = Path(__file__).resolve().parents[2]
METHOD = '''
from dataclasses import dataclass
from typing import ClassVar
from fedrepro.methods.base import Method, hyper
from fedrepro.methods.losses import cross_entropy

@dataclass(frozen=True)
class Loud(Method):
    """FedAvg with a louder loss."""
    name: ClassVar[str] = "Loud"
    reference: ClassVar[str] = "you2027loud"
    gain: float = hyper(2.0, source="made up", low=0)

    def client_loss(self, model, batch, received):
        return {"ce": self.gain * cross_entropy(model(batch.x).logits, batch.y)}
'''


def fedrepro(place, *words):
    command = [sys.executable, "-m", "fedrepro.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=place)


def test_one_file_and_an_entry_point_are_enough(tmp_path, monkeypatch):
    """What `pip install` of a one-file package leaves."""
    (tmp_path / "loud.py").write_text(METHOD)
    facts = tmp_path / "loud-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[fedrepro.methods]\nloud = loud:Loud\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    said = fedrepro(tmp_path, "methods", "--json")
    (loud,) = [row for row in json.loads(said.stdout) if row["name"] == "Loud"]
    assert {field["name"]: field["default"] for field in loud["fields"]}["gain"] == 2.0


@pytest.mark.slow
def test_a_loaded_file_has_a_row_beside_the_papers(tmp_path, monkeypatch):
    """`--load` in `run` and in `sweep`, whose notebook has a process of its own; there a tracker is
    told of the runs, too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "mine.py").write_text(METHOD)
    common = ["--load", "mine.py", "--methods", "FedAvg;Loud", "--runs", "runs"]
    call = lambda *words: fedrepro(tmp_path, *words, *common)  # noqa: E731
    ran = call("run", "adcol", "table-1")
    rows = [line.split()[0] for line in ran.stdout.splitlines() if "(n=1)" in line]
    assert rows == ["FedAvg", "Loud"], ran.stderr
    words = ["--experiment", "table-1", "--seeds", "0", "--track", "tensorboard"]
    swept = call("sweep", "adcol", *words)
    assert swept.returncode == 0, swept.stderr
    assert len(list((tmp_path / "runs").glob("*/tensorboard/events*"))) == 2
    (path,) = (tmp_path / "runs" / "notebooks").rglob("*.ipynb")
    runs = scrapbook.read_notebook(str(path)).scraps["runs"].data
    assert [label for _, _, label in runs] == ["FedAvg", "Loud"]
    configs = [json.loads(p.read_text()) for p in (tmp_path / "runs").glob("*/config.json")]
    assert len(configs) == 2  # the sweep trained nothing
    assert [c["method"]["name"] for c in configs if "code" in c["method"]] == ["Loud"]
    wrong = call("run", "adcol", "table-1", "--methods", "Lout")
    assert wrong.returncode == 2 and "choose from Loud" in wrong.stderr


def test_a_file_that_cannot_be_used_is_one_line(tmp_path):
    for text, said in (("1 / 0", "ZeroDivisionError"), ("x = 1", "defines no method")):
        (tmp_path / "bad.py").write_text(text)
        with pytest.raises(FedReproError, match=said):
            methods.load(tmp_path / "bad.py")
