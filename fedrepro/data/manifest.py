"""The folders of data and of prepared arrays; the manifest of official files: which source of a
domain is under a data root, and whether its files match."""

import hashlib
import json
import os
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

import pooch
from pydantic import BaseModel, Field

from fedrepro.base import files
from fedrepro.base.errors import FedReproError, Missing, need
from fedrepro.data.pictures import list_pictures, reading

DEFAULT = "~/.cache/fedrepro"
DATA, CACHE = "FEDREPRO_DATA", "FEDREPRO_CACHE"

DIGITS = tuple("0123456789")
Root = Path | str | None  # a data root; None: the default
Counts = tuple[int, int, int]
HashState = Literal["good", "bad", "unknown", "missing", "generated"]


def data_root(root: Root = None, create: bool = False) -> Path:
    """The folder with the official files ($FEDREPRO_DATA, else ~/.cache/fedrepro/data).
    It may be read-only. A named folder must exist unless ``create``; the default may be absent."""
    given, say = root or os.environ.get(DATA), f"--root or {DATA}"
    path = files.full(given or f"{DEFAULT}/data")
    here, said = path.exists(), f"data root {path}"
    need(path.is_dir() or not here, f"{said} is a file; give a folder with {say}")
    if create:
        return files.make_folder(path, f"give a folder you may write to with {say}")
    need(here or not given, f"{said} does not exist; create it or give another with {say}")
    readable = not here or os.access(path, os.R_OK | os.X_OK)
    need(readable, f"{said} cannot be read; change its permissions")
    return path


def cache_root() -> Path:
    """The folder for prepared arrays ($FEDREPRO_CACHE, else ~/.cache/fedrepro/prepared), made."""
    path = files.full(os.environ.get(CACHE) or f"{DEFAULT}/prepared")
    return files.make_folder(path, f"give a folder you may write to with {CACHE}")


def hash_of(*key: Any) -> str:
    """The hash of all that arrays depend on: sha256 hex over the key as JSON."""
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()


class FileEntry(BaseModel, frozen=True, extra="forbid"):
    """One file or folder. ``{domain}`` in a name is replaced by each folder name of the domain."""

    role: str
    names: tuple[str, ...] = Field(min_length=1)
    folder: bool = False
    optional: bool = False
    bytes: int | None = Field(None, ge=0)
    hash: str | None = Field(None, pattern="^(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})$")
    mirror: str = ""


class Source(BaseModel, frozen=True, extra="forbid"):
    """One release of a domain: a reader and its files; several files of a role are alternatives.
    totals: allowed (train, test, validation) counts; about: published ones that are not certain,
    reported and not enforced; cut, deviations and subset: see DomainArrays."""

    name: str
    reader: str
    files: tuple[FileEntry, ...] = Field(min_length=1)
    totals: tuple[Counts, ...] = ()
    about: Counts | None = None
    cut: tuple[int, int] | None = None
    deviations: tuple[str, ...] = ()
    subset: bool = False


class DomainEntry(BaseModel, frozen=True, extra="forbid"):
    """Folder names of a domain and its images per class, in the order of the classes.
    keep: its classes, a subset of its collection's by name, or the number of first ones.
    published: a paper's number of images, reported if ours differs and not enforced."""

    folders: tuple[str, ...] = Field(min_length=1)
    counts: tuple[int, ...] | None = None
    keep: str | int | None = None
    published: int | None = None


class Collection(BaseModel, frozen=True, extra="forbid"):
    """Domains of images, or encoders, that are released together; how to get them by hand."""

    licence: str
    citation: str
    manual: str
    places: tuple[str, ...]
    domains: dict[str, DomainEntry]
    sources: tuple[Source, ...]
    classes: tuple[str, ...] = DIGITS
    spellings: dict[str, tuple[str, ...]] = {}
    list_hashes: dict[str, str] = {}
    subsets: dict[str, tuple[str, ...]] = {}

    def classes_of(self, domain: str) -> tuple[str, ...]:
        """A domain's classes, in label order."""
        keep = self.domains[domain].keep
        return self.subsets[keep] if isinstance(keep, str) else self.classes[:keep]


class Dataset(BaseModel, frozen=True, extra="forbid"):
    """Domains that are used together, and the sizes in pixels that the papers use. named_only: it
    is a subset of files that an earlier data set has."""

    domains: tuple[str, ...]
    sizes: tuple[int, ...]
    named_only: bool = False


