"""The manifest, finding files, hashes, status, and fetching from a server of the test's own."""

import gzip
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrepro import cli
from fedrepro.data import ENCODERS, fetch, load_domain, prepare, status
from fedrepro.data.manifest import COLLECTIONS, Collection, file_hash, locate
from fedrepro.data.readers import READERS
from tests.data.made import one_line, put

IMAGES = "train-images-idx3-ubyte.gz"


def test_the_manifest_knows_every_domain_and_every_entry_is_complete():
    for collection in COLLECTIONS.values():
        for name, domain in collection.domains.items():
            assert domain.counts is None or len(domain.counts) == len(collection.classes_of(name))
        for source in collection.sources:
            assert source.reader in READERS or set(collection.domains) <= set(ENCODERS)
            # what can be downloaded must be recognisable
            assert all(entry.hash for entry in source.files if entry.mirror)


def found(root: Path, domain: str, *files: str) -> str:
    for name in files:
        put(root / name, b"")
    located = locate(domain, root)
    return f"{located.missing[0].role} missing" if located.missing else located.source.name


def test_the_full_release_is_preferred_and_subsets_carry_their_deviations(tmp_path):
    assert found(tmp_path, "usps", "usps.t.bz2", "usps_train_rebuilt.bz2").startswith("rebuilt")
    assert found(tmp_path, "usps", "usps.bz2") == "official"
    assert found(tmp_path, "caltech", "office_caltech_10/caltech10/x") == "folders"
    assert found(tmp_path, "sketch-10", "DomainNet/sketch/x") == "folders"
    assert found(tmp_path, "sketch") == "images missing"
    # some split lists without the others are a cut set
    assert found(tmp_path, "photo", "pacs.tar") == "128-pixel tar"
    assert found(tmp_path, "photo", "photo_train_kfold.txt") == "crossval-list missing"
    found(tmp_path, "svhn", "digits/svhn/test_32x32_first10000.mat")
    source = locate("svhn", tmp_path).source
    assert source.subset and source.cut == (8000, 8010) and "first 10,000" in source.deviations[0]
    names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"]
    names += ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"]
    for place in ("mnist", "MNIST/raw", "."):  # packed or not
        files = [f"{place}/{name}" for name in names]
        assert found(tmp_path / place.replace("/", "-"), "mnist", *files) == "official"


def test_a_file_is_hashed_again_once_it_changes(tmp_path):
    path = put(tmp_path / "file", b"abc")
    assert file_hash(path, "md5") == hashlib.md5(b"abc").hexdigest()
    assert file_hash(path) == hashlib.sha256(b"abc").hexdigest()
    before = path.stat()
    path.write_bytes(b"abd")  # same length, and the old time put back
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_hash(path) == hashlib.sha256(b"abd").hexdigest()


def test_broken_files_are_one_line_with_both_hashes_and_the_command(tiny_mnist):
    path = tiny_mnist.root / "mnist" / IMAGES
    content = path.read_bytes()
    for broken in (content[:-10], content[:-1] + b"\xee", None):
        hashes = [hashlib.sha256(one or b"").hexdigest() for one in (content, broken)]
        if broken is None:
            path.unlink()
            hashes[1] = "none"
        else:
            path.write_bytes(broken)
        with one_line("`fedrepro data fetch mnist`") as caught:
            load_domain("mnist", 28, tiny_mnist.root)
        assert all(part in str(caught.value) for part in (IMAGES, *hashes))
        (row,) = status(["mnist"], tiny_mnist.root)
        assert row.hash == ("missing" if broken is None else "bad")
        assert row.present == (broken is not None) and row.note == str(caught.value)


def test_fedbns_pickles_are_named_and_never_opened(tmp_path):
    named = {
        "svhn": "data/digit_dataset/SVHN/partitions/train_part3.pkl",
        "dslr": "office_caltech_10/dslr_test.pkl",
    }
    for name in named.values():
        put(tmp_path / name, b"cos\nabort\n(tR.")
    for row in status(["digits5", "office10"], tmp_path):
        assert row.hash == "missing" and "\n" not in row.note
        assert ("a pickle, which may run code" in row.note) == (row.domain in named)
        assert named.get(row.domain, "") in row.note


