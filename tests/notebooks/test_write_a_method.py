"""What the README and the page *Write a method* promise, done as a reader would do it."""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import nbformat
import pytest
import scrapbook
import torch
from PIL import Image

import fedrepro
from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.files import CHECKOUT
from fedrepro.federated.rounds import Training
from tests import toys

PAGE = CHECKOUT / "book" / "results" / "write_a_method.ipynb"
CELLS = nbformat.read(PAGE, as_version=4).cells
CODE = [cell.source for cell in CELLS if cell.cell_type == "code"]


def cell(name: str) -> str:
    (found,) = [source for source in CODE if f"class {name}(" in source]
    return found


def model(name: str, rounds: int, **fields: float) -> dict[str, torch.Tensor]:
    """The server's parameters after so many rounds of a method of the page, which stays out of the
    registry."""
    if name != "FedAvg":
        names: dict[str, Any] = {"__name__": "page"}
        source = f"{CODE[0]}\n{cell(name).removeprefix('@fedrepro.register')}"
        exec(compile(source, name, "exec", dont_inherit=True), names)
    method = methods.create(name) if name == "FedAvg" else names[name](**fields)
    training = Training(method, toys.protocol(), toys.federation(), 0)
    for _ in range(rounds):
        training.one_round()
    return {n: v for n, v in training.server.model.items() if "running" not in n and v.ndim}


def test_fedavgm_adds_the_last_rounds_step_to_the_next():
    start, first, second = (model("FedAvg", rounds) for rounds in range(3))
    for beta in (0.0, 0.5):
        ours = model("FedAvgM", 2, beta=beta)
        for n, value in ours.items():
            expected = second[n] - beta * (start[n] - first[n])
            torch.testing.assert_close(value, expected, atol=1e-4, rtol=1e-3)


def test_recall_has_something_to_hold_on_to_from_round_two():
    for rounds, same in ((1, True), (2, False)):
        plain, ours = model("FedAvg", rounds), model("Recall", rounds)
        assert all(torch.equal(plain[n], ours[n]) for n in plain) == same


def images(place: Path) -> None:
    """Ten pictures of each of three digits, as two domains."""
    digits = fedrepro.federation("minidigits")
    for domain, label in product(digits.domains[:2], range(3)):
        samples, folder = digits.tests[domain], place / domain / str(label)
        folder.mkdir(parents=True)
        for n, image in enumerate(samples.images[samples.labels == label][:10]):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{n}.png")


README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
PROSE = "\n".join(one.source for one in CELLS if one.cell_type == "markdown")
LOUD = re.findall("```python\n(.*?)```", README, re.DOTALL)[1]
TOLD = {  # a file of a method, and the text whose command runs it beside FedAvg
    "FedAvgM": (f"{CODE[0]}\n\n{cell('FedAvgM')}\n", PROSE),
    "FedLoud": (LOUD, README),
}


