"""The manifest, finding files, hashes, and fetching from a server of the test's own."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.data import DATASETS, fetch, status
from fedrepro.data.domains import GENERATED, all_domains, load_domain
from fedrepro.data.manifest import default_manifest, parse_manifest
from fedrepro.data.readers import READERS
from fedrepro.data.status import SIZES
from fedrepro.data.verify import file_hashes, folder_hashes

IMAGES = "train-images-idx3-ubyte.gz"


def test_every_domain_is_in_the_manifest_or_generated() -> None:
    assert set(default_manifest().domains()) == set(all_domains()) - set(GENERATED)
    assert set(SIZES) == set(DATASETS)


def test_every_entry_is_complete() -> None:
    for collection in default_manifest().collections.values():
        assert collection.licence and collection.citation and collection.manual
        for name in collection.domains:
            counts = collection.domains[name].counts
            assert counts is None or len(counts) == len(collection.classes_of(name))
        for source in collection.sources:
            assert source.reader in READERS or collection.weights
            # what can be downloaded must be recognisable
            assert all(entry.known() for entry in source.files if entry.mirrors)


def test_a_mistake_in_a_manifest_is_one_line() -> None:
    with pytest.raises(FedReproError, match=r"manifest entry .*licence"):
        parse_manifest("[mnist]\n")
    with pytest.raises(FedReproError, match="not TOML"):
        parse_manifest("[mnist\n")


def test_shared_subsets_carry_their_deviations(tmp_path: Path) -> None:
    (tmp_path / "digits/svhn").mkdir(parents=True)
    (tmp_path / "digits/svhn/test_32x32_first10000.mat").touch()
    source = default_manifest().locate("svhn", tmp_path).source
    assert source.cut == (8000, 8010) and "first 10,000" in source.deviations[0]
    assert source.subset and set(default_manifest().cut_domains()) == {"svhn", "mnistm"}
    assert not default_manifest().locate("svhn", tmp_path / "empty").source.subset


def test_the_full_release_is_preferred_and_a_part_of_it_is_not_enough(tmp_path: Path) -> None:
    for name in ("usps.t.bz2", "usps_train_rebuilt.bz2"):
        (tmp_path / name).touch()
    assert default_manifest().locate("usps", tmp_path).source.name == "rebuilt training file"
    (tmp_path / "usps.bz2").touch()
    assert default_manifest().locate("usps", tmp_path).source.name == "official"


@pytest.mark.parametrize("place", ["mnist", "digits/mnist", "MNIST/raw", ""])
def test_mnist_is_found_in_each_layout_packed_or_not(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    names = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"]
    names += ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"]
    for name in names:
        (folder / name).touch()
    located = default_manifest().locate("mnist", tmp_path)
    assert located.complete and {p.name for _, p in located.found.values()} == set(names)


def test_some_split_lists_without_the_others_are_a_cut_set(tmp_path: Path) -> None:
    (tmp_path / "pacs.tar").touch()
    assert default_manifest().locate("photo", tmp_path).complete
    (tmp_path / "photo_train_kfold.txt").touch()
    located = default_manifest().locate("photo", tmp_path)
    assert [entry.role for entry in located.missing] == ["crossval-list", "test-list"]


def test_both_names_of_caltech(tmp_path: Path) -> None:
    (tmp_path / "office_caltech_10/caltech10").mkdir(parents=True)
    assert default_manifest().locate("caltech", tmp_path).source.name == "folders"


def test_a_good_file_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = tmp_path / "file", tmp_path / "cache"
    path.write_bytes(b"abc")
    assert file_hashes(path, cache).sha256 == hashlib.sha256(b"abc").hexdigest()
    assert file_hashes(path, cache).md5 == hashlib.md5(b"abc").hexdigest()
    opened: list[Path] = []
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda s, *a, **k: (opened.append(s), real(s, *a, **k))[1])
    file_hashes(path, cache)
    assert path not in opened
    before = path.stat()
    path.write_bytes(b"abd")  # same length, and the old time put back
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_hashes(path, cache).sha256 == hashlib.sha256(b"abd").hexdigest()


def test_a_folder_hash_sees_names_and_contents(tmp_path: Path) -> None:
    folder, cache = tmp_path / "f", tmp_path / "cache"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"1")
    first = folder_hashes(folder, cache).sha256
    assert folder_hashes(folder, cache).sha256 == first
    listing = f"a.png\0{1}\0{hashlib.sha256(b'1').hexdigest()}\n".encode()
    assert first == hashlib.sha256(listing).hexdigest()
    (folder / "a.png").rename(folder / "b.png")
    second = folder_hashes(folder, cache).sha256
    (folder / "b.png").write_bytes(b"2")
    assert len({first, second, folder_hashes(folder, cache).sha256}) == 3


def break_file(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[:-10])
    else:
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("how", ["missing", "cut", "altered"])
def test_broken_files_are_one_line_with_both_hashes_and_the_command(tiny_mnist, how: str) -> None:
    path = tiny_mnist.root / "mnist" / IMAGES
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    break_file(path, how)
    found = "none" if how == "missing" else hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(FedReproError) as caught:
        load_domain("mnist", 28, tiny_mnist.root, manifest=tiny_mnist.manifest)
    text = str(caught.value)
    for part in (IMAGES, expected, found, "`fedrepro data fetch mnist`"):
        assert part in text
    assert "\n" not in text
    (row,) = status(["mnist"], tiny_mnist.root, manifest=tiny_mnist.manifest)
    assert row.hash == ("missing" if how == "missing" else "bad")
    assert row.present == (how != "missing") and row.note == text


def test_status_of_good_files_and_of_generated_domains(tiny_mnist, tmp_path: Path) -> None:
    rows = status(["mnist", "mini-font"], tiny_mnist.root, manifest=tiny_mnist.manifest)
    assert [(r.domain, r.present, r.hash) for r in rows] == [
        ("mnist", True, "good"),
        ("mini-font", True, "generated"),
    ]
    assert rows[0].images == 30 and rows[0].licence == "free"
    assert rows[0].datasets == (
        *("digits5", "digits5-standin"),
        *("digits4", "digits4-standin"),
    )
    assert rows[1].images == 1800


def test_unknown_names_list_the_choices() -> None:
    with pytest.raises(FedReproError, match=r"'digit5'; choose from .*digits5"):
        status(["digit5"])
    with pytest.raises(FedReproError, match=r"'office11'; choose from .*amazon"):
        load_domain("office11", 28)


def test_a_root_that_is_a_file_or_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for call in (status, fetch):
        with pytest.raises(FedReproError, match="is a file"):
            call(["mnist"], tmp_path / "file")
    with pytest.raises(FedReproError, match="does not exist"):
        load_domain("mnist", 28, tmp_path / "absent")


class Server:
    """Serves given bytes by name; counts requests; can fail the first ones or cut the content."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.failures = 0
        self.requests: list[str] = []
        self.ranges: list[str | None] = []
        self.cut: dict[str, int] = {}  # never send bytes from here on
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/")
                server.requests.append(name)
                if server.failures > 0:
                    server.failures -= 1
                    self.send_error(503)
                    return
                content, asked = server.files[name], self.headers.get("Range")
                begin = int(asked[len("bytes=") : -1]) if asked else 0
                if begin >= len(content):
                    self.send_error(416)
                    return
                server.ranges.append(asked)
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(content) - begin))
                self.end_headers()
                self.wfile.write(content[begin : server.cut.get(name)])

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, daemon=True)
    thread.start()
    yield made
    made.http.shutdown()
    made.http.server_close()
    thread.join()


