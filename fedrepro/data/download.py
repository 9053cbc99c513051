"""Download what a mirror permits; say in one paragraph how to get the rest by hand."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pooch
import requests
from tqdm import tqdm

from fedrepro.base.errors import FedReproError, one_line
from fedrepro.data.domains import GENERATED, domain_names
from fedrepro.data.manifest import Collection, FileEntry, Manifest, default_manifest
from fedrepro.data.roots import cache_root, data_root
from fedrepro.data.verify import verify, verify_file

RETRIES = 3
TIMEOUT = 60  # seconds without a byte
BLOCK = 1 << 16


@dataclass(frozen=True)
class Fetched:
    """What fetch did for a domain: files downloaded, already there, to be got by hand (text is
    the paragraph that says how), or made by the generator."""

    domain: str
    outcome: Literal["downloaded", "present", "manual", "generated"]
    files: tuple[Path, ...]
    text: str


def fetch(
    names: Iterable[str] = (),
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
    progress: bool | None = None,
) -> list[Fetched]:
    """Get the full release of each domain, keeping files that are there with the right hash.

    A download goes to a temporary file that is renamed once its hash fits, is tried again three
    times and then at the next mirror. One that broke off goes on where it stopped.
    progress: draw a bar (default: on a terminal). Raises FedReproError where all mirrors fail.
    """
    domains = domain_names(names)
    manifest = manifest or default_manifest()
    bar = sys.stderr.isatty() if progress is None else progress
    rows, notes = [], cache_root(cache)
    for name in domains:
        if name in GENERATED:
            rows.append(Fetched(name, "generated", (), "made by the generator, nothing to fetch"))
            continue
        folder = data_root(root, create=True)
        rows.append(_fetch(name, folder, notes, manifest, bar))
    return rows


def _fetch(name: str, root: Path, cache: Path, manifest: Manifest, bar: bool) -> Fetched:
    collection = manifest.collection(name)
    full, wanted = collection.sources[0], dict[str, FileEntry]()
    for entry in full.files:
        if entry.mirrors:
            wanted.setdefault(entry.role, entry)
    if not {entry.role for entry in full.files if not entry.optional} <= wanted.keys():
        return _by_hand(name, root, cache, manifest)
    new, kept = [], []
    for entry in wanted.values():
        path = _good_copy(entry, collection, name, root, cache)
        if path is not None:
            kept.append(path)
        else:
            new.append(_download(entry, root / collection.places[0], name, bar))
    text = f"{name}: {len(new)} files downloaded, {len(kept)} already there"
    return Fetched(name, "downloaded" if new else "present", (*new, *kept), text)


def _good_copy(
    entry: FileEntry, collection: Collection, domain: str, root: Path, cache: Path
) -> Path | None:
    """A file of that name with the right hash in any of its places."""
    for place in collection.places:
        path = root / place / entry.names[0]
        with suppress(FedReproError):
            if path.is_file() and verify_file(entry, path, domain, cache):
                return path
    return None


def _by_hand(name: str, root: Path, cache: Path, manifest: Manifest) -> Fetched:
    """No mirror: say how, after saying whether something usable is here already."""
    located, manual = manifest.locate(name, root), manifest.collection(name).manual
    wrong = ""
    if located.complete:
        try:
            verify(located, root, cache)
        except FedReproError as error:
            wrong = f"{error}. "
    if wrong or not located.complete:
        text = f"{name}: {wrong}{manual} The data root is {root}."
        return Fetched(name, "manual", (), text)
    files = tuple(path for _, path in located.found.values())
    text = f"{name}: {located.source.name} present"
    if located.source.deviations:
        return Fetched(name, "manual", files, f"{text} ({located.source.deviations[0]}). {manual}")
    return Fetched(name, "present", files, text)


def _download(entry: FileEntry, folder: Path, domain: str, bar: bool) -> Path:
    """One file from the first mirror that gives the right bytes."""
    target, problems = entry.names[0], []
    pooch.get_logger().setLevel(logging.ERROR)  # its notes on stderr repeat the bar
    for url in entry.mirrors:
        store = pooch.create(
            path=folder,
            base_url="",
            registry={target: entry.known()},
            urls={target: url},
            retry_if_failed=RETRIES,
        )
        try:
            getter = Resuming(folder / f".{target}.part", bar)
            return Path(store.fetch(target, downloader=getter))
        except (requests.RequestException, ValueError) as error:
            problems.append(f"{url}: {one_line(error)}")
        except OSError as error:
            raise FedReproError(
                f"{folder / target} cannot be written ({one_line(error)}); give a data root you "
                "may write to with --root or FEDREPRO_DATA"
            ) from error
    raise FedReproError(
        f"{domain}: {target} could not be fetched ({'; '.join(problems)}); try "
        f"again, what has come is kept; or put the file into {folder} by hand"
    )


@dataclass(frozen=True)
class Resuming:
    """A downloader for pooch, whose own cannot resume. What has come is kept in `part`, also
    across processes, and only the rest is asked for; a server that cannot send a part sends all.
    pooch checks the hash of the whole, so that no wrong beginning can stay."""

    part: Path
    bar: bool

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                self.part.unlink()  # as long as the file or longer: it was no beginning of it
            answer.raise_for_status()
            going_on = answer.status_code == requests.codes.partial_content
            left = int(answer.headers.get("Content-Length", 0))
            self._receive(answer, have if going_on else 0, left)
        shutil.move(self.part, output_file)

    def _receive(self, answer: requests.Response, have: int, left: int) -> None:
        name, disable = self.part.name.strip("."), not self.bar
        with (
            self.part.open("ab" if have else "wb") as file,
            tqdm(
                total=have + left, initial=have, unit="B", unit_scale=True, desc=name,
                disable=disable,
            ) as bar,
        ):  # fmt: skip
            for block in answer.iter_content(BLOCK):
                file.write(block)
                bar.update(len(block))
