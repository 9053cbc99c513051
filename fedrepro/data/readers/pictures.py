"""Data sets released as pictures in class folders, on disk or in an archive."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedrepro.data.readers import common
from fedrepro.data.readers.common import Block, ReadSpec, check, decode_image, plain, reader


def read_list(path: Path) -> dict[str, int]:
    """Lines of ``file label``, in order: file -> label."""
    with common.reading(path):
        lines = [line.strip().rpartition(" ") for line in path.read_text("utf-8").splitlines()]
        rows = {name.strip(): int(label) for name, _, label in lines if name or label}
    check(len(rows) == sum(any(line) for line in lines) > 0, path, "is empty or repeats a file")
    return rows


@reader("mnistm-folders")
def mnistm_folders(spec: ReadSpec) -> Iterator[Block]:
    """mnist_m_train/ and mnist_m_test/, ordered and labelled by their list files."""
    for name, part in common.PARTS:
        folder, listing = spec.files[name], spec.files[f"{name}-labels"]
        rows = read_list(listing)
        pictures = {file.parts[-1]: file for file in common.files_in(folder)}
        odd = sorted(rows.keys() ^ pictures.keys())
        check(not odd, folder, f"{len(odd)} pictures are only here or in {listing.name}: {odd[:1]}")
        labels = common.check_labels(np.array([*rows.values()]), 10, listing)
        decoded = (decode_image(pictures[f].read(), pictures[f].name, spec.size) for f in rows)
        yield common.stack(decoded), labels, part


def lookup(classes: Iterable[str], spec: ReadSpec) -> dict[str, int]:
    """Every accepted spelling of a class folder (see `plain`) -> label."""
    return {
        plain(spelling): label
        for label, name in enumerate(classes)
        for spelling in (name, *spec.spellings.get(name, ()))
    }


def locate(parts: Sequence[str], folders: set[str], classes: dict[str, int]) -> int | None:
    """The label of ``.../<domain>/[images/]<class>/<file>``; None for any other file."""
    above = list(parts[:-1])
    label = classes.get(plain(above.pop())) if above else None
    if above and above[-1].lower() == "images":
        above.pop()
    return label if above and plain(above[-1]) in folders else None


def collect(
    spec: ReadSpec, where: Path, folders: Iterable[str]
) -> tuple[common.Images, common.Labels, list[str]]:
    """The pictures of one domain, as from `common.decode_pictures`; none twice."""
    names, classes = {plain(folder) for folder in folders}, lookup(spec.classes, spec)
    if where.is_dir():
        names = {plain(where.name)}
    label_of = partial(locate, folders=names, classes=classes)
    images, labels, keys = common.decode_pictures(where, label_of, spec.size, spec.domain)
    check(len(set(keys)) == len(keys), where, f"holds {spec.domain} twice")
    return images, labels, keys


@reader("digit-folders", "cifar-jpeg-tar")
def part_folders(spec: ReadSpec) -> Iterator[Block]:
    """``<class>/<file>`` in a train and a test folder (SYN), or both in one archive (CIFAR-10)."""
    for name, part in common.PARTS:
        where = spec.files.get("archive") or spec.files[name]
        yield *collect(spec, where, [name])[:2], part


def _listed(spec: ReadSpec, role: str, first: int) -> set[str]:
    """The keys of a list's pictures of the kept classes. Its labels number all classes."""
    if role not in spec.files:
        return set()
    path, keys = spec.files[role], set()
    folders, kept = {plain(folder) for folder in spec.folders}, lookup(spec.classes, spec)
    numbers = lookup(spec.all_classes or spec.classes, spec)
    for name, label in read_list(path).items():
        parts = name.split("/")
        fits = locate(parts, folders, numbers) == label - first
        check(fits, path, f"label {label} does not fit {name}")
        own = locate(parts, folders, kept)
        if own is not None:
            keys.add(f"{own}/{parts[-1]}")
    return keys


def _parts(keys: list[str], lists: dict[int, set[str]]) -> common.Parts:
    number = {key: part for part, listed in lists.items() for key in listed}
    return np.array([number.get(key, common.NO_PART) for key in keys], np.int8)


@reader("class-folders", "class-tar")
def class_folders(spec: ReadSpec) -> Iterator[Block]:
    """Office-Caltech-10 and PACS, with parts from the official lists if they are present.
    The test list of PACS names the whole domain. So train and crossval decide the part, and the
    test list is only compared with them."""
    images, labels, keys = collect(spec, spec.files["images"], spec.folders)
    train, held, both = (_listed(spec, f"{r}-list", 1) for r in ("train", "crossval", "test"))
    if both:
        path = spec.files["test-list"]
        check(not train & held, path, "the train and crossval lists share files")
        check(train | held == both, path, "is not the train and crossval lists together")
        check(both == set(keys), path, f"does not name the {len(keys)} pictures that are here")
    yield images, labels, _parts(keys, {common.TRAIN: train, common.VALIDATION: held})


@reader("domainnet-folders", "domainnet-zip")
def domainnet(spec: ReadSpec) -> Iterator[Block]:
    """DomainNet; a data set keeps some of its classes. Its archives have pictures that are in
    neither list, mostly duplicates; those have no part."""
    images, labels, keys = collect(spec, spec.files["images"], spec.folders)
    train, test = (_listed(spec, f"{name}-list", 0) for name, _ in common.PARTS)
    where = spec.files.get("test-list", spec.files["images"])
    check(not train & test, where, "names pictures of the other list too")
    missing = sorted((train | test) - set(keys))
    check(not missing, spec.files["images"], f"lacks {len(missing)} listed pictures: {missing[:1]}")
    yield images, labels, _parts(keys, {common.TRAIN: train, common.TEST: test})
