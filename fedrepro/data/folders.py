"""The user's own data sets: a folder of ``domain/class/image``, named ``folder:PATH``. When it is
first read, it gets the name ``folder:<its name>-<8 hex digits of its content>`` for tables and
caches. Run ids depend only on the content of its domains."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from unicodedata import normalize

from fedrepro.base.errors import FedReproError, explained, need
from fedrepro.base.files import full
from fedrepro.data import pictures
from fedrepro.data.manifest import file_hash, hash_of
from fedrepro.data.readers import NO_PART, Decoded, join

VERSION = 3  # raised if the arrays of the same pictures change; 2: upright, 3: on white
FOLDER = "folder"  # the start of its names: a protocol may have folder and folder-frozen
HOW = "a folder has domain/class/image"
# Columns of tables beside the domains, and the server's network.
TAKEN = {
    "avg", "bytes", "dataset", "diverged", "high", "its rank", "label", "low", "mean",
    "mean without stand-in", "other domains too", "other seeds", "pooled", "rank", "round", "seed",
    "seeds", "server", "std over seeds",
}  # fmt: skip


@dataclass(frozen=True)
class Tree:
    """A folder that was read; hashes (of names and content) and counts of pictures by domain."""

    root: Path
    classes: tuple[str, ...]
    hashes: dict[str, str]
    counts: dict[str, int]

    @property
    def name(self) -> str:
        """Its folder's name and a hash of its content."""
        return f"{self.root.name}-{hash_of(*sorted(self.hashes.items()))[:8]}"

    def read(self, domain: str, size: int) -> Decoded:
        """A domain's pictures by class, then file name; they have no official parts."""

        def label_of(parts: tuple[str, ...]) -> int | None:
            hidden = any(part.startswith(".") for part in parts)
            return None if hidden else self.classes.index(normalize("NFC", parts[1]))

        where = self.root / domain
        with _own():
            found = pictures.decode_pictures(where, label_of, size, domain, upright=True)
            same = file_hash(where) == self.hashes[domain]
        need(same, f"{where} was changed since it was named; start again")
        return join([(*found[:2], NO_PART)])


_looked_at: dict[str, Tree] = {}


def kind(dataset: str) -> str:
    """A data set's name in a protocol: ``folder`` for a folder, else its own name."""
    start, colon, _ = dataset.partition(":")
    return start if colon and start.startswith(FOLDER) else dataset


def named(dataset: str) -> str:
    """The name of a data set from ``folder:PATH``; other names do not change.
    FedReproError (one line): no such folder, or one without ``domain/class/image``."""
    start, _, place = dataset.partition(":")
    if not start.startswith(FOLDER) or place in _looked_at:
        return dataset
    need(place, f"{dataset} needs its path: write {start}:PATH; {HOW}")
    with explained(f"{place} cannot be read", f"correct the path: {HOW}", OSError):
        tree = _look(full(place))
    _looked_at[tree.name] = tree
    return f"{start}:{tree.name}"


def opened(dataset: str) -> Tree | None:
    """The folder of a name from `named`; None for any other data set."""
    start, _, name = dataset.partition(":")
    if start != FOLDER:
        return None
    need(name in _looked_at, f"the path of {dataset} is not known here; name it as {FOLDER}:PATH")
    return _looked_at[name]


def placed(dataset: str) -> str:
    """A data set's name for another process: a folder's name with its path."""
    tree = _looked_at.get(dataset.partition(":")[2])
    return dataset if tree is None else f"{kind(dataset)}:{tree.root}"


def _need(holds: bool, path: Path, problem: str, mend: str = HOW) -> None:
    need(holds, f"{path} {problem}; {mend}")


@contextmanager
def _own() -> Iterator[None]:
    """Replace a reader's advice to fetch the official file: a user's own file has none."""
    try:
        yield
    except FedReproError as error:
        raise FedReproError(f"{str(error).rpartition('; ')[0]}; repair or remove it") from None


def _look(root: Path) -> Tree:
    _need(root.exists(), root, "does not exist", f"correct the path: {HOW}")
    _need(root.is_dir(), root, "is a file", f"name a folder: {HOW}")
    found = _classes(root := root.resolve())
    names, classes = sorted(found), sorted(set().union(*found.values()))
    for held, what in ((names, "domain"), (classes, "class")):
        said = f"holds {f'one {what}, {held[0]}' if held else f'no {what}'}"
        _need(len(held) > 1, root, said, f"two or more are needed: {HOW}")
    for domain in names:
        lacking = [name for name in classes if name not in found[domain]]
        said = f"has no picture of {', '.join(lacking[:3])}"
        own = [name for name in names if lacking and lacking[0] in found[name]]
        said += f", a class of {', '.join(own)} alone" * (len(own) == 1 < len(names) - 1)
        _need(not lacking, root / domain, said, "every domain needs every class")
        _need(domain not in TAKEN, root / domain, "has the name of a column", "rename the domain")
    with _own():
        hashes = {domain: file_hash(root / domain) for domain in names}
    return Tree(root, tuple(classes), hashes, {domain: len(found[domain]) for domain in names})


def _classes(root: Path) -> dict[str, list[str]]:
    """The class of each picture in a tree, by domain. Hidden files and files next to the class
    folders are ignored; anything else is an error."""
    found: dict[str, list[str]] = {}
    paths = sorted(islice(root.rglob("*"), pictures.MAX_MEMBERS + 1))
    few = len(paths) <= pictures.MAX_MEMBERS
    _need(few, root, f"holds over {pictures.MAX_MEMBERS:,} files", "take fewer")
    for path in paths:
        parts = path.relative_to(root).parts
        if any(part.startswith(".") for part in parts):
            continue
        if path.is_symlink():
            inside = path.is_file() and path.resolve().is_relative_to(root)
            said = "is a link out of the folder, to a folder, or to nothing"
            _need(inside, path, said, "put the files themselves there")
        if path.is_dir():
            _need(len(parts) < 3, path, "is a folder inside a class", f"move it: {HOW}")
            found.setdefault(parts[0], [])
        elif pictures.is_picture(path.name):
            _need(len(parts) == 3, path, "is not in a class of a domain", f"move it: {HOW}")
            with _own(), pictures.opened(path, str(path)):
                name = normalize("NFC", parts[1])  # a Mac writes é as two characters
            found.setdefault(parts[0], []).append(name)
        else:
            said = f"is not a picture ({', '.join(pictures.PICTURES)})"
            _need(len(parts) < 3, path, said, "convert or remove it")
    return found
