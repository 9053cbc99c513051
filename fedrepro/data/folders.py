"""Data sets of one's own: a folder of ``domain/class/image``, asked for as ``folder:PATH``.

Looked at once, it is known as ``folder:<its name>-<8 hex digits of its content>``, wherever it
lies: by that name tables and caches call it. Run ids hold the content of its domains alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from fedrepro.base.errors import FedReproError, one_line
from fedrepro.data.cache import cache_root
from fedrepro.data.manifest import file_hash
from fedrepro.data.readers import common

VERSION = 2  # raised whenever the arrays read from the same pictures change; 2: they are upright
FOLDER = "folder"  # how its names begin: a protocol may have several, folder and folder-frozen
HOW = "a folder holds domain/class/image"
TAKEN = {"avg", "bytes", "dataset", "label", "pooled", "round", "seed"}  # columns beside domains


@dataclass(frozen=True)
class Tree:
    """A folder that was looked at. hashes: of each domain's pictures, over their names and
    content."""

    root: Path
    classes: tuple[str, ...]
    hashes: dict[str, str]

    @property
    def name(self) -> str:
        """Its own name, and what it holds."""
        content = hashlib.sha256(json.dumps(sorted(self.hashes.items())).encode())
        return f"{self.root.name}-{content.hexdigest()[:8]}"

    def counts(self) -> dict[str, int]:
        """Pictures by domain."""
        counted = Counter(domain for domain, *name in _entries(self.root) if name)
        return dict(sorted(counted.items()))

    def read(self, domain: str, size: int) -> common.Decoded:
        """A domain's pictures by class, then file name; they have no official parts."""
        number = {name: label for label, name in enumerate(self.classes)}
        found = []
        with _own():
            for file in common.files_in(self.root / domain):
                if not any(part.startswith(".") for part in file.parts):
                    _, name, picture = file.parts
                    path = f"{self.root / domain / name / picture}"
                    image = common.decode_image(file.read(), path, size, upright=True)
                    found.append((number[name], picture, image))
        found.sort(key=lambda item: item[:2])
        labels = np.array([label for label, _, _ in found], np.int64)
        return common.join([(common.stack(image for _, _, image in found), labels, common.NO_PART)])


_looked_at: dict[str, Tree] = {}


def kind(dataset: str) -> str:
    """What a protocol calls a data set: ``folder`` for one of these, else its own name."""
    start, colon, _ = dataset.partition(":")
    return start if colon and start.startswith(FOLDER) else dataset


def named(dataset: str, cache: Path | str | None = None) -> str:
    """The name of a data set from ``folder:PATH``; any other is its own.

    FedReproError (one line): no such folder, or one that is no ``domain/class/image``.
    """
    start, _, place = dataset.partition(":")
    if not start.startswith(FOLDER) or place in _looked_at:
        return dataset
    if not place:
        raise FedReproError(f"{dataset} needs its path: write {start}:PATH; {HOW}")
    tree = _look(Path(place).expanduser(), cache_root(cache))
    _looked_at[tree.name] = tree
    return f"{start}:{tree.name}"


def opened(dataset: str) -> Tree | None:
    """The folder behind a name that `named` gave; None for any other data set."""
    start, _, name = dataset.partition(":")
    if start != FOLDER:
        return None
    if name not in _looked_at:
        raise FedReproError(f"where {dataset} lies is not known here; name it as {FOLDER}:PATH")
    return _looked_at[name]


def placed(dataset: str) -> str:
    """A data set's name as another process understands it: a folder's with its path."""
    tree = _looked_at.get(dataset.partition(":")[2])
    return dataset if tree is None else f"{kind(dataset)}:{tree.root}"


def _need(holds: bool, path: Path, problem: str, mend: str = HOW) -> None:
    if not holds:
        raise FedReproError(f"{path} {problem}; {mend}")


@contextmanager
def _own() -> Iterator[None]:
    """Readers advise to fetch the official file again; nobody can fetch one's own."""
    try:
        yield
    except FedReproError as error:
        raise FedReproError(f"{str(error).rpartition('; ')[0]}; mend or remove it") from None


def _look(root: Path, cache: Path) -> Tree:
    _need(root.exists(), root, "does not exist", f"mend the path: {HOW}")
    _need(root.is_dir(), root, "is a file", f"name a folder: {HOW}")
    found: dict[str, set[str]] = {}
    for domain, *name in _entries(root := root.resolve()):
        found.setdefault(domain, set()).update(name)
    names, classes = sorted(found), sorted(set().union(*found.values()))
    for held, what in ((names, "domain"), (classes, "class")):
        said = f"holds {f'one {what}, {held[0]}' if held else f'no {what}'}"
        _need(len(held) > 1, root, said, f"two or more are needed: {HOW}")
    for domain in names:
        lacking = [name for name in classes if name not in found[domain]]
        said = f"has no picture of {', '.join(lacking[:3])}"
        _need(not lacking, root / domain, said, "every domain needs every class")
        _need(domain not in TAKEN, root / domain, "has the name of a column", "rename the domain")
    with _own():
        hashes = {domain: file_hash(root / domain, cache) for domain in names}
    return Tree(root, tuple(classes), hashes)


def _entries(root: Path) -> Iterator[tuple[str, ...]]:
    """(domain,) of each folder in a tree and (domain, class) of each picture. Hidden files and what
    is no picture beside the classes are left out; whatever else is in a wrong place is an error."""
    try:
        paths = sorted(islice(root.rglob("*"), common.MAX_MEMBERS + 1))
    except OSError as error:
        raise FedReproError(f"{root} cannot be read ({one_line(error)}); {HOW}") from None
    _need(
        len(paths) <= common.MAX_MEMBERS,
        root,
        f"holds over {common.MAX_MEMBERS:,} files",
        "take fewer",
    )
    for path in paths:
        parts = path.relative_to(root).parts
        if any(part.startswith(".") for part in parts):
            continue
        if path.is_symlink():
            inside = path.is_file() and path.resolve().is_relative_to(root)
            said = "is a link that leaves the folder, or to a folder, or to nothing"
            _need(inside, path, said, "put the files themselves there")
        if path.is_dir():
            _need(len(parts) < 3, path, "is a folder inside a class", f"move it: {HOW}")
            yield parts[:1]
        elif common.is_picture(path.name):
            _need(len(parts) == 3, path, "lies in no class of a domain", f"move it: {HOW}")
            yield parts[:2]
        else:
            said = f"is no picture ({', '.join(common.PICTURES)})"
            _need(len(parts) < 3, path, said, "convert or remove it")
