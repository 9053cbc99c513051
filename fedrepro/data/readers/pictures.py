"""Sets that come as pictures in class folders, on disk or in an archive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedrepro.data.readers.common import (
    NO_PART,
    PARTS,
    TEST,
    TRAIN,
    VALIDATION,
    Decoded,
    Images,
    Labels,
    Parts,
    ReadSpec,
    check,
    check_labels,
    decode_image,
    join,
    reading,
    stack_images,
)
from fedrepro.data.readers.trees import folder_files, plain, tree_files


def read_list(path: Path) -> list[tuple[str, int]]:
    """Lines of ``file label``, in order."""
    rows = []
    with reading(path):
        text = path.read_text("utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            name, _, label = line.strip().rpartition(" ")
            check(bool(name) and label.isdigit(), path, f"line {number} is not 'file label'")
            rows.append((name.strip(), int(label)))
    check(len(rows) > 0, path, "is empty")
    check(len({name for name, _ in rows}) == len(rows), path, "names a file twice")
    return rows


def read_mnistm_folders(spec: ReadSpec) -> Decoded:
    """mnist_m_train/ and mnist_m_test/, ordered and labelled by their list files."""
    blocks = []
    for name, part in PARTS:
        folder, listing = spec.files[name], spec.files[f"{name}-labels"]
        rows = read_list(listing)
        pictures = {file.parts[-1]: file for file in folder_files(folder)}
        missing = sorted({file for file, _ in rows} - set(pictures))
        surplus = len(pictures) - (len(rows) - len(missing))
        check(not missing, folder, f"{len(missing)} listed pictures are missing: {missing[:1]}")
        check(not surplus, folder, f"holds {surplus} pictures that {listing.name} does not name")
        labels = check_labels(np.array([label for _, label in rows]), 10, listing)
        decoded = (decode_image(pictures[f].read(), f"{folder}/{f}", spec.size) for f, _ in rows)
        blocks.append((stack_images(decoded, folder), labels, part))
    return join(blocks)


def lookup(classes: Iterable[str], spec: ReadSpec) -> dict[str, int]:
    """Every accepted spelling of a class folder, made plain -> label."""
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
) -> tuple[Images, Labels, list[str]]:
    """Decode the pictures of one domain, sorted by class then file name.

    Returns images (n, C, size, size), labels (n,), and ``<class label>/<file>`` keys.
    """
    names, classes = {plain(folder) for folder in folders}, lookup(spec.classes, spec)
    found: list[tuple[int, str, Images]] = []
    for file in tree_files(where):
        label = locate(file.parts, names, classes)
        if label is not None:
            name = "/".join((str(where), *file.parts))
            found.append((label, file.parts[-1], decode_image(file.read(), name, spec.size)))
    check(len(found) > 0, where, f"holds no pictures of {spec.domain}")
    found.sort(key=lambda item: item[:2])
    keys = [f"{label}/{name}" for label, name, _ in found]
    check(len(set(keys)) == len(keys), where, f"holds {spec.domain} twice")
    labels = np.array([label for label, _, _ in found], np.int64)
    return stack_images((image for _, _, image in found), where), labels, keys


def read_part_folders(spec: ReadSpec) -> Decoded:
    """``<class>/<file>`` in a train and a test folder (SYN), or both in one archive (CIFAR-10)."""
    blocks = []
    for name, part in PARTS:
        where = spec.files.get("archive") or spec.files[name]
        images, labels, _ = collect(spec, where, [where.name if where.is_dir() else name])
        blocks.append((images, labels, part))
    return join(blocks)


def _domain(spec: ReadSpec) -> tuple[Images, Labels, list[str]]:
    """``<domain>/[images/]<class>/<file>`` on disk or in an archive."""
    where = spec.files["images"]
    return collect(spec, where, [where.name] if where.is_dir() else spec.folders)


def _listed(spec: ReadSpec, role: str, first: int) -> set[str]:
    """The keys of a list's pictures of the kept classes, empty where the list is not there. Its
    labels number all classes of the release, from ``first``."""
    if role not in spec.files:
        return set()
    path, keys = spec.files[role], set()
    folders, kept = {plain(folder) for folder in spec.folders}, lookup(spec.classes, spec)
    numbers = lookup(spec.all_classes or spec.classes, spec)
    for name, label in read_list(path):
        parts = name.split("/")
        fits = locate(parts, folders, numbers) == label - first
        check(fits, path, f"label {label} does not fit {name}")
        own = locate(parts, folders, kept)
        if own is not None:
            keys.add(f"{own}/{parts[-1]}")
    return keys


def read_classes(spec: ReadSpec) -> Decoded:
    """Office-Caltech-10 and PACS, with parts from the official lists where they are there.

    The test list of PACS names the whole domain, so that train and crossval decide the part, and
    the test list is only held against them.
    """
    images, labels, keys = _domain(spec)
    train, crossval, both = (_listed(spec, f"{r}-list", 1) for r in ("train", "crossval", "test"))
    if both:
        path = spec.files["test-list"]
        check(not train & crossval, path, "the train and crossval lists share files")
        check(train | crossval == both, path, "is not the train and crossval lists together")
        check(both == set(keys), path, f"does not name the {len(keys)} pictures that are here")
    return Decoded(images, labels, _parts(keys, {TRAIN: train, VALIDATION: crossval}))


def read_domainnet(spec: ReadSpec) -> Decoded:
    """DomainNet, of which a data set keeps some classes. Its archives hold pictures that neither
    list names, duplicates mostly; those have no part."""
    images, labels, keys = _domain(spec)
    train, test = (_listed(spec, f"{name}-list", 0) for name, _ in PARTS)
    if train & test:
        check(False, spec.files["test-list"], "names pictures of the other list too")
    missing = sorted((train | test) - set(keys))
    check(not missing, spec.files["images"], f"lacks {len(missing)} listed pictures: {missing[:1]}")
    return Decoded(images, labels, _parts(keys, {TRAIN: train, TEST: test}))


def _parts(keys: list[str], lists: dict[int, set[str]]) -> Parts:
    number = {key: part for part, listed in lists.items() for key in listed}
    return np.array([number.get(key, NO_PART) for key in keys], np.int8)
