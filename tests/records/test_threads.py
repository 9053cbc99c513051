"""A recorded run has the same numbers on any number of threads."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedrepro.records import Record
from fedrepro.records import store as store_module
from tests import toys
from tests.records.conftest import obtain, spec
from tests.toys import numbers


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    federation = toys.federation((70, 40, 66))
    monkeypatch.setattr(store_module, "federation_of", lambda spec, root: federation)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def obtained(place: Path, threads: int, name: str, engine: str) -> Record:
    torch.set_num_threads(threads)
    # A network large enough that two threads share a product of its, and sum it otherwise.
    large = {"model": "digit-cnn", "batch_size": 32, "local_epochs": 1, "rounds": 2}
    record = obtain(place, spec(name, engine=engine, **large))
    assert torch.get_num_threads() == threads
    return record


@pytest.mark.parametrize(
    ("name", "engine"), [("FedAvg", "reference"), ("ADCOL", "reference"), ("FedAvg", "fused")]
)
def test_one_thread_and_two(name, engine, tmp_path):
    one, two = (obtained(tmp_path / str(threads), threads, name, engine) for threads in (1, 2))
    pd.testing.assert_frame_equal(numbers(one.curve), numbers(two.curve), check_exact=True)
    assert all((value == two.features[name]).all() for name, value in one.features.items())
    assert one.environment["threads"] == two.environment["threads"] == 1
    assert (one.environment["at_once"], two.environment["at_once"]) == (1, 2)
