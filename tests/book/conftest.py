"""The built book, shared by all tests of a run, also across pytest-xdist's workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from fedrepro.pages import build_book

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the site, built once with every warning an error."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    out = shared / "book"
    with FileLock(shared / "book.lock"):
        if not (out / "html" / "index.html").is_file():
            build_book(out=out, strict=True, source=REPOSITORY)
    return out / "html"
