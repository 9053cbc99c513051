"""One thread, a cache of the session's own, and the real data where they are at hand."""

import os
from pathlib import Path

import pytest

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch and numpy are imported: they read it once

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """torch on one thread, as the expected numbers assume."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def data_cache(tmp_path_factory):
    """FEDREPRO_CACHE for the session, shared by parallel workers; nothing is written elsewhere."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    cache = base / "fedrepro-cache"
    cache.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREPRO_CACHE", str(cache))
        yield cache


@pytest.fixture
def registry(monkeypatch):
    from fedrepro import methods

    methods.names()
    monkeypatch.setattr(methods, "_registry", dict(methods._registry))


@pytest.fixture(scope="session")
def real_data():
    """The folder with real data files: $FEDREPRO_DATA, else shared/data beside the repository."""
    given = os.environ.get("FEDREPRO_DATA")
    for path in [Path(given)] if given else [REPOSITORY.parent / "shared" / "data"]:
        if path.is_dir():
            return path
    pytest.skip("no real data: set FEDREPRO_DATA to a folder with the official files")