def with_mirror(tiny, server: Server):
    collection = tiny.manifest.collections["mnist"]
    source = collection.sources[0]
    files = tuple(
        e.model_copy(update={"mirrors": (f"{server.url}/{e.names[0]}",)}) for e in source.files
    )
    source = source.model_copy(update={"files": files})
    changed = collection.model_copy(update={"sources": (source,)})
    server.files = dict(tiny.contents)
    return replace(tiny.manifest, collections={"mnist": changed})


def test_fetch_gets_only_what_is_missing_or_wrong(tiny_mnist, server: Server) -> None:
    manifest = with_mirror(tiny_mnist, server)
    folder = tiny_mnist.root / "mnist"
    break_file(folder / IMAGES, "cut")
    break_file(folder / "t10k-labels-idx1-ubyte.gz", "missing")
    (row,) = fetch(["mnist"], tiny_mnist.root, manifest=manifest)
    assert row.outcome == "downloaded"
    assert sorted(server.requests) == ["t10k-labels-idx1-ubyte.gz", IMAGES]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == tiny_mnist.contents
    (again,) = fetch(["mnist"], tiny_mnist.root, manifest=manifest)
    assert again.outcome == "present" and len(server.requests) == 2


def test_fetch_makes_the_root_and_tries_again(tiny_mnist, server: Server, tmp_path: Path) -> None:
    manifest = with_mirror(tiny_mnist, server)
    server.failures = 2
    fetch(["mnist"], tmp_path / "new", manifest=manifest)
    assert len(server.requests) == 6  # four files, two of the requests failed
    assert load_domain("mnist", 28, tmp_path / "new", manifest=manifest).images.shape[0] == 30


