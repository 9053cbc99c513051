"""Data sets: official files, a folder or the generator -> uint8 arrays in a cache -> clients. Here:
the commands ``fedrepro data``, which say what is here, get the rest and prepare arrays."""

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pooch
import requests

from fedrepro.base.errors import FedReproError, one_line
from fedrepro.data import domains, folders, manifest
from fedrepro.data.domains import DATASETS, ENCODERS, GENERATED, STANDINS, domain_names, load_domain
from fedrepro.data.manifest import FileEntry, HashState, collection_of, locate, verify, verify_file

__all__ = ["DATASETS", "ENCODERS", "fetch", "load_domain", "prepare", "status"]

TIMEOUT = 60  # seconds without a byte
NO_PICKLES = "is one of FedBN's prepared files, a pickle, which may run code: it is not read"


@dataclass(frozen=True)
class DomainStatus:
    """A row of ``fedrepro data status``: a domain or an encoder. source: the one found; hash:
    unknown if none is published (the content is checked); images: None if only reading counts them;
    note: what is wrong, or the source's deviations."""

    domain: str
    present: bool
    path: Path | None
    source: str
    hash: HashState
    images: int | None
    licence: str
    note: str


def status(names: Sequence[str] = (), root: Path | str | None = None) -> list[DomainStatus]:
    """One row per domain, also for ``folder:PATH``. Bad or missing files give a row, no error."""
    own = [name for name in names if folders.kind(name) != name]
    official = [name for name in names if name not in own]
    chosen = domain_names(official) if official or not own else ()
    folder = manifest.data_root(root) if set(chosen) - set(GENERATED) else None
    rows = [_status(name, folder or Path()) for name in chosen]
    return [*rows, *(row for name in own for row in _folder_status(name))]


def _pickled(name: str, root: Path) -> str:
    """What to say of a domain's files as FedBN hands them out, if there are any: digits in such
    folders as data/digit_dataset/MNIST/partitions, and lists of Office's images."""
    places, own = collection_of(name).places, collection_of(name).domains[name].folders
    digits = [f"{Path(place).name}/partitions/train_part*.pkl" for place in places if place]
    lists = [f"{folder}_{part}.pkl" for folder in own for part in ("train", "test")]
    mend = {"; get the official files": digits, ", nor needed beside the folders of images": lists}
    for said, patterns in mend.items():
        deep = (down + pattern for down in ("", "*/", "*/*/") for pattern in patterns)
        if file := min((file for pattern in deep for file in root.glob(pattern)), default=None):
            return f"; {file} {NO_PICKLES}{said}"
    return ""


def _folder_status(name: str) -> list[DomainStatus]:
    """The content of a user's folder, in total and by domain; or what is wrong with it."""
    licence = "your own"
    try:
        tree = folders.opened(folders.named(f"{folders.FOLDER}:{name.partition(':')[2]}"))
        assert tree is not None
    except FedReproError as error:
        path = os.path.expanduser(name.partition(":")[2])  # unlike pathlib's, these never fail
        state: HashState = "bad" if os.path.exists(path) else "missing"
        return [DomainStatus(name, os.path.isdir(path), None, "", state, None, licence, str(error))]
    classes = ", ".join(tree.classes[:10]) + ", ..." * (len(tree.classes) > 10)
    images = sum(tree.counts.values())
    held = f"{len(tree.counts)} domains, {len(tree.classes)} classes ({classes}), {images:,} images"
    whole = DomainStatus(name, True, tree.root, "folder", "unknown", images, licence, held)
    row = replace(whole, note="")
    parts = [replace(row, domain=d, path=tree.root / d, images=n) for d, n in tree.counts.items()]
    return [whole, *parts]


