"""Domains as arrays: official files, a folder or the generator -> a file in the cache -> arrays.
The cache has a safetensors file for each domain and size, memory-mapped, with a checksum. A process
reads a file completely once before it uses it: 0.08 s for MNIST's 55 MB, on a busy core."""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from fedrepro.base import files
from fedrepro.base.errors import FedReproError, need, one_of
from fedrepro.data import folders, manifest
from fedrepro.data.manifest import Root, cache_root, data_root, hash_of, locate, verify
from fedrepro.data.readers import READER_VERSION, READERS, Decoded

DATASETS = {name: dataset.domains for name, dataset in manifest.DATASETS.items()}
# Every domain of every data set, each once.
DOMAINS = tuple(dict.fromkeys(domain for domains in DATASETS.values() for domain in domains))
STANDINS = {
    "synthdigits-standin": "SynthDigits: generated stand-in, not the published images",
    "syn-standin": "SYN: generated stand-in, not the published images",
}
GENERATED = (*DATASETS["minidigits"], *STANDINS)
ENCODERS = tuple(manifest.COLLECTIONS["encoders"].domains)  # found and verified as domains are
MAX_SIZE = 1024
WRITABLE = "free some space or set FEDREPRO_CACHE to a folder you may write to"


@dataclass(frozen=True, kw_only=True)
class DomainArrays(Decoded):
    """One domain's images at one size, memory-mapped. Order: digits as released, train then test;
    folders by class, then file name. hash: sha256 hex over (name, the source files' sha256, reader
    and its version, size). standin: generated, replaces a real domain. cut: (train end, test start)
    if the domain may only be split there. deviations: clauses to print with numbers made from these
    images. subset: images of the release are left out. fresh: not from the cache."""

    name: str
    classes: tuple[str, ...]
    hash: str
    standin: bool = False
    cut: tuple[int, int] | None = None
    deviations: tuple[str, ...] = ()
    subset: bool = False
    fresh: bool = False


def domain_names(names: Iterable[str]) -> tuple[str, ...]:
    """Data sets, domains and encoders -> domains and encoders, each once. Without names: all, but
    only the first of several subsets of the same files."""
    singles = (*DOMAINS, *ENCODERS)
    known = {**DATASETS, "encoders": ENCODERS, **{name: (name,) for name in singles}}
    found: list[str] = []
    for name in names:
        if folders.kind(name) != name:
            raise FedReproError(f"{name} is read when a run needs it; nothing to fetch or prepare")
        found += known[one_of(name, known, "data set or domain")]
    usual = (d for one in manifest.DATASETS.values() if not one.named_only for d in one.domains)
    return tuple(dict.fromkeys(found or [*usual, *ENCODERS]))


def load_dataset(dataset: str, size: int, root: Root = None) -> dict[str, DomainArrays]:
    """A data set's domains in their order; for a folder, its domains when it was first read.
    FedReproError: an unknown name, and as `load_domain`."""
    if (tree := folders.opened(dataset)) is not None:
        return {name: _of_folder(tree, name, size) for name in tree.hashes}
    one_of(dataset, (*DATASETS, f"{folders.FOLDER}:PATH"), "data set")
    return {name: load_domain(name, size, root) for name in DATASETS[dataset]}


def load_domain(name: str, size: int, root: Root = None) -> DomainArrays:
    """A domain's arrays at size x size, prepared into the cache if they are not there yet.
    FedReproError: an unknown name, a missing, truncated or changed file, a data root that is not a
    folder, or a cache that cannot be written."""
    one_of(name, DOMAINS, "domain")
    if name in GENERATED:
        draw = generator()
        more: dict[str, Any] = {"classes": manifest.DIGITS}
        if name in STANDINS:
            more |= {"standin": True, "deviations": (STANDINS[name],)}
        hash = draw.generation_hash(name, size)
        return _prepared(name, size, hash, lambda: Decoded(*draw.generate(name, size)), **more)
    located = locate(name, data_root(root))
    hashes, _ = verify(located)
    source = located.source
    hash = hash_of(name, sorted(hashes.items()), source.reader, READER_VERSION, size)
    more = {"classes": located.classes, "cut": source.cut, "subset": source.subset}
    read = partial(READERS[source.reader], located, size)
    arrays = _prepared(name, size, hash, read, **more)
    return replace(arrays, deviations=source.deviations + _counted(located, arrays))


