"""Is a file the one the manifest names? Hashes are remembered by (path, size, times)."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedrepro.data.manifest import FileEntry, Located
from fedrepro.data.readers.common import reading
from fedrepro.data.readers.trees import list_pictures
from fedrepro.errors import FedReproError

HashState = Literal["good", "bad", "unknown", "missing", "generated"]
CHUNK = 2**20


@dataclass(frozen=True)
class Hashes:
    """sha256 and md5 hex of a file's content; a folder has the sha256 of its listing alone."""

    sha256: str
    md5: str


def file_hashes(path: Path, cache: Path) -> Hashes:
    """The hashes of a file, computed once for as long as its size and times stay."""
    with reading(path):
        stat = path.stat()
    stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    remembered = _recall(path, stamp, cache)
    if remembered is not None:
        return remembered
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with reading(path), path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            md5.update(chunk)
    return _remember(path, stamp, Hashes(sha256.hexdigest(), md5.hexdigest()), cache)


def folder_hashes(folder: Path, cache: Path) -> Hashes:
    """sha256 over the sorted (relative name, size, content sha256) of a folder's pictures."""
    stamp = hashlib.sha256()
    pictures = list_pictures(folder)
    names = [path.relative_to(folder).as_posix() for path in pictures]
    for path, name in zip(pictures, names, strict=True):
        with reading(path):
            stat = path.stat()
        stamp.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}\n".encode())
    remembered = _recall(folder, [stamp.hexdigest()], cache)
    if remembered is not None:
        return remembered
    total = hashlib.sha256()
    for path, name in zip(pictures, names, strict=True):
        with reading(path):
            content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        total.update(f"{name}\0{len(content)}\0{digest}\n".encode())
    return _remember(folder, [stamp.hexdigest()], Hashes(total.hexdigest(), ""), cache)


def _note(path: Path, cache: Path) -> Path:
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    return cache / "verified" / f"{key}.json"


def _recall(path: Path, stamp: list[int] | list[str], cache: Path) -> Hashes | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(_note(path, cache).read_text("utf-8"))
        if note["stamp"] == stamp:
            return Hashes(str(note["sha256"]), str(note["md5"]))
    return None


def _remember(path: Path, stamp: list[int] | list[str], hashes: Hashes, cache: Path) -> Hashes:
    """Keep a note; a cache that cannot be written only costs time, so errors are let go."""
    note = _note(path, cache)
    facts = {"path": str(path), "stamp": stamp, "sha256": hashes.sha256, "md5": hashes.md5}
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=note.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(facts, file)
            os.replace(name, note)
        finally:
            Path(name).unlink(missing_ok=True)
    return hashes


def verify_file(entry: FileEntry, path: Path, domain: str, cache: Path) -> tuple[str, HashState]:
    """A found file's sha256 and whether it is the manifest's (bad raises FedReproError)."""
    if entry.folder:
        return folder_hashes(path, cache).sha256, "unknown"
    hashes = file_hashes(path, cache)
    known = entry.known()
    if known is None:
        return hashes.sha256, "unknown"
    algorithm, _, expected = known.partition(":")
    found = hashes.sha256 if algorithm == "sha256" else hashes.md5
    if found == expected:
        return hashes.sha256, "good"
    size = path.stat().st_size
    length = f" ({size} bytes, expected {entry.bytes})" if entry.bytes not in (None, size) else ""
    raise FedReproError(
        f"{path}: {algorithm} is {found}, expected {expected}{length}; the file is cut or altered: "
        f"`fedrepro data fetch {domain}` gets it again"
    )


def verify(located: Located, root: Path, cache: Path) -> tuple[dict[str, str], HashState]:
    """Role -> sha256 of every file of a complete source; the state is unknown if one of them is.

    A missing, cut or altered file raises FedReproError.
    """
    if not located.complete:
        raise missing_error(located, root)
    hashes, states = {}, []
    for role, (entry, path) in located.found.items():
        hashes[role], state = verify_file(entry, path, located.domain, cache)
        states.append(state)
    return hashes, worst(states)


def worst(states: Iterable[HashState]) -> HashState:
    """good only if all are."""
    return "good" if all(state == "good" for state in states) else "unknown"


def missing_error(located: Located, root: Path) -> FedReproError:
    """One line for the first missing file of a source."""
    entry = located.missing[0]
    name = entry.names[0].replace("{domain}", located.folder)
    expected = entry.known() or "not published"
    return FedReproError(
        f"{located.domain}: {name}{'/' if entry.folder else ''} is missing under {root} (expected "
        f"hash {expected}, found none); run `fedrepro data fetch {located.domain}`"
    )
