"""DomainNet: one archive or folder a domain, of which a data set keeps some classes, and the
official lists of training and test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedrepro.data.readers.common import (
    NO_PART,
    TEST,
    TRAIN,
    Decoded,
    Images,
    Labels,
    ReadSpec,
    check,
)
from fedrepro.data.readers.pictures import class_lookup, collect, locate, read_list
from fedrepro.data.readers.trees import folder_files, plain, zip_files


def read_domainnet_folders(spec: ReadSpec) -> Decoded:
    """``<domain>/<class>/<file>`` on disk."""
    folder = spec.files["images"]
    return _with_lists(spec, *collect(folder_files(folder), spec, [folder.name], folder))


def read_domainnet_zip(spec: ReadSpec) -> Decoded:
    """The same inside the official zip; only the kept classes are unpacked."""
    archive = spec.files["images"]
    return _with_lists(spec, *collect(zip_files(archive), spec, spec.folders, archive))


def _with_lists(spec: ReadSpec, images: Images, labels: Labels, keys: list[str]) -> Decoded:
    """Parts from the official lists where they are there. The archives hold pictures that neither
    list names, duplicates mostly; those have no part."""
    part = np.full(len(keys), NO_PART, np.int8)
    listed: dict[str, int] = {}
    for role, number in (("train-list", TRAIN), ("test-list", TEST)):
        if role in spec.files:
            for key in _listed(spec.files[role], spec):
                check(key not in listed, spec.files[role], "names pictures of the other list too")
                listed[key] = number
    missing = sorted(set(listed) - set(keys))
    check(not missing, spec.files["images"], f"lacks {len(missing)} listed pictures: {missing[:1]}")
    for index, key in enumerate(keys):
        part[index] = listed.get(key, NO_PART)
    return Decoded(images, labels, part)


def _listed(path: Path, spec: ReadSpec) -> list[str]:
    """The ``<class label>/<file>`` keys of a list's pictures of kept classes. Its labels number
    all classes of the release, from 0."""
    folders, kept = {plain(folder) for folder in spec.folders}, class_lookup(spec)
    numbers = {plain(name): number for number, name in enumerate(spec.all_classes)}
    keys = []
    for name, label in read_list(path):
        parts = tuple(name.split("/"))
        number = locate(parts, folders, numbers)
        check(number == label, path, f"label {label} does not fit {name}")
        own = locate(parts, folders, kept)
        if own is not None:
            keys.append(f"{own}/{parts[-1]}")
    return keys
