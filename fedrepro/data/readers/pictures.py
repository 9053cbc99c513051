"""Sets that come as picture folders: MNIST-M, SYN, Office-Caltech-10, PACS."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedrepro.data.readers.common import (
    NO_PART,
    TEST,
    TRAIN,
    VALIDATION,
    Decoded,
    Images,
    Labels,
    ReadSpec,
    check,
    check_labels,
    decode_image,
    join,
    reading,
    stack_images,
)
from fedrepro.data.readers.trees import TreeFile, folder_files, plain, tar_files

LISTS = (("train-list", TRAIN), ("crossval-list", VALIDATION), ("test-list", TEST))


def read_list(path: Path) -> list[tuple[str, int]]:
    """Lines of ``file label``, in order."""
    rows = []
    with reading(path):
        text = path.read_text("utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        check(bool(name) and label.isdigit(), path, f"line {number} is not 'file label'")
        rows.append((name.strip(), int(label)))
    check(len(rows) > 0, path, "is empty")
    check(len({name for name, _ in rows}) == len(rows), path, "names a file twice")
    return rows


def read_mnistm_folders(spec: ReadSpec) -> Decoded:
    """mnist_m_train/ and mnist_m_test/, ordered and labelled by their list files."""
    blocks: list[tuple[Images, Labels, int]] = []
    for name, part in (("train", TRAIN), ("test", TEST)):
        folder, listing = spec.files[name], spec.files[f"{name}-labels"]
        rows = read_list(listing)
        pictures = {file.parts[-1]: file.content for file in folder_files(folder)}
        missing = sorted({file for file, _ in rows} - set(pictures))
        surplus = len(pictures) - (len(rows) - len(missing))
        check(not missing, folder, f"{len(missing)} listed pictures are missing: {missing[:1]}")
        check(not surplus, folder, f"holds {surplus} pictures that {listing.name} does not name")
        labels = np.array([label for _, label in rows], np.int64)
        check_labels(labels, 10, listing)
        images = stack_images(
            (decode_image(pictures[file], f"{folder}/{file}", spec.size) for file, _ in rows),
            folder,
        )
        blocks.append((images, labels, part))
    return join(blocks)


def class_lookup(spec: ReadSpec) -> dict[str, int]:
    """Every accepted spelling of a class folder, made plain -> label."""
    lookup = {}
    for label, name in enumerate(spec.classes):
        for spelling in (name, *spec.spellings.get(name, ())):
            lookup[plain(spelling)] = label
    return lookup


def locate(parts: tuple[str, ...], folders: set[str], classes: dict[str, int]) -> int | None:
    """The label of ``.../<domain>/[images/]<class>/<file>``; None for any other file."""
    above = list(parts[:-1])
    if not above or plain(above[-1]) not in classes:
        return None
    label = classes[plain(above.pop())]
    if above and above[-1].lower() == "images":
        above.pop()
    return label if above and plain(above[-1]) in folders else None


def collect(
    files: Iterable[TreeFile], spec: ReadSpec, folders: Iterable[str], where: Path
) -> tuple[Images, Labels, list[str]]:
    """Decode the pictures of one domain, sorted by class then file name.

    Returns images (n, C, size, size), labels (n,), and ``<class label>/<file>`` keys.
    """
    names, classes = {plain(folder) for folder in folders}, class_lookup(spec)
    found: list[tuple[int, str, Images]] = []
    for file in files:
        label = locate(file.parts, names, classes)
        if label is not None:
            name = "/".join((str(where), *file.parts))
            found.append((label, file.parts[-1], decode_image(file.content, name, spec.size)))
    check(len(found) > 0, where, f"holds no pictures of {spec.domain}")
    found.sort(key=lambda item: item[:2])
    keys = [f"{label}/{name}" for label, name, _ in found]
    check(len(set(keys)) == len(keys), where, f"holds {spec.domain} twice")
    labels = np.array([label for label, _, _ in found], np.int64)
    check_labels(labels, len(spec.classes), where)
    return stack_images((image for _, _, image in found), where), labels, keys


def read_digit_folders(spec: ReadSpec) -> Decoded:
    """train and test folders with class folders 0..9 (SYN)."""
    blocks = []
    for name, part in (("train", TRAIN), ("test", TEST)):
        folder = spec.files[name]
        images, labels, _ = collect(folder_files(folder), spec, [folder.name], folder)
        blocks.append((images, labels, part))
    channels = max(images.shape[1] for images, _, _ in blocks)
    return join([(np.repeat(i, channels // i.shape[1], 1), y, p) for i, y, p in blocks])


def read_class_folders(spec: ReadSpec) -> Decoded:
    """``<domain>/[images/]<class>/<file>`` on disk."""
    folder = spec.files["images"]
    return _with_parts(spec, *collect(folder_files(folder), spec, [folder.name], folder))


def read_class_tar(spec: ReadSpec) -> Decoded:
    """The same inside a tar, read member by member."""
    archive = spec.files["images"]
    return _with_parts(spec, *collect(tar_files(archive), spec, spec.folders, archive))


def _with_parts(spec: ReadSpec, images: Images, labels: Labels, keys: list[str]) -> Decoded:
    """Parts from the official lists where they are there, else none.

    The test list of PACS names the whole domain, so that train and crossval decide the part, and
    the test list is only held against them.
    """
    part = np.full(len(keys), NO_PART, np.int8)
    if "train-list" not in spec.files:
        return Decoded(images, labels, part)
    listed = {role: list_keys(spec.files[role], spec) for role, _ in LISTS}
    train, crossval, both = (set(listed[role]) for role, _ in LISTS)
    path = spec.files["test-list"]
    check(not train & crossval, path, "the train and crossval lists share files")
    check(train | crossval == both, path, "is not the train and crossval lists together")
    check(both == set(keys), path, f"does not name the {len(keys)} pictures that are here")
    for index, key in enumerate(keys):
        part[index] = TRAIN if key in train else VALIDATION
    return Decoded(images, labels, part)


def list_keys(path: Path, spec: ReadSpec) -> list[str]:
    """The ``<class label>/<file>`` keys of an official list; its labels run from 1."""
    folders, classes = {plain(folder) for folder in spec.folders}, class_lookup(spec)
    keys = []
    for name, label in read_list(path):
        parts = tuple(name.split("/"))
        check(
            locate(parts, folders, classes) == label - 1,
            path,
            f"label {label} does not fit {name}",
        )
        keys.append(f"{label - 1}/{parts[-1]}")
    return keys
