"""A changed own method is another run, whatever of it changed; an unchanged one is the same."""

# ruff: noqa: E501

import importlib.util
import linecache
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from fedrepro import methods
from fedrepro.base.files import CHECKOUT
from fedrepro.records.fingerprint import fingerprint
from tests.data.made import one_line
from tests.records.conftest import obtain, spec

HEAD = """
from functools import cached_property, lru_cache, partial
from typing import ClassVar
from fedrepro.methods.base import Method, hyper
from fedrepro.methods.fedavg import FedAvg
"""
LOSS = "    def client_loss(self, model, batch, received):\n        return "
WAYS = {
    "comprehension": f"class Mine(Method):\n{LOSS}[x * 2.0 for x in model]",
    "lambda": f"class Mine(Method):\n{LOSS}(lambda x: x * 2.0)(model)",
    "default": "class Mine(Method):\n    def client_loss(self, model, scale=2.0):\n        return scale",
    "keyword": "class Mine(Method):\n    def draw(self, *, scale=2.0):\n        return scale",
    "property": f"class Mine(Method):\n    @property\n    def w(self):\n        return 2.0\n{LOSS}self.w",
    "static": f"class Mine(Method):\n    @staticmethod\n    def w():\n        return 2.0\n{LOSS}self.w()",
    "class method": f"class Mine(Method):\n    @classmethod\n    def w(cls):\n        return 2.0\n{LOSS}0",
    "ClassVar": f"class Mine(Method):\n    W: ClassVar[float] = 2.0\n{LOSS}self.W",
    "field": f"class Mine(Method):\n    w: float = hyper(2.0, source='', later=True)\n{LOSS}self.w",
    "helper's helper": f"def v():\n    return 2.0\ndef w():\n    return v()\nclass Mine(Method):\n{LOSS}w()",
    "global": f"W = 2.0\nclass Mine(Method):\n{LOSS}W",
    "global in a container": f"W = {{'a': [2.0]}}\nclass Mine(Method):\n{LOSS}W['a']",
    "function in a container": f"W = {{'a': lambda: 2.0}}\nclass Mine(Method):\n{LOSS}W['a']()",
    "partial": f"W = partial(pow, 2.0)\nclass Mine(Method):\n{LOSS}W(3)",
    "cached": f"@lru_cache\ndef w():\n    return 2.0\nclass Mine(Method):\n{LOSS}w()",
    "closure": f"def make(w):\n    class Mine(Method):\n    {LOSS.replace('return', '    return')}w\n    return Mine\nMine = make(2.0)",
    "own base": f"class Base(Method):\n{LOSS}2.0\nclass Mine(Base):\n    pass",
    "mixin after a method of the package": "class Extra:\n    W = 2.0\nclass Mine(FedAvg, Extra):\n    pass",
    "__post_init__": "class Mine(Method):\n    def __post_init__(self):\n        self.w = 2.0",
    "own object": f"class Scale:\n    def __init__(self): self.w = 2.0\nW = Scale()\nclass Mine(Method):\n{LOSS}W.w",
}  # fmt: skip


