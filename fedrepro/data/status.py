"""What is here, how to get the rest, and turning it into arrays: the commands behind
``fedrepro data status|fetch|prepare``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrepro.base.errors import FedReproError
from fedrepro.data.cache import open_arrays
from fedrepro.data.domains import (
    ALL_ENCODERS,
    DATASETS,
    GENERATED,
    STANDINS,
    SUBSETS,
    check_size,
    domain_names,
    fill_cache,
    generator,
    make_plan,
)
from fedrepro.data.encoders import ENCODERS, convert, encoder_plan, opened
from fedrepro.data.manifest import Collection, Located, Manifest, default_manifest
from fedrepro.data.roots import cache_root, data_root
from fedrepro.data.verify import HashState, verify

SIZES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("minidigits", "digits5", "digits5-standin"), (28,)),
    **dict.fromkeys(("digits4", "digits4-standin", "cifar10", "cifar100"), (32,)),
    **dict.fromkeys(("office10", "pacs"), (64, 32)),  # ADCOL and FedPall, the FPL family
    "domainnet": (64,),
    **dict.fromkeys(SUBSETS, (224,)),
}
Report = Callable[[str], None]


@dataclass(frozen=True)
class DomainStatus:
    """A row of ``fedrepro data status``: a domain or an encoder.

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
    """A row of ``fedrepro data prepare``; fresh is False where the arrays were there already. An
    encoder has the size of its input and no images."""

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
    sets = {**DATASETS, ALL_ENCODERS: tuple(ENCODERS)}
    datasets = tuple(dataset for dataset, domains in sets.items() if name in domains)
    state: HashState
    images: int | None
    if name in GENERATED:
        found, images = True, len(generator().labels_and_parts(name)[0])
        path, source, state, note = None, "generator", "generated", STANDINS.get(name, "")
        licence = "those of scikit-learn's pictures and fonts"
    else:
        collection, located = manifest.collection(name), manifest.locate(name, root)
        found, path, licence = located.complete, located.path, collection.licence
        source = located.source.name if located.found else ""
        images = _images(located, collection) if found else None
        note = "; ".join(located.source.deviations)
        try:
            state = verify(located, root, cache)[1]
        except FedReproError as error:
            state, note = ("bad" if found else "missing"), str(error)
    return DomainStatus(name, datasets, found, path, source, state, images, licence, note)


def _images(located: Located, collection: Collection) -> int | None:
    counts, totals = collection.domains[located.domain].counts, located.source.totals
    if counts is not None:
        return sum(counts)
    return sum(totals[0]) if len(totals) == 1 else None


def prepare(
    names: Iterable[str] = (),
    sizes: Iterable[int] = (),
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
    report: Report | None = None,
) -> list[Prepared]:
    """Turn files into array files, encoders' into tensor files. Sizes: those given, else the ones
    the papers use (``SIZES``).

    With no names, every domain whose files are present is prepared; a named one that is missing
    is an error. report gets one line a domain as it is done.
    """
    names, sizes, rows = list(names), list(sizes), []
    for size in sizes:
        check_size(size)
    here = None if names else {r.domain for r in status((), root, cache, manifest) if r.present}
    domains = [name for name in domain_names(names) if here is None or name in here]
    for name, size in ((n, s) for n in domains for s in _sizes(n, sizes, names)):
        started = time.perf_counter()
        path, images, fresh = _prepare(name, size, root, cache, manifest)
        seconds = time.perf_counter() - started
        rows.append(Prepared(name, size, path, images, path.stat().st_size, fresh, seconds))
        if report is not None:
            what = "prepared" if fresh else "already there"
            kind = "weights" if name in ENCODERS else f"{images} images"
            report(f"{name} {size}x{size}: {kind}, {what}, {seconds:.1f} s")
    return rows


def _prepare(
    name: str,
    size: int,
    root: Path | str | None,
    cache: Path | str | None,
    manifest: Manifest | None,
) -> tuple[Path, int, bool]:
    """The file, its images, and whether it was made now."""
    if name in ENCODERS:
        weights = encoder_plan(name, root, cache, manifest)
        fresh = opened(weights) is None
        if fresh:
            convert(weights)
        return weights.path, 0, fresh
    plan = make_plan(name, size, root, cache, manifest)
    found = open_arrays(plan.path, plan.hash)
    images = fill_cache(plan) if found is None else len(found[0].labels)
    return plan.path, images, found is None


def _sizes(name: str, given: Sequence[int], asked: Sequence[str]) -> list[int]:
    """The sizes given, else those of the data sets that were asked for, or of all that hold the
    domain; an encoder has its own."""
    if name in ENCODERS:
        return [ENCODERS[name].size]
    holding = [dataset for dataset in DATASETS if name in DATASETS[dataset]]
    sets = [dataset for dataset in holding if dataset in asked] or holding
    return list(dict.fromkeys(given or (size for d in sets for size in SIZES[d])))
