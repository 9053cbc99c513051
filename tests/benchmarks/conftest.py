"""Benchmark scripts set torch's threads for their process; tests after them expect their own."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


def script(name: str) -> ModuleType:
    """A script, or what scripts share, as they import it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        return importlib.import_module(name)


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