def _status(name: str, root: Path) -> DomainStatus:
    if name in GENERATED:
        drawn = len(domains.generator().labels_and_parts(name)[0])
        licence, note = "those of scikit-learn's pictures and fonts", STANDINS.get(name, "")
        return DomainStatus(name, True, None, "generator", "generated", drawn, licence, note)
    located = locate(name, root)
    here, source, collection = not located.missing, located.source, located.collection
    counts, totals = collection.domains[name].counts, source.totals
    known = sum(counts) if counts else sum(totals[0]) if len(totals) == 1 else None
    note = "; ".join(source.deviations)
    try:
        state = verify(located)[1]
    except FedReproError as error:
        state, note = ("bad" if here else "missing"), str(error)
    if state != "good" and (said := _pickled(name, root)):
        note = f"{note}{said}".removeprefix("; ")
    path = next(iter(located.files.values()), None)
    told, images = source.name if located.files else "", known if here else None
    return DomainStatus(name, here, path, told, state, images, collection.licence, note)


def prepare(
    names: Sequence[str] = (), sizes: Sequence[int] = (), root: manifest.Root = None
) -> Iterator[str]:
    """Turn files into array files; yields one line per finished domain and size. Without sizes:
    the papers'. Without names: all domains with files; a named one that is missing is an error."""
    domain_names(names)  # a folder is not prepared
    for row in status(names, root):
        if not names and not row.present:
            continue
        if row.domain in ENCODERS:
            if row.hash in ("bad", "missing"):
                raise FedReproError(row.note)
            yield f"{row.domain}: weights, used as released"
            continue
        holding = [dataset for dataset in DATASETS if row.domain in DATASETS[dataset]]
        sets = [dataset for dataset in holding if dataset in names] or holding
        usual = [size for dataset in sets for size in manifest.DATASETS[dataset].sizes]
        for size in dict.fromkeys(sizes or usual):
            started = time.perf_counter()
            arrays = load_domain(row.domain, size, root)
            what = "prepared" if arrays.fresh else "already there"
            told = f"{len(arrays.labels)} images, {what}, {time.perf_counter() - started:.1f} s"
            yield f"{row.domain} {size}x{size}: {told}"


def fetch(name: str, root: Path | str | None = None) -> str:
    """Get the full release of a domain; files with the right hash are kept. Returns what was done;
    without a mirror what is here already, and how to get the rest by hand. A download is tried
    again three times. FedReproError: it fails."""
    if name in GENERATED:
        return "made by the generator, nothing to fetch"
    folder, collection = manifest.data_root(root, create=True), collection_of(name)
    wanted = [entry for entry in collection.sources[0].files if entry.mirror]
    if not wanted:
        row, manual = _status(name, folder), collection.manual
        if row.hash in ("bad", "missing"):
            wrong = f"{row.note}. " if row.present else ""
            return f"{wrong}{manual} The data root is {folder}."
        return f"{row.source} present" + (f" ({row.note}). {manual}" if row.note else "")
    found = manifest.search(collection, name, collection.sources[0], folder)
    new = [entry for entry in wanted if not _is_good(found, entry.role)]
    for entry in new:
        _download(entry, folder / collection.places[0], name)
    return f"{len(new)} files downloaded, {len(wanted) - len(new)} already there"


def _is_good(found: manifest.Located, role: str) -> bool:
    """Whether a role's file is there, packed or unpacked, and has the right hash."""
    with suppress(FedReproError, KeyError):
        return bool(verify_file(found.entries[role], found.files[role], found.domain))
    return False


def _download(entry: FileEntry, folder: Path, domain: str) -> None:
    target, url = entry.names[0], entry.mirror
    pooch.get_logger().setLevel(logging.ERROR)  # its messages on stderr repeat the bar
    known, urls = {target: entry.hash}, {target: url}
    store = pooch.create(folder, "", registry=known, urls=urls, retry_if_failed=3)
    shown = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT)
    try:
        store.fetch(target, downloader=shown)
        return
    except requests.ConnectionError as error:  # its text is about sockets and retries
        problem = f"no connection ({type(error).__name__})"
    except (requests.RequestException, ValueError) as error:
        problem = one_line(error)
    except OSError as error:
        raise FedReproError(
            f"{folder / target} cannot be written ({one_line(error)}); give a data root you "
            "may write to with --root or FEDREPRO_DATA"
        ) from error
    raise FedReproError(
        f"{domain}: {target} could not be fetched ({url}: {problem}); try again, or put the file "
        f"into {folder} by hand"
    )