def test_a_download_that_broke_off_goes_on(
    tiny_mnist, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrepro.data.download.BLOCK", 1)  # what is less than a block is lost
    manifest, root = with_mirror(tiny_mnist, server), tmp_path / "new"
    whole, cut = server.files[IMAGES], len(server.files[IMAGES]) // 3
    server.cut = {IMAGES: cut}
    with pytest.raises(FedReproError, match="what has come is kept"):
        fetch(["mnist"], root, manifest=manifest)
    part = next(root.rglob(f".{IMAGES}.part"))
    assert part.read_bytes() == whole[:cut]
    server.cut, server.ranges = {}, []
    (row,) = fetch(["mnist"], root, manifest=manifest)
    assert row.outcome == "downloaded" and f"bytes={cut}-" in server.ranges
    assert next(root.rglob(IMAGES)).read_bytes() == whole
    assert not list(root.rglob("*.part"))


def test_a_wrong_beginning_is_thrown_away(tiny_mnist, server: Server, tmp_path: Path) -> None:
    manifest, root = with_mirror(tiny_mnist, server), tmp_path / "new"
    place = root / "mnist"
    place.mkdir(parents=True)
    (place / f".{IMAGES}.part").write_bytes(b"not the beginning of it")
    fetch(["mnist"], root, manifest=manifest)
    assert next(root.rglob(IMAGES)).read_bytes() == server.files[IMAGES]


def test_fetch_keeps_nothing_of_wrong_bytes(tiny_mnist, server: Server, tmp_path: Path) -> None:
    manifest = with_mirror(tiny_mnist, server)
    server.files[IMAGES] = b"an error page"
    with pytest.raises(
        FedReproError, match=rf"{IMAGES} could not be fetched .*what has come is kept"
    ) as e:
        fetch(["mnist"], tmp_path / "new", manifest=manifest)
    assert "\n" not in str(e.value)
    assert list((tmp_path / "new/mnist").iterdir()) == []


def test_fetch_without_a_mirror_says_what_to_do(tmp_path: Path) -> None:
    (row,) = fetch(["synthdigits"], tmp_path)
    assert row.outcome == "manual" and "synth_train_32x32.mat" in row.text
    assert str(tmp_path) in row.text and "\n" not in row.text
    (row,) = fetch(["mini-font"], tmp_path / "not-made")
    assert row.outcome == "generated" and not (tmp_path / "not-made").exists()


def unwritable(tmp_path: Path) -> Path:
    """A folder that even an administrator cannot write to, else one without permission."""
    system = Path("/sys/kernel")
    if os.geteuid() == 0:
        if not system.is_dir():
            pytest.skip("an administrator can write everywhere here")
        return system
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    return folder


def test_fetch_into_a_read_only_root(tiny_mnist, server: Server, tmp_path: Path) -> None:
    with pytest.raises(FedReproError, match="cannot be written") as caught:
        fetch(["mnist"], unwritable(tmp_path), manifest=with_mirror(tiny_mnist, server))
    assert "\n" not in str(caught.value)