def command(place, *words):
    """The command, as a reader gives it in that folder."""
    env = {**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{CHECKOUT}"}
    line = [sys.executable, "-m", "fedrepro.cli", *words]
    return subprocess.run(line, env=env, capture_output=True, text=True, cwd=place)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_a_reader_puts_a_method_beside_fedavg_on_images_of_his_own(tmp_path, name):
    method, told = TOLD[name]
    (tmp_path / f"{name.lower()}.py").write_text(method)
    images(tmp_path / "my_images")
    (line,) = [line for line in told.splitlines() if line.startswith("fedrepro sweep common")]
    done = command(tmp_path, *shlex.split(f"{line} --scale smoke --seeds 0,1 --runs runs")[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [re.split(r"\s{2,}", row) for row in done.stdout.splitlines()]
    table = {row[4]: row for row in rows if row[:2] == ["common", "methods"]}
    assert list(table) == ["FedAvg", name] and {row[5] for row in table.values()} == {"2"}
    for row in table.values():
        low, high = map(float, row[7].replace("−", "-").split(" to "))
        assert low <= float(row[6]) <= high and re.fullmatch("folder:my_images-[0-9a-f]{8}", row[2])
    assert len(list(tmp_path.glob("runs/*/done"))) == 4
    kept = [path.read_text() for path in tmp_path.glob("runs/notebooks/*.ipynb")]
    assert f"folder:{tmp_path}" not in "".join(kept), "a notebook says where the folder lay"


def test_one_file_and_an_entry_point_are_enough(tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    (facts := tmp_path / "loud-1.0.dist-info").mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[fedrepro.methods]\nloud = loud:FedLoud\n")
    said = command(tmp_path, "methods", "--json")
    (loud,) = [row for row in json.loads(said.stdout) if row["name"] == "FedLoud"]
    assert {field["name"]: field["default"] for field in loud["fields"]}["gain"] == 2.0


@pytest.mark.slow
def test_a_loaded_file_has_a_row_beside_the_papers(tmp_path):
    (tmp_path / "mine.py").write_text(LOUD.replace('"FedLoud"', '"FedLoud"; other = "mine"'))
    common = ["--load", "mine.py", "--methods", "FedAvg;FedLoud", "--runs", "runs"]
    call = lambda *words: command(tmp_path, *words, *common)  # noqa: E731
    ran = call("run", "adcol", "table-1")
    rows = [line.split()[0] for line in ran.stdout.splitlines() if "(one run)" in line]
    assert rows == ["FedAvg", "FedLoud"], ran.stderr
    words = ["--experiment", "table-1", "--seeds", "0", "--track", "tensorboard"]
    swept = call("sweep", "adcol", *words)
    assert swept.returncode == 0, swept.stderr
    assert len(list((tmp_path / "runs").glob("*/tensorboard/events*"))) == 2
    (path,) = (tmp_path / "runs" / "notebooks").rglob("*.ipynb")
    runs = scrapbook.read_notebook(str(path)).scraps["runs"].data
    assert [label for _, _, label in runs] == ["FedAvg", "FedLoud"]
    configs = [json.loads(p.read_text()) for p in (tmp_path / "runs").glob("*/config.json")]
    assert len(configs) == 2  # the sweep trained nothing
    assert [c["method"]["name"] for c in configs if "code" in c["method"]] == ["FedLoud"]
    wrong = call("run", "adcol", "table-1", "--methods", "FedLout")
    assert wrong.returncode == 2 and "choose from FedLoud" in wrong.stderr


def test_a_file_that_cannot_be_used_is_one_line(tmp_path):
    twice = "import dataclasses, fedrepro\n@dataclasses.dataclass\n"
    own = "import fedrepro as f\nclass M"
    for text, said in (
        *(("1 / 0", "ZeroDivision"), ("raise SystemExit", "SystemExit"), ("x = 1", "no method")),
        (f"{own}(f.Method, dict): name = reference = 'M'", "dict after Method has no effect"),
        (f"{own}(f.Method): name = reference = 'M'; remember = print", "without first_memory"),
        (f"{own}(f.Method): __init__ = lambda self: None", "__init__ has no effect"),
        (f"{twice}class Mine(fedrepro.Method): ...", "remove @dataclass"),
        ("import fedrepro.methods.api as fl; fl.hyper(1, 'x', 'my')", "no status 'my'; choose"),
    ):
        with pytest.raises(FedReproError, match=said):
            methods.load((tmp_path / "bad.py").write_text(text) and tmp_path / "bad.py")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(LOUD.replace("FedLoud", folder))
    one, two = ("--load", "one/mine.py"), ("--load", "two/mine.py")
    assert "rename the file" in command(tmp_path, "methods", *one, *two).stderr
    assert "name its methods" in command(tmp_path, "run", "adcol", *one).stderr


def test_a_fault_in_a_method_names_its_function_and_line(tmp_path):
    start = "import fedrepro\nclass Mine(fedrepro.Method):\n    name = reference = 'Mine'\n"
    for text, said in (
        ("    def upload(self, client): return {}['x']", "KeyError in upload, line 4 of"),
        ("    def init_server(self, server): server.seen = 1", "keep tensors in server.tensors"),
        ("    def shares(self, tensor): self.averages", "shares must return a bool, not NoneType"),
    ):
        (tmp_path / "mine.py").write_text(start + text)
        words = ["--load", "mine.py", "--methods", "Mine", "--runs", "runs"]
        failed = command(tmp_path, "run", "adcol", "table-1", *words)
        assert failed.returncode and said in failed.stderr.splitlines()[-1], failed.stderr
