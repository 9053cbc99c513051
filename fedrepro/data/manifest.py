"""The manifest of official files, and which of its sources is present under a data root."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedrepro.base.errors import FedReproError

DIGITS = tuple("0123456789")
Counts = tuple[int, int, int]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Entry):
    """One file or folder. ``{domain}`` in a name stands for each folder name of the domain."""

    role: str
    names: tuple[str, ...] = Field(min_length=1)
    folder: bool = False
    optional: bool = False
    bytes: int | None = Field(None, ge=0)
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    md5: str | None = Field(None, pattern="^[0-9a-f]{32}$")
    mirrors: tuple[str, ...] = ()

    def known(self) -> str | None:
        """The expected hash as ``algorithm:hex``, sha256 if published, else md5, else None."""
        if self.sha256:
            return f"sha256:{self.sha256}"
        return f"md5:{self.md5}" if self.md5 else None


class Source(_Entry):
    """One way a domain comes: a reader and the files it needs, several of a role alternatives.

    totals: allowed (train, test, validation) counts; about: the counts published without
    certainty, told and not enforced; cut, deviations and subset: see DomainArrays.
    """

    name: str
    reader: str
    files: tuple[FileEntry, ...] = Field(min_length=1)
    totals: tuple[Counts, ...] = ()
    about: Counts | None = None
    cut: tuple[int, int] | None = None
    deviations: tuple[str, ...] = ()
    subset: bool = False


class DomainEntry(_Entry):
    """Folder names of a domain and its images per class, in the order of the classes.

    keep: the classes it consists of, a subset of its collection's by name or its first so many.
    published: how many images a paper found in it, told where ours differ and not enforced.
    """

    folders: tuple[str, ...] = Field(min_length=1)
    counts: tuple[int, ...] | None = None
    keep: str | int | None = None
    published: int | None = None


class Collection(_Entry):
    """Domains that come together, with licence, citation and the way to get them by hand.

    weights: they are no domains of images but encoders.
    """

    licence: str
    citation: str
    manual: str
    places: tuple[str, ...]
    domains: dict[str, DomainEntry]
    sources: tuple[Source, ...]
    classes: tuple[str, ...] = DIGITS
    spellings: dict[str, tuple[str, ...]] = {}
    list_sha256: dict[str, str] = {}
    subsets: dict[str, tuple[str, ...]] = {}
    weights: bool = False

    def classes_of(self, domain: str) -> tuple[str, ...]:
        """The classes a domain consists of, in label order."""
        keep = self.domains[domain].keep
        if keep is None:
            return self.classes
        return self.subsets[keep] if isinstance(keep, str) else self.classes[:keep]


@dataclass(frozen=True)
class Located:
    """A source of a domain and what of it was found: role -> (entry, path). folder: the domain's
    name in the release's files."""

    domain: str
    source: Source
    found: dict[str, tuple[FileEntry, Path]]
    missing: tuple[FileEntry, ...]
    folder: str

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def path(self) -> Path | None:
        """The first file found, for display."""
        return next((path for _, path in self.found.values()), None)


@dataclass(frozen=True)
class Manifest:
    """Collections by name."""

    collections: dict[str, Collection]

    def domains(self) -> tuple[str, ...]:
        """Every domain that is read from files."""
        return tuple(d for c in self.collections.values() if not c.weights for d in c.domains)

    def encoders(self) -> tuple[str, ...]:
        """Every network whose weights are read from files."""
        return tuple(d for c in self.collections.values() if c.weights for d in c.domains)

    def cut_domains(self) -> tuple[str, ...]:
        """Every domain that also comes as a subset of its release."""
        cut = [c for c in self.collections.values() if any(s.subset for s in c.sources)]
        return tuple(domain for collection in cut for domain in collection.domains)

    def collection(self, domain: str) -> Collection:
        """The collection a domain belongs to."""
        for collection in self.collections.values():
            if domain in collection.domains:
                return collection
        raise FedReproError(f"unknown domain {domain!r}; choose from {', '.join(self.domains())}")

    def locate(self, domain: str, root: Path) -> Located:
        """The first complete source under root, else the one with the most files found."""
        collection = self.collection(domain)
        found = [_search(collection, domain, source, root) for source in collection.sources]
        for located in found:
            if located.complete:
                return located
        # max keeps the first of equals, so that with nothing present the full release is named
        return max(found, key=lambda located: len(located.found))


def _search(collection: Collection, domain: str, source: Source, root: Path) -> Located:
    """Look for each role of a source in the places of its collection."""
    found: dict[str, tuple[FileEntry, Path]] = {}
    wanted: dict[str, FileEntry] = {}
    for entry in source.files:
        if entry.role in found:
            continue
        wanted.setdefault(entry.role, entry)
        path = _first(collection, domain, entry, root)
        if path is not None:
            found[entry.role] = (_with_list_hash(collection, entry, path), path)
    needed = [entry for role, entry in wanted.items() if role not in found and not entry.optional]
    some = [e for role, e in wanted.items() if role not in found and e.optional]
    # optional files come together: some of them without the others is a cut set, not a choice
    if any(wanted[role].optional for role in found):
        needed += some
    return Located(domain, source, found, tuple(needed), collection.domains[domain].folders[0])


def _with_list_hash(collection: Collection, entry: FileEntry, path: Path) -> FileEntry:
    """Split lists carry one hash per domain, kept apart from the entry they share."""
    known = collection.list_sha256.get(path.name)
    return entry if known is None else entry.model_copy(update={"sha256": known})


def expanded(collection: Collection, domain: str, entry: FileEntry) -> tuple[str, ...]:
    """The names of an entry for one domain."""
    folders = collection.domains[domain].folders
    return tuple(
        name.replace("{domain}", folder)
        for name in entry.names
        for folder in (folders if "{domain}" in name else ("",))
    )


def _first(collection: Collection, domain: str, entry: FileEntry, root: Path) -> Path | None:
    for place in collection.places:
        for name in expanded(collection, domain, entry):
            path = root / place / name
            if (path.is_dir() if entry.folder else path.is_file()) and _exact(path):
                return path
    return None


def _exact(path: Path) -> bool:
    """Names differ by case too (PACS.tar, pacs.tar), also where the file system ignores it."""
    try:
        return path.name in os.listdir(path.parent)
    except OSError:
        return True


def parse_manifest(text: str) -> Manifest:
    """A manifest from TOML; a mistake in it is one line naming the entry."""
    try:
        raw = tomllib.loads(text)
        return Manifest({name: Collection.model_validate(body) for name, body in raw.items()})
    except tomllib.TOMLDecodeError as error:
        raise FedReproError(f"the manifest is not TOML ({error}); correct it") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FedReproError(f"manifest entry {where}: {first['msg']}; correct it") from None


@cache
def default_manifest() -> Manifest:
    """The manifest that comes with the package."""
    return parse_manifest((package_files("fedrepro.data") / "manifest.toml").read_text("utf-8"))