def test_names(tmp_path):
    with one_line(r"'office11'; choose from .*amazon"):
        load_domain("office11", 28)
    with one_line("does not exist"):
        load_domain("mnist", 28, tmp_path / "absent")
    file = put(tmp_path / "file", b"")
    for call, named in ((status, ["mnist"]), (fetch, "mnist"), (prepare, ["mnist"])):
        with one_line("is a file"):
            list(call(named, root=file))


class Server:
    """Serves given bytes by name; notes requests; can fail the first ones or cut the content."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.failures = files, 0
        self.requests: list[str] = []
        self.cut: int | None = None  # never send bytes from here on
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(name := self.path.lstrip("/"))
                if server.failures > 0:
                    server.failures -= 1
                    self.send_error(503)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(server.files[name])))
                self.end_headers()
                self.wfile.write(server.files[name][: server.cut])

            def log_message(self, format: str, *args: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(tiny_mnist, known, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    made = Server(dict(tiny_mnist.contents))
    known["mnist"] = at_mirror(known["mnist"], made.url)
    threading.Thread(target=made.http.serve_forever, daemon=True).start()
    yield made
    made.http.shutdown()
    made.http.server_close()


def at_mirror(collection: Collection, url: str) -> Collection:
    source = collection.sources[0]
    files = [e.model_copy(update={"mirror": f"{url}/{e.names[0]}"}) for e in source.files]
    source = source.model_copy(update={"files": tuple(files)})
    return collection.model_copy(update={"sources": (source,)})


def test_fetch_gets_only_what_is_missing_or_wrong(tiny_mnist, server):
    folder = tiny_mnist.root / "mnist"
    put(folder / IMAGES, b"cut")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert fetch("mnist", tiny_mnist.root) == "2 files downloaded, 2 already there"
    assert sorted(server.requests) == ["t10k-labels-idx1-ubyte.gz", IMAGES]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == tiny_mnist.contents
    assert fetch("mnist", tiny_mnist.root) == "0 files downloaded, 4 already there"


def test_fetch_takes_an_unpacked_file_for_the_packed_one(tiny_mnist, server, known):
    (source,), packed = known["mnist"].sources, tiny_mnist.root / "mnist" / IMAGES
    plain = put(packed.with_suffix(""), gzip.decompress(packed.read_bytes()))
    entry = next(e for e in source.files if e.names == (IMAGES,))
    other = {"names": (plain.name,), "hash": f"sha256:{file_hash(plain)}", "mirror": ""}
    files = (*source.files, entry.model_copy(update=other))
    source = source.model_copy(update={"files": files})
    known["mnist"] = known["mnist"].model_copy(update={"sources": (source,)})
    packed.unlink()
    assert fetch("mnist", tiny_mnist.root) == "0 files downloaded, 4 already there"
    plain.write_bytes(b"cut")
    assert fetch("mnist", tiny_mnist.root) == "1 files downloaded, 3 already there"


def test_fetch_makes_the_root_tries_again_and_keeps_no_wrong_bytes(server, tmp_path):
    server.failures = 2
    fetch("mnist", tmp_path / "new")
    assert len(server.requests) == 6  # four files, two of the requests failed
    assert load_domain("mnist", 28, tmp_path / "new").images.shape[0] == 30
    for content, cut in ((server.files[IMAGES], 9), (b"an error page", None)):
        server.files[IMAGES], server.cut = content, cut
        with one_line(f"{IMAGES} could not be fetched"):
            fetch("mnist", tmp_path / "newest")
        assert list((tmp_path / "newest/mnist").iterdir()) == []


def test_a_failed_download_is_one_line_and_the_others_go_on(server, known, tmp_path):
    known["usps"] = at_mirror(known["usps"], "http://127.0.0.1:9")
    words = ["data", "fetch", "usps", "mnist", "mini-font", "--root", str(tmp_path)]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("usps: usps.bz2 could not be fetched (http://127.0.0.1:9/")
    assert "no connection" in line and str(tmp_path) in line and line.count("usps: ") == 1
    assert result.stdout.splitlines() == [
        "mnist: 4 files downloaded, 0 already there",
        "mini-font: made by the generator, nothing to fetch",
    ]
    if (forbidden := Path("/sys/kernel")).is_dir():  # not even root can write there
        with one_line("cannot be written"):
            fetch("mnist", forbidden)