def _of_folder(tree: folders.Tree, name: str, size: int) -> DomainArrays:
    version = [READER_VERSION, folders.VERSION]
    hash = hash_of(name, tree.classes, tree.hashes[name], folders.FOLDER, version, size)
    # in the file's name, because a domain's own may be any
    read = partial(tree.read, name, size)
    return replace(_prepared(folders.FOLDER, size, hash, read, classes=tree.classes), name=name)


def _prepared(
    name: str, size: int, hash: str, read: Callable[[], Decoded], **more: Any
) -> DomainArrays:
    """The arrays from the cache, else read now and written there."""
    said = f"image size {size} is not in 1..{MAX_SIZE}; choose 28, 32, 64 ..."
    need(1 <= size <= MAX_SIZE, said)
    path, fresh = cache_path(name, size, hash), False
    if (found := open_arrays(path)) is None:
        damaged = path.exists()
        with alone(path):
            if fresh := damaged or (found := open_arrays(path)) is None:
                write_signed(path, vars(read()))
                found = open_arrays(path)
    need(found, f"{path} cannot be read back; delete it and prepare again")
    return DomainArrays(**found or {}, name=name, hash=hash, fresh=fresh, **more)


def alone(path: Path) -> AbstractContextManager[None]:
    """Inside, no other process makes this file of the cache."""
    busy = f"another process makes {path.name}"
    return files.alone(path.with_suffix(".lock"), WRITABLE, busy)


def cache_path(name: str, size: int, hash: str) -> Path:
    """An array file's path. The hash is in its name, so other files or readers get new ones."""
    return cache_root() / f"{name}-{size}-{hash[:16]}.safetensors"


def write_signed(path: Path, arrays: Mapping[str, Any], mend: str = WRITABLE, **notes: str) -> None:
    """Write arrays into one file with its checksum, and notes. It is complete or absent."""
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}

    def write(file: Path) -> None:
        save_file(whole, file, metadata={**files.UNSIGNED, **notes})
        files.sign(file)

    files.write(path, write, mend)


# Once for each file and process, while it does not change.
_is_whole = lru_cache(lambda path, inode, changed, size: files.is_whole(path))


def open_arrays(path: Path) -> dict[str, Any] | None:
    """Arrays by name, memory-mapped read-only. None, which means prepare again, if the file is
    absent, damaged (which is said) or older than checksums. Each process reads a file once."""
    if not path.exists():
        return None
    facts = path.stat()
    if not _is_whole(path, facts.st_ino, facts.st_mtime_ns, facts.st_size):
        said = f"warning: {path} is damaged (its checksum does not fit); it is made again"
        print(said, file=sys.stderr)  # a warning of Python's would show a line of this file
        return None
    # torch's tensors are views of the mapped file; numpy's would be copies
    with safe_open(str(path), framework="pt") as file:
        arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


def generator() -> Any:
    """The module that draws the generated digits: tools/drawn_digits, of the checkout or wheel."""
    tools = files.CHECKOUT / "tools"
    if (tools / "drawn_digits").is_dir() and str(tools) not in sys.path:
        sys.path.insert(0, str(tools))  # also reaches the processes that draw
    return importlib.import_module("drawn_digits.generator")


def _counted(located: manifest.Located, decoded: Decoded) -> tuple[str, ...]:
    """Compare a source's counts with the manifest's. A difference is an error if the manifest's
    counts are certain, else a deviation."""
    domain, source, classes = located.domain, located.source, located.classes
    entry = located.collection.domains[domain]
    file = next(iter(located.files.values()))
    cut = f"the set is incomplete or changed: `fedrepro data fetch {domain}` explains how to get it"
    found = np.bincount(decoded.labels, minlength=len(classes)).tolist()
    for name, have, want in zip(classes, found, entry.counts or found, strict=True):
        need(have == want, f"{file}: {have} images of {name}, expected {want}; {cut}")
    totals = tuple(np.bincount(decoded.part[decoded.part >= 0], minlength=3).tolist())
    has = f"{totals[0]} training and {totals[1]} test images"
    allowed = " or ".join(f"{train} and {test}" for train, test, _ in source.totals)
    need(totals in (source.totals or [totals]), f"{file}: {has}, expected {allowed}; {cut}")
    further = []
    if source.about not in (None, totals):
        train, test, _ = source.about
        further.append(f"{domain}: {has}, published about {train} and {test}")
    if entry.published not in (None, len(decoded.labels)):
        images = f"{len(decoded.labels):,} images"
        further.append(f"{domain}: {images}, a paper counts {entry.published:,}")
    return tuple(further)
