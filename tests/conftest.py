"""One thread, a cache of the session's own, and the real data where they are at hand."""

import os
from pathlib import Path

import pytest

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # before torch and numpy are imported: they read it once


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A temporary folder for all parallel workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def data_cache(shared):
    """FEDREPRO_CACHE for the session; nothing is written elsewhere."""
    cache = shared / "fedrepro-cache"
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
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    if (path := Path(os.environ.get("FEDREPRO_DATA") or beside)).is_dir():
        return path
    pytest.skip("no real data: set FEDREPRO_DATA to a folder with the official files")
