"""Readers of the official files, registered by name: located files -> images, labels, parts.
MNIST idx, USPS LIBSVM, SVHN mat, MNIST-M npz and CIFAR binary files; and data sets released as
pictures in class folders, on disk or in an archive. Files whose hash the manifest has are compared
with it before they are read; the content of all others is checked here."""

import gzip
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrepro.data import pictures
from fedrepro.data.manifest import Located
from fedrepro.data.pictures import Images, LabelOf, Labels, check, plain, reading, resize_stack

READER_VERSION = 1  # raised whenever the arrays read from the same files change
Parts = npt.NDArray[np.int8]
TRAIN, TEST, VALIDATION, NO_PART = 0, 1, 2, -1
PARTS = (("train", TRAIN), ("test", TEST))


@dataclass(frozen=True)
class Decoded:
    """images uint8 (n, C, size, size), labels int64 (n,), part int8 (n,); see DomainArrays."""

    images: Images
    labels: Labels
    part: Parts


# Images at the wanted size, whole numbers as labels, and their part or parts.
Block = tuple[Images, npt.NDArray[Any], int | Parts]
Blocks = Callable[[Located, int], Iterator[Block]]  # from the files and the size of images
READERS: dict[str, Callable[[Located, int], Decoded]] = {}


def reader(*names: str) -> Callable[[Blocks], Blocks]:
    """Register a generator of a domain's images, block by block, as a reader.
    The names are part of the data's hash, so they stay."""

    def register(blocks: Blocks) -> Blocks:
        READERS.update(dict.fromkeys(names, lambda at, size: join(blocks(at, size))))
        return blocks

    return register


def join(blocks: Iterable[Block]) -> Decoded:
    """Blocks in order -> one Decoded."""
    images, labels, parts = zip(*blocks, strict=True)
    sized = [np.broadcast_to(part, len(y)) for part, y in zip(parts, labels, strict=True)]
    part = np.concatenate(sized).astype(np.int8)
    every = pictures.stack(chain.from_iterable(images))
    return Decoded(every, np.concatenate(labels).astype(np.int64), part)


def check_labels(raw: npt.NDArray[Any], classes: int, path: Path | str) -> Labels:
    """Labels as int64 (n,). FedReproError unless n > 0 and all are whole, in 0..classes-1."""
    check(raw.size > 0, path, "holds no images")
    labels = raw.reshape(-1).astype(np.int64)
    check(np.array_equal(labels, raw.reshape(-1)), path, "labels are not whole numbers")
    low, high = labels.min(), labels.max()
    check(0 <= low <= high < classes, path, f"labels run {low}..{high}, expected 0..{classes - 1}")
    return labels


# Released as arrays.


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of an idx or gzipped idx file of unsigned bytes; the content decides which."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@reader("mnist")
def mnist(at: Located, size: int) -> Iterator[Block]:
    """Four idx files; 28x28 grey, labels 0..9."""
    for name, part in PARTS:
        images = read_idx(at.files[f"{name}-images"], 3)
        yield resize_stack(images, size), read_idx(at.files[f"{name}-labels"], 1), part


@reader("usps-libsvm")
def usps_libsvm(at: Located, size: int) -> Iterator[Block]:
    """bzip2 LIBSVM texts: labels 1..10 are the digits 0..9, 256 values in [-1, 1] per line."""
    from sklearn.datasets import load_svmlight_file  # costs a second to import

    for name, part in PARTS:
        matrix, target = load_svmlight_file(str(at.files[name]), n_features=16 * 16)
        values = matrix.toarray().astype(np.float32).reshape(-1, 16, 16)
        images = ((values + 1) / 2 * 255).astype(np.uint8)  # truncated as torchvision does
        yield resize_stack(images, size), target - 1, part


@reader("svhn")
def svhn(at: Located, size: int) -> Iterator[Block]:
    """Cropped-digits .mat files, train and test or test alone: X uint8 (32, 32, 3, n), y (n, 1).
    SVHN writes the digit 0 as 10; SynthDigits files have either. A file with both is refused."""
    from scipy.io import loadmat

    present = [(at.files[name], part) for name, part in PARTS if name in at.files]
    for path, part in present:
        with reading(path):
            content = loadmat(str(path), variable_names=["X", "y"])
            images, raw = np.moveaxis(content["X"], 3, 0), content["y"].astype(float)
        check(not ((raw == 10).any() and (raw == 0).any()), path, "labels hold both 0 and 10")
        right = images.dtype == np.uint8 and images.shape[1:] == (32, 32, 3)
        told = f"images are {images.dtype} {images.shape}, expected uint8 (n, 32, 32, 3)"
        check(right, path, told)
        check(raw.size == len(images), path, f"{raw.size} labels for {len(images)} images")
        labels = check_labels(np.where(raw == 10, 0, raw), len(at.classes), path)
        yield resize_stack(images, size), labels, part


@reader("mnistm-npz")
def mnistm_npz(at: Located, size: int) -> Iterator[Block]:
    """train_x, train_y, test_x, test_y; 32x32 colour, labels 0..9."""
    with np.load(at.files["npz"], allow_pickle=False) as arrays:
        for name, part in PARTS:
            yield resize_stack(arrays[f"{name}_x"], size), arrays[f"{name}_y"], part