def module(place: Path, text: str) -> ModuleType:
    """The module `mine`, anew from a file of its own."""
    path = place / "mine.py"
    path.write_text(HEAD + text)
    linecache.clearcache()
    spec = importlib.util.spec_from_file_location("mine", path)
    assert spec is not None and spec.loader is not None
    made = sys.modules["mine"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files are rewritten within a second
    monkeypatch.setitem(sys.modules, "mine", ModuleType("mine"))
    monkeypatch.setitem(sys.modules, "beside", ModuleType("beside"))


@pytest.mark.parametrize("source", [True, False], ids=["whole", "code and values alone"])
@pytest.mark.parametrize("way", WAYS)
def test_a_changed_constant(way, source, tmp_path, monkeypatch):
    """The source tells, and without it the compiled code and the values do."""
    if not source:
        monkeypatch.setattr("fedrepro.records.fingerprint._Content._text", lambda *_: "")
    once, again, other = (
        fingerprint(module(tmp_path, text).Mine)
        for text in (WAYS[way], WAYS[way], WAYS[way].replace("2.0", "3.0"))
    )
    assert once == again != other


USES = {
    "name": f"from beside import w\nclass Mine(Method):\n{LOSS}w()",
    "module": f"import beside\nclass Mine(Method):\n{LOSS}beside.w()",
    "in the method": "class Mine(Method):\n    def client_loss(self):\n        from beside import w\n        return w()",
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_a_changed_module_beside_it(use, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for value in (2.0, 2.0, 3.0):
        (tmp_path / "beside.py").write_text(f"W = {value}\ndef w():\n    return W\n")
        sys.modules.pop("beside", None)
        importlib.invalidate_caches()
        found.append(fingerprint(module(tmp_path, USES[use]).Mine))
    assert found[0] == found[1] != found[2]


def test_sets_do_not_follow_the_hash_seed(tmp_path):
    (tmp_path / "mine.py").write_text(
        HEAD + "W = {'x', 'y', 'zeta', 'eta'}\nclass Mine(Method):\n    N = frozenset('abcdef')\n"
        f"{LOSS}[w for w in W if w in {{'p', 'q', 'r', 's'}} or {{'k', 'l'}} - self.N]"
    )
    script = "import mine; from fedrepro.records import fingerprint as f; "
    words = [sys.executable, "-c", script + "print(f.fingerprint(mine.Mine))"]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(CHECKOUT)])}
    one, other = (
        subprocess.check_output(words, env={**place, "PYTHONHASHSEED": seed}) for seed in "12"
    )
    assert one == other


def test_a_file_that_is_loaded_again_has_its_new_text(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "_registry", dict(methods._registry))
    file = tmp_path / "again.py"
    (tmp_path / "beside_again.py").write_text("")
    for gain in ("2.0", "3.0"):
        file.write_text(
            f"import beside_again\n{HEAD}class Mine(Method):\n"
            f"    name, reference = 'Mine', ''\n{LOSS}{gain}"
        )
        fingerprint(*methods.load(file))
        assert f"return {gain}" in "".join(linecache.getlines(str(file)))


def test_what_cannot_be_read_or_told_from_others_is_one_line(tmp_path, toy_data):
    namespace: dict[str, type] = {"__name__": "__main__"}
    exec(HEAD + WAYS["lambda"], namespace)
    with one_line(r"cannot be read.*notebook's cell"):
        fingerprint(namespace["Mine"])
    text = f"import threading\nW = threading.Lock()\nclass Mine(Method):\n{LOSS}W"
    with one_line("Mine uses a lock whose content"):
        fingerprint(module(tmp_path, text).Mine)
    text = "class Mine(Method):\n    name, reference, N = 'Mine', '', 0\n"
    text += "    def init_server(self, server):\n        Mine.N += 1"
    mine = module(tmp_path, text).Mine()
    for _ in range(4):  # more than its rounds: none is kept
        type(mine).N = 0
        with one_line("Mine changes a class attribute or a global in training"):
            obtain(tmp_path, replace(spec(), method=mine))


IN_CELLS = r"""
from fedrepro.records.fingerprint import fingerprint
from tests.records.test_fingerprint import HEAD, WAYS, LOSS
shell = get_ipython()
def of(*cells):
    for cell in cells:
        shell.run_cell(cell, store_history=True).raise_error()
    return fingerprint(Mine)
shell.run_cell(HEAD)
for way, text in WAYS.items():
    once, again, other = of(text), of(text), of(text.replace("2.0", "3.0"))
    assert once == again != other, way
uses = f"class Mine(Method):\n{LOSS}w()"
for first in ("def w():\n    return 2.0", "W = [2.0]\nw = lambda: W[0]"):
    once, again, other = of(first, uses), of(first), of(first.replace("2.0", "3.0"))
    assert once == again != other, first
bare = "class Mine(FedAvg):\n    W = 2.0"
once, timed = of(bare), of("%%time\n" + bare)
assert once != timed != of("%%time\n" + bare.replace("2.0", "3.0"))
print("all seen")
"""


@pytest.mark.slow
def test_a_changed_cell_of_a_notebook(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    notebook = new_notebook(cells=[new_code_cell(IN_CELLS)])
    done = NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    said = "".join(out.get("text", "") for out in done.cells[0].outputs)
    assert said.splitlines()[-1] == "all seen"
