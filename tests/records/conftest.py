"""Records of runs on small made data."""

from pathlib import Path
from typing import Any

import pytest

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.records import Record, RunSpec, Store, store as store_module
from tests import toys


@pytest.fixture
def toy_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: toys.federation())


def spec(name: str = "FedAvg", seed: int = 0, engine: str = "reference", **changes: Any) -> RunSpec:
    return RunSpec(methods.create(name), toys.protocol(**changes), seed, engine)


def obtain(place: Path, wanted: RunSpec | None = None, **more: Any) -> Record:
    return Store(place).obtain(wanted or spec(), device="cpu", progress=Silent(), **more)
