"""What is here, how to get the rest, and turning it into arrays: the commands behind
``fedrepro data status|fetch|prepare``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fedrepro.data.cache import open_arrays
from fedrepro.data.domains import (
    DATASETS,
    GENERATED,
    MAX_SIZE,
    STANDINS,
    domain_names,
    fill_cache,
    make_plan,
)
from fedrepro.data.manifest import Collection, Located, Manifest, default_manifest
from fedrepro.data.roots import cache_root, data_root
from fedrepro.data.verify import HashState, verify
from fedrepro.errors import FedReproError

SIZES = {"minidigits": 28, "digits5": 28, "digits5-standin": 28, "digits4": 32}
FOLDER_SIZE = 64  # Office-Caltech-10 and PACS in ADCOL and FedPall
Report = Callable[[str], None]


@dataclass(frozen=True)
class DomainStatus:
    """A row of ``fedrepro data status``.

    datasets: the data sets it belongs to; source: which of the manifest's sources was found;
    hash: good, bad, unknown (none published, checked by content), missing or generated;
    images: as the manifest counts them, None where only reading would tell; note: what is wrong,
    or the deviations of the source.
    """

    domain: str
    datasets: tuple[str, ...]
    present: bool
    path: Path | None
    source: str
    hash: HashState
    images: int | None
    licence: str
    note: str


@dataclass(frozen=True)
class Prepared:
    """A row of ``fedrepro data prepare``; fresh is False where the arrays were there already."""

    domain: str
    size: int
    path: Path
    images: int
    bytes: int
    fresh: bool
    seconds: float


def status(
    names: Iterable[str] = (),
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
) -> list[DomainStatus]:
    """One row per domain. A bad or missing file is a row, not an error."""
    domains = domain_names(names)
    manifest = manifest or default_manifest()
    folder = data_root(root) if any(name not in GENERATED for name in domains) else Path()
    return [_status(name, folder, cache_root(cache), manifest) for name in domains]


def _status(name: str, root: Path, cache: Path, manifest: Manifest) -> DomainStatus:
    datasets = tuple(dataset for dataset, domains in DATASETS.items() if name in domains)
    if name in GENERATED:
        return _generated(name, datasets)
    collection, located = manifest.collection(name), manifest.locate(name, root)
    source = located.source.name if located.found else ""
    state: HashState = "missing"
    note = "; ".join(located.source.deviations)
    try:
        _, state = verify(located, root, cache)
    except FedReproError as error:
        state, note = ("bad" if located.complete else "missing"), str(error)
    images = _images(located, collection) if located.complete else None
    return DomainStatus(
        name,
        datasets,
        located.complete,
        located.path,
        source,
        state,
        images,
        collection.licence,
        note,
    )


def _generated(name: str, datasets: tuple[str, ...]) -> DomainStatus:
    from fedrepro.data.generator import labels_and_parts  # fonts and scans: only if asked

    images, licence = len(labels_and_parts(name)[0]), "those of scikit-learn's pictures and fonts"
    return DomainStatus(
        name,
        datasets,
        True,
        None,
        "generator",
        "generated",
        images,
        licence,
        STANDINS.get(name, ""),
    )


def _images(located: Located, collection: Collection) -> int | None:
    counts = collection.domains[located.domain].counts
    if counts is not None:
        return sum(counts)
    totals = located.source.totals
    return sum(totals[0]) if len(totals) == 1 else None


def prepare(
    names: Iterable[str] = (),
    sizes: Iterable[int] = (),
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
    report: Report | None = None,
) -> list[Prepared]:
    """Turn files into array files. Sizes: those given, else the ones the papers use (28 for the
    five-domain digits, 32 for the four-domain ones, 64 for folders).

    With no names, every domain whose files are present is prepared; a named one that is missing
    is an error. report gets one line a domain as it is done.
    """
    names, rows = list(names), []
    for name, size in _jobs(names, list(sizes), root, cache, manifest):
        started = time.perf_counter()
        plan = make_plan(name, size, root, cache, manifest)
        opened = open_arrays(plan.path, plan.hash)
        images = fill_cache(plan) if opened is None else len(opened[0].labels)
        row = Prepared(
            name,
            size,
            plan.path,
            images,
            plan.path.stat().st_size,
            opened is None,
            time.perf_counter() - started,
        )
        rows.append(row)
        if report is not None:
            what = "prepared" if row.fresh else "already there"
            report(f"{name} {size}x{size}: {images} images, {what}, {row.seconds:.1f} s")
    return rows


def _jobs(
    names: list[str],
    sizes: list[int],
    root: Path | str | None,
    cache: Path | str | None,
    manifest: Manifest | None,
) -> list[tuple[str, int]]:
    """(domain, size) pairs, each once."""
    for size in sizes:
        if not 1 <= size <= MAX_SIZE:
            raise FedReproError(f"image size {size} is not in 1..{MAX_SIZE}; choose 28, 32, 64 ...")
    domains = domain_names(names)
    if not names:
        here = {row.domain for row in status((), root, cache, manifest) if row.present}
        domains = tuple(name for name in domains if name in here)
    jobs = []
    for name in domains:
        asked = [d for d in (names or DATASETS) if d == name or name in DATASETS.get(d, ())]
        jobs += [(name, size) for size in sizes or _default_sizes(name, asked)]
    return list(dict.fromkeys(jobs))


def _default_sizes(name: str, asked: list[str]) -> list[int]:
    """The sizes of the data sets that were asked for, or of all that hold the domain."""
    sets = [d for d in asked if d in DATASETS] or [d for d in DATASETS if name in DATASETS[d]]
    return list(dict.fromkeys(SIZES.get(d, FOLDER_SIZE) for d in sets))
