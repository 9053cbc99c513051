"""Benchmark scripts set torch's threads for their process; tests after them expect their own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that a file of tests names as its `SCRIPT`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.module.SCRIPT)
