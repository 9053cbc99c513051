"""Is a file the one the manifest names? Hashes are remembered by (path, size, times)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.data.manifest import FileEntry, Located
from fedrepro.data.readers.common import reading
from fedrepro.data.readers.trees import list_pictures

HashState = Literal["good", "bad", "unknown", "missing", "generated"]


@dataclass(frozen=True)
class Hashes:
    """sha256 and md5 hex of a file's content; a folder has the sha256 of its listing alone."""

    sha256: str
    md5: str


def file_hashes(path: Path, cache: Path) -> Hashes:
    """The hashes of a file, computed once for as long as its size and times stay."""

    def compute() -> Hashes:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            weak = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
            return Hashes(sha256, weak.hexdigest())

    with reading(path):
        return _once(path, _stamp(path), cache, compute)


def folder_hashes(folder: Path, cache: Path) -> Hashes:
    """sha256 over the sorted (relative name, size, content sha256) of a folder's pictures."""
    pictures = {p.relative_to(folder).as_posix(): p for p in list_pictures(folder)}

    def compute() -> Hashes:
        total = hashlib.sha256()
        for name, path in pictures.items():
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            total.update(f"{name}\0{len(content)}\0{digest}\n".encode())
        return Hashes(total.hexdigest(), "")

    with reading(folder):
        stamps = json.dumps([[name, *_stamp(path)] for name, path in pictures.items()])
        stamp = hashlib.sha256(stamps.encode()).hexdigest()
        return _once(folder, [stamp], cache, compute)


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _once(
    path: Path, stamp: list[int] | list[str], cache: Path, compute: Callable[[], Hashes]
) -> Hashes:
    """What a note of the same stamp says, else computed and noted. A cache that cannot be written
    only costs time, so errors are let go."""
    key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = cache / "verified" / f"{key}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text("utf-8"))
        if known["stamp"] == stamp:
            return Hashes(str(known["sha256"]), str(known["md5"]))
    hashes = compute()
    with suppress(FedReproError):
        files.write_json(note, {"path": str(path), "stamp": stamp, **asdict(hashes)})
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
    return hashes, "good" if all(state == "good" for state in states) else "unknown"


def missing_error(located: Located, root: Path) -> FedReproError:
    """One line for the first missing file of a source."""
    entry = located.missing[0]
    name = entry.names[0].replace("{domain}", located.folder)
    expected = entry.known() or "not published"
    return FedReproError(
        f"{located.domain}: {name}{'/' if entry.folder else ''} is missing under {root} (expected "
        f"hash {expected}, found none); run `fedrepro data fetch {located.domain}`"
    )