@dataclass(frozen=True)
class Located:
    """A source of a domain and its files that were found under root, by role."""

    domain: str
    collection: Collection
    source: Source
    root: Path
    files: dict[str, Path]
    entries: dict[str, FileEntry]
    missing: tuple[FileEntry, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        return self.collection.domains[self.domain].folders

    @property
    def classes(self) -> tuple[str, ...]:
        return self.collection.classes_of(self.domain)


def search(collection: Collection, domain: str, source: Source, root: Path) -> Located:
    """Look for each role of a source in the places of its collection."""
    found: dict[str, Path] = {}
    wanted: dict[str, FileEntry] = {}  # the first of a role, or the one that was found
    folders = collection.domains[domain].folders
    for entry in source.files:
        wanted.setdefault(entry.role, entry)
        names = [name.replace("{domain}", folder) for name in entry.names for folder in folders]
        paths = (root / place / name for place in collection.places for name in names)
        path = next((path for path in paths if _is_there(path, entry.folder)), None)
        if path is not None and entry.role not in found:
            # split lists carry one hash per domain, kept apart from the entry they share
            known = collection.list_hashes.get(path.name, entry.hash)
            wanted[entry.role] = entry.model_copy(update={"hash": known})
            found[entry.role] = path
    # optional files belong together: some without the others are an incomplete set
    every = any(wanted[role].optional for role in found)
    lacking = [entry for role, entry in wanted.items() if role not in found]
    needed = sorted((e for e in lacking if every or not e.optional), key=lambda e: e.optional)
    return Located(domain, collection, source, root, found, wanted, tuple(needed))


def _is_there(path: Path, folder: bool) -> bool:
    there = path.is_dir() if folder else path.is_file()
    with suppress(OSError):
        # names differ by case too (PACS.tar, pacs.tar), also where the file system ignores it
        return there and path.name in os.listdir(path.parent)
    return there


_MANIFEST = tomllib.loads((package_files("fedrepro.data") / "manifest.toml").read_text("utf-8"))
DATASETS = {name: Dataset.model_validate(one) for name, one in _MANIFEST.pop("datasets").items()}
COLLECTIONS = {name: Collection.model_validate(body) for name, body in _MANIFEST.items()}


def collection_of(domain: str) -> Collection:
    return next(c for c in COLLECTIONS.values() if domain in c.domains)


def locate(domain: str, root: Path) -> Located:
    """The first complete source under root, else the one with the most files found."""
    collection = collection_of(domain)
    found = [search(collection, domain, source, root) for source in collection.sources]
    # max keeps the first of equals, so that with nothing present the full release is named
    return max(found, key=lambda one: len(one.files) if one.missing else 1000)


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    """A file's hash, hex; a folder's is over the sorted (relative name, size, content's hash) of
    its pictures. Computed once, until sizes or times change."""
    pictures = list_pictures(path) if path.is_dir() else [path]
    with reading(path):
        stats = [(p.relative_to(path).as_posix(), p.stat()) for p in pictures]
        stamp = [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in stats]
        key = hashlib.sha256(f"{path.resolve()} {algorithm}".encode()).hexdigest()[:32]
        note = cache_root() / "verified" / f"{key}.json"
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(note.read_text("utf-8"))
            if known["stamp"] == stamp:
                return str(known["hash"])
        hashes: list[str] = [pooch.file_hash(str(picture), algorithm) for picture in pictures]
        if path.is_dir():
            rows = zip(stats, hashes, strict=True)
            lines = "".join(f"{name}\0{s.st_size}\0{hash}\n" for (name, s), hash in rows)
            hashes = [hashlib.new(algorithm, lines.encode()).hexdigest()]
    with suppress(FedReproError):  # without a writable cache it only takes longer
        files.write_json(note, {"path": str(path), "stamp": stamp, "hash": hashes[0]})
    return hashes[0]


def verify_file(entry: FileEntry, path: Path, domain: str) -> tuple[str, HashState]:
    """A found file's sha256 and whether it matches the manifest (bad raises FedReproError)."""
    algorithm, _, expected = (entry.hash or "sha256:").partition(":")
    found = file_hash(path, algorithm)
    if found == expected or not expected:
        return file_hash(path), "good" if expected else "unknown"
    size = path.stat().st_size
    length = f" ({size} bytes, expected {entry.bytes})" if entry.bytes not in (None, size) else ""
    raise FedReproError(
        f"{path}: {algorithm} is {found}, expected {expected}{length}; the file is incomplete "
        f"or changed: `fedrepro data fetch {domain}` gets it again"
    )


def verify(located: Located) -> tuple[dict[str, str], HashState]:
    """Role -> sha256 of every file of a complete source; the state is unknown if one of them is.
    FedReproError: a missing, truncated or changed file."""
    domain = located.domain
    if located.missing:
        entry = located.missing[0]
        name = entry.names[0].replace("{domain}", located.folders[0]) + "/" * entry.folder
        expected = f"expected hash {entry.hash or 'not published'}"
        raise Missing(
            f"{domain}: {name} is missing under {located.root} ({expected}, found none); run "
            f"`fedrepro data fetch {domain}`"
        )
    entries, files = located.entries, located.files.items()
    checked = {role: verify_file(entries[role], path, domain) for role, path in files}
    good = all(state == "good" for _, state in checked.values())
    return {role: sha256 for role, (sha256, _) in checked.items()}, "good" if good else "unknown"
