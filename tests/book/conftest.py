"""The built book, shared by all tests of a run, also across pytest-xdist's workers."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from filelock import FileLock

from fedrepro.base.files import CHECKOUT
from fedrepro.pages import build_book


@pytest.fixture(scope="session")
def site(shared):
    out = shared / "book"
    with FileLock(shared / "book.lock"):
        if not (out / "html" / "index.html").is_file():
            build_book(out=out, strict=True, source=CHECKOUT)
    return out / "html"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def served(site):
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
