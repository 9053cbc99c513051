"""Domains as arrays: official files (or the generator) -> one cached array file -> DomainArrays."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrepro.base.errors import FedReproError
from fedrepro.data.cache import cache_path, open_arrays, write_arrays
from fedrepro.data.encoders import ENCODERS
from fedrepro.data.manifest import DIGITS, Collection, Located, Manifest, Source, default_manifest
from fedrepro.data.readers import READER_VERSION, READERS, Decoded, ReadSpec
from fedrepro.data.roots import cache_root, data_root
from fedrepro.data.verify import verify


def _domainnet(classes: int, *names: str) -> tuple[str, ...]:
    return tuple(f"{name}-{classes}" for name in names)


# MPFT's order, which says whose images a client gets that swaps some with the next domain's
_MPFT = ("clipart", "painting", "real", "sketch", "quickdraw", "infograph")
DATASETS: dict[str, tuple[str, ...]] = {
    "minidigits": ("mini-scanned", "mini-font", "mini-photo", "mini-street"),
    "digits5": ("mnist", "svhn", "usps", "synthdigits", "mnistm"),
    "digits5-standin": ("mnist", "svhn", "usps", "synthdigits-standin", "mnistm"),
    "digits4": ("mnist", "usps", "svhn", "syn"),
    "digits4-standin": ("mnist", "usps", "svhn", "syn-standin"),
    "office10": ("amazon", "caltech", "dslr", "webcam"),
    "pacs": ("photo", "art_painting", "cartoon", "sketch"),
    "domainnet": _domainnet(10, *sorted(_MPFT)),  # ADCOL's order
    "domainnet-50": _domainnet(50, *_MPFT),
    "domainnet-100": _domainnet(100, *_MPFT),
    "domainnet-150": _domainnet(150, *_MPFT),
    "cifar10": ("cifar10",),
    "cifar100": ("cifar100",),
}
STANDINS = {
    "synthdigits-standin": "SynthDigits: generated stand-in, not the published images",
    "syn-standin": "SYN: generated stand-in, not the published images",
}
GENERATED = (*DATASETS["minidigits"], *STANDINS)
# Other cuts of files that a data set before them has: meant only where they are named.
SUBSETS = ("domainnet-50", "domainnet-100", "domainnet-150")
ALL_ENCODERS = "encoders"  # the name that stands for all of them, as a data set's for its domains
MAX_SIZE = 1024


@dataclass(frozen=True)
class DomainArrays:
    """One domain's images at one size.

    images: uint8 (n, C, size, size), C 1 (grey) or 3, memory-mapped; labels: int64 (n,), 0..K-1;
    part: int8 (n,), 0 official train, 1 official test, 2 official validation, -1 no official parts.
    Order: digits as released, train then test; folders by class, then file name.
    hash: sha256 hex over (name, the source files' sha256, reader and its version, size); the name,
    because several domains may share one archive.
    standin: made by the generator in place of a real domain.
    cut: (train end, test start) where only that index range may split the domain, else None.
    deviations: clauses to print beside numbers made from these images.
    subset: images of the release are left out.
    """

    name: str
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    part: npt.NDArray[np.int8]
    classes: tuple[str, ...]
    hash: str
    standin: bool
    cut: tuple[int, int] | None
    deviations: tuple[str, ...]
    subset: bool = False


@dataclass(frozen=True)
class Plan:
    """What prepare would do for a domain and size: where the arrays go and how they are made."""

    name: str
    size: int
    hash: str
    path: Path
    classes: tuple[str, ...]
    cut: tuple[int, int] | None
    deviations: tuple[str, ...]
    decode: Callable[[], tuple[Decoded, tuple[str, ...]]]  # arrays, further deviations
    subset: bool = False


def all_domains() -> tuple[str, ...]:
    """Every domain of every data set, each once."""
    return tuple(dict.fromkeys(domain for domains in DATASETS.values() for domain in domains))


def domain_names(names: Iterable[str]) -> tuple[str, ...]:
    """Data sets, domains and encoders -> domains and encoders, each once; none given means all,
    but of several cuts of the same files the first alone."""
    found: list[str] = []
    for name in names:
        if name in DATASETS:
            found += DATASETS[name]
        elif name == ALL_ENCODERS:
            found += ENCODERS
        elif name in (*all_domains(), *ENCODERS):
            found.append(name)
        else:
            choices = ", ".join((*DATASETS, ALL_ENCODERS, *all_domains(), *ENCODERS))
            raise FedReproError(f"unknown data set or domain {name!r}; choose from {choices}")
    again = {domain for dataset in SUBSETS for domain in DATASETS[dataset]}
    everything = (*(domain for domain in all_domains() if domain not in again), *ENCODERS)
    return tuple(dict.fromkeys(found)) or everything


def check_size(size: int) -> None:
    """Refuse an image size that no data set can mean."""
    if not 1 <= size <= MAX_SIZE:
        raise FedReproError(f"image size {size} is not in 1..{MAX_SIZE}; choose 28, 32, 64 ...")


def load_domain(
    name: str,
    size: int,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
) -> DomainArrays:
    """A domain's arrays at size x size, prepared into the cache where they are not there yet.

    Raises FedReproError (one line) for an unknown name, a missing, cut or altered file, a data
    root that is none, or a cache that cannot be written.
    """
    plan = make_plan(name, size, root, cache, manifest)
    opened = open_arrays(plan.path, plan.hash)
    if opened is None:
        fill_cache(plan)
        opened = open_arrays(plan.path, plan.hash)
    if opened is None:
        raise FedReproError(f"{plan.path} cannot be read back; delete it and prepare again")
    decoded, facts = opened
    return DomainArrays(
        name=name,
        images=decoded.images,
        labels=decoded.labels,
        part=decoded.part,
        classes=plan.classes,
        hash=plan.hash,
        standin=name in STANDINS,
        cut=plan.cut,
        deviations=tuple(json.loads(facts["deviations"])),
        subset=plan.subset,
    )


def fill_cache(plan: Plan) -> int:
    """Decode and write a plan's arrays; returns the number of images."""
    decoded, further = plan.decode()
    facts = {
        "domain": plan.name,
        "hash": plan.hash,
        "classes": json.dumps(plan.classes),
        "deviations": json.dumps(plan.deviations + further),
    }
    write_arrays(plan.path, decoded, facts)
    return len(decoded.labels)


def make_plan(
    name: str,
    size: int,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
) -> Plan:
    """Find and verify a domain's files and name its array file; decodes nothing."""
    if name not in all_domains():
        raise FedReproError(f"unknown domain {name!r}; choose from {', '.join(all_domains())}")
    check_size(size)
    cache_folder = cache_root(cache)
    if name in GENERATED:
        return _generated_plan(name, size, cache_folder)
    manifest = manifest or default_manifest()
    collection, folder = manifest.collection(name), data_root(root)
    located = manifest.locate(name, folder)
    hashes, _ = verify(located, folder, cache_folder)
    source = located.source
    key = [name, sorted(hashes.items()), source.reader, READER_VERSION, size]
    hash = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return Plan(
        name=name,
        size=size,
        hash=hash,
        path=cache_path(cache_folder, name, size, hash),
        classes=collection.classes_of(name),
        cut=source.cut,
        deviations=source.deviations,
        decode=lambda: _decode(located, collection, size),
        subset=source.subset,
    )


def generator() -> Any:
    """What draws the generated digits: tools/drawn_digits, of this checkout or of the wheel."""
    tools = Path(__file__).parents[2] / "tools"
    if (tools / "drawn_digits").is_dir() and str(tools) not in sys.path:
        sys.path.insert(0, str(tools))  # also reaches the processes that draw
    try:
        return importlib.import_module("drawn_digits.generator")
    except ModuleNotFoundError as error:
        raise FedReproError(
            f"{', '.join(GENERATED)} are drawn by tools/drawn_digits ({error}); install fedrepro "
            "from a clone of its repository"
        ) from error


def _generated_plan(name: str, size: int, cache: Path) -> Plan:
    draw = generator()

    def decode() -> tuple[Decoded, tuple[str, ...]]:
        return Decoded(*draw.generate(name, size)), ()

    hash = draw.generation_hash(name, size)
    deviations = (STANDINS[name],) if name in STANDINS else ()
    path = cache_path(cache, name, size, hash)
    return Plan(name, size, hash, path, DIGITS, None, deviations, decode)


def _decode(located: Located, collection: Collection, size: int) -> tuple[Decoded, tuple[str, ...]]:
    """Read a located source and hold the counts against the manifest's."""
    entry = collection.domains[located.domain]
    spec = ReadSpec(
        domain=located.domain,
        files={role: path for role, (_, path) in located.found.items()},
        size=size,
        folders=entry.folders,
        classes=collection.classes_of(located.domain),
        spellings=collection.spellings,
        all_classes=collection.classes,
    )
    decoded = READERS[located.source.reader](spec)
    _check_classes(located, decoded, spec.classes, entry.counts)
    further = _check_totals(located, decoded, located.source)
    return decoded, further + _published(located, decoded, entry.published)


def _check_classes(
    located: Located, decoded: Decoded, classes: tuple[str, ...], counts: tuple[int, ...] | None
) -> None:
    if counts is None:
        return
    found = np.bincount(decoded.labels, minlength=len(classes)).tolist()
    for name, have, want in zip(classes, found, counts, strict=True):
        if have != want:
            raise FedReproError(
                f"{located.path}: {have} images of {name}, expected {want}; the set is cut or "
                f"altered: `fedrepro data fetch {located.domain}` tells how to get it"
            )


def _check_totals(located: Located, decoded: Decoded, source: Source) -> tuple[str, ...]:
    """Totals of train, test and validation: an error where they are certain, else a clause."""
    found = tuple(int((decoded.part == part).sum()) for part in (0, 1, 2))
    if source.totals and found not in source.totals:
        raise FedReproError(
            f"{located.path}: {found[0]} training and {found[1]} test images, expected "
            f"{' or '.join(f'{a} and {b}' for a, b, _ in source.totals)}; the set is cut or "
            f"altered: run `fedrepro data fetch {located.domain}`"
        )
    if source.about is not None and found != source.about:
        return (
            f"{located.domain}: {found[0]} training and {found[1]} test images, published about "
            f"{source.about[0]} and {source.about[1]}",
        )
    return ()


def _published(located: Located, decoded: Decoded, published: int | None) -> tuple[str, ...]:
    found = len(decoded.labels)
    if published is None or found == published:
        return ()
    return (f"{located.domain}: {found:,} images, a paper counts {published:,}",)