@reader("cifar10-binary", "cifar100-binary")
def cifar(at: Located, size: int) -> Iterator[Block]:
    """Records: a label (CIFAR-100 has a coarse one before it), then red, green and blue planes, row
    by row. These official archives cannot run code."""
    ten = len(at.classes) == 10
    train = [f"data_batch_{i}.bin" for i in range(1, 6)] if ten else ["train.bin"]
    test = "test_batch.bin" if ten else "test.bin"
    start = 1 if ten else 2  # of the planes
    with tarfile.open(at.files["archive"]) as tar:
        files = ((Path(member.name).name, tar.extractfile(member)) for member in tar)
        members = {name: file.read() for name, file in files if file is not None}
    for name in (*train, test):
        rows = np.frombuffer(members[name], np.uint8).reshape(-1, start + 3 * 32 * 32)
        planes = rows[:, start:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        yield resize_stack(planes, size), rows[:, start - 1], int(name == test)


# Released as pictures in class folders, on disk or in an archive.


def read_list(path: Path) -> dict[str, int]:
    """Lines of ``file label``, in order: file -> label."""
    with reading(path):
        lines = [line.strip().rpartition(" ") for line in path.read_text("utf-8").splitlines()]
        rows = {name.strip(): int(label) for name, _, label in lines if name or label}
    check(len(rows) == sum(any(line) for line in lines) > 0, path, "is empty or repeats a file")
    return rows


@reader("mnistm-folders")
def mnistm_folders(at: Located, size: int) -> Iterator[Block]:
    """mnist_m_train/ and mnist_m_test/, ordered and labelled by their list files."""
    for name, part in PARTS:
        folder, listing = at.files[name], at.files[f"{name}-labels"]
        rows = read_list(listing)
        found = {file.parts[-1]: file for file in pictures.files_in(folder)}
        odd = sorted(rows.keys() ^ found.keys())
        check(not odd, folder, f"{len(odd)} pictures are only here or in {listing.name}: {odd[:1]}")
        labels = check_labels(np.array([*rows.values()]), 10, listing)
        decoded = (pictures.decode_image(found[f].read(), found[f].name, size) for f in rows)
        yield pictures.stack(decoded), labels, part


def label_of(at: Located, classes: Sequence[str], folders: Iterable[str]) -> LabelOf:
    """How to tell the label of ``.../<domain>/[images/]<class>/<file>``, in every accepted spelling
    (see `plain`), among some classes; None for any other file."""
    domain = {plain(folder) for folder in folders}
    labels = {
        plain(spelling): label
        for label, name in enumerate(classes)
        for spelling in (name, *at.collection.spellings.get(name, ()))
    }

    def found(parts: tuple[str, ...]) -> int | None:
        above = list(parts[:-1])
        label = labels.get(plain(above.pop())) if above else None
        if above and above[-1].lower() == "images":
            above.pop()
        return label if above and plain(above[-1]) in domain else None

    return found


def collect(at: Located, size: int, where: Path, folders: Iterable[str]) -> pictures.Pictures:
    """The pictures of one domain, as from `decode_pictures`; none twice."""
    label = label_of(at, at.classes, [where.name] if where.is_dir() else folders)
    images, labels, keys = pictures.decode_pictures(where, label, size, at.domain)
    check(len(set(keys)) == len(keys), where, f"holds {at.domain} twice")
    return images, labels, keys


@reader("digit-folders", "cifar-jpeg-tar")
def part_folders(at: Located, size: int) -> Iterator[Block]:
    """``<class>/<file>`` in a train and a test folder (SYN), or both in one archive (CIFAR-10)."""
    for name, part in PARTS:
        where = at.files.get("archive") or at.files[name]
        yield *collect(at, size, where, [name])[:2], part


def _listed(at: Located, role: str, first: int) -> set[str]:
    """The keys of a list's pictures of the kept classes. Its labels number all classes."""
    if role not in at.files:
        return set()
    path, keys = at.files[role], set()
    every = label_of(at, at.collection.classes, at.folders)
    kept = label_of(at, at.classes, at.folders)
    for name, label in read_list(path).items():
        parts = tuple(name.split("/"))
        check(every(parts) == label - first, path, f"label {label} does not fit {name}")
        if (own := kept(parts)) is not None:
            keys.add(f"{own}/{parts[-1]}")
    return keys


def _parts(keys: list[str], lists: dict[int, set[str]]) -> Parts:
    number = {key: part for part, listed in lists.items() for key in listed}
    return np.array([number.get(key, NO_PART) for key in keys], np.int8)


@reader("class-folders", "class-tar")
def class_folders(at: Located, size: int) -> Iterator[Block]:
    """Office-Caltech-10 and PACS, with parts from the official lists if they are present. PACS's
    test list names the whole domain: the train and crossval lists together."""
    images, labels, keys = collect(at, size, at.files["images"], at.folders)
    train, held = (_listed(at, f"{name}-list", 1) for name in ("train", "crossval"))
    if train:
        told = f"does not name the {len(keys)} pictures that are here"
        check(train | held == set(keys), at.files["test-list"], told)
    yield images, labels, _parts(keys, {TRAIN: train, VALIDATION: held})


@reader("domainnet-folders", "domainnet-zip")
def domainnet(at: Located, size: int) -> Iterator[Block]:
    """DomainNet, some of its classes. Pictures in neither list, mostly duplicates, have no part."""
    images, labels, keys = collect(at, size, at.files["images"], at.folders)
    train, test = (_listed(at, f"{name}-list", 0) for name, _ in PARTS)
    where = at.files.get("test-list", at.files["images"])
    check(not train & test, where, "names pictures of the other list too")
    missing = sorted((train | test) - set(keys))
    check(not missing, at.files["images"], f"lacks {len(missing)} listed pictures: {missing[:1]}")
    yield images, labels, _parts(keys, {TRAIN: train, TEST: test})
