"""Readers of the official files, registered by name: located files -> images, labels, parts.
MNIST idx, USPS LIBSVM, SVHN mat, MNIST-M npz and CIFAR binary files; and data sets released as
pictures in class folders, on disk or in an archive."""

import bz2
import gzip
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrepro.data.manifest import Located
from fedrepro.data.pictures import (
    MAX_FILE_BYTES,
    Images,
    LabelOf,
    Labels,
    Pictures,
    check,
    decode_image,
    decode_pictures,
    files_in,
    plain,
    reading,
    resize_stack,
    stack,
)

READER_VERSION = 1  # raised whenever the arrays read from the same files change
Parts = npt.NDArray[np.int8]
TRAIN, TEST, VALIDATION, NO_PART = 0, 1, 2, -1
PARTS = (("train", TRAIN), ("test", TEST))
MAX_NPZ = 2**28  # 60,000 images of 32 x 32 in colour are 184 MB
MAX_CIFAR = 160_000_000  # the longest member: 50,000 records of CIFAR-100


@dataclass(frozen=True)
class Decoded:
    """images uint8 (n, C, size, size), labels int64 (n,), part int8 (n,); see DomainArrays."""

    images: Images
    labels: Labels
    part: Parts


Block = tuple[Images, Labels, int | Parts]  # images at the wanted size, and their part or parts
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
    """Blocks in order -> one Decoded; channels as in `stack`."""
    images, labels, parts = zip(*blocks, strict=True)
    channels = max(block.shape[1] for block in images)
    whole = [np.broadcast_to(block, (len(block), channels, *block.shape[2:])) for block in images]
    sized = [np.broadcast_to(part, len(y)) for part, y in zip(parts, labels, strict=True)]
    part = np.concatenate(sized).astype(np.int8)
    return Decoded(np.concatenate(whole), np.concatenate(labels), part)


def check_labels(raw: npt.NDArray[Any], classes: int, path: Path | str) -> Labels:
    """Labels as int64 (n,). FedReproError unless n > 0 and all are whole, in 0..classes-1."""
    check(raw.size > 0, path, "holds no images")
    labels = raw.reshape(-1).astype(np.int64)
    check(np.array_equal(labels, raw.reshape(-1)), path, "labels are not whole numbers")
    low, high = labels.min(), labels.max()
    check(0 <= low <= high < classes, path, f"labels run {low}..{high}, expected 0..{classes - 1}")
    return labels


# Released as arrays. torchvision reads some of them too, but trusts the files' headers.


def released(
    at: Located, size: int, path: Path, images: npt.NDArray[Any], raw: npt.NDArray[Any], *shape: int
) -> tuple[Images, Labels]:
    """Images (n, *shape), colours last, at the wanted size, and their labels. FedReproError unless
    they are uint8 of this shape and have n labels."""
    wanted = f"uint8 (n, {', '.join(map(str, shape))})"
    told = f"images are {images.dtype} {images.shape}, expected {wanted}"
    check(images.dtype == np.uint8 and images.shape[1:] == shape, path, told)
    check(raw.size == len(images), path, f"{raw.size} labels for {len(images)} images")
    labels = check_labels(raw, len(at.classes), path)
    return resize_stack(images, size), labels


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of an idx or gzipped idx file of unsigned bytes; the content decides which."""
    with reading(path):
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            opened = gzip.GzipFile(fileobj=raw) if packed else raw
            content = opened.read(MAX_FILE_BYTES + 1)
        magic, start = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions  # 8: unsigned bytes
        check(content[:4] == magic, path, f"starts with {content[:4].hex()}, not {magic.hex()}")
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
    full = len(content) - start == math.prod(shape)
    check(full, path, f"its content does not fill the shape {shape} it claims")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


@reader("mnist")
def mnist(at: Located, size: int) -> Iterator[Block]:
    """Four idx files; 28x28 grey, labels 0..9."""
    for name, part in PARTS:
        path = at.files[f"{name}-images"]
        images, labels = read_idx(path, 3), read_idx(at.files[f"{name}-labels"], 1)
        yield *released(at, size, path, images, labels, 28, 28), part


@reader("usps-libsvm")
def usps_libsvm(at: Located, size: int) -> Iterator[Block]:
    """bzip2 LIBSVM texts: labels 1..10 are the digits 0..9, 256 values in [-1, 1] per line."""
    from sklearn.datasets import load_svmlight_file  # costs a second to import

    for name, part in PARTS:
        path = at.files[name]
        with reading(path):
            with bz2.open(path) as file:
                text = file.read(MAX_FILE_BYTES + 1)
            check(len(text) <= MAX_FILE_BYTES, path, "unpacks to more than 64 MiB")
            check(text.endswith(b"\n"), path, "ends in the middle of a line")
            matrix, target = load_svmlight_file(BytesIO(text), n_features=16 * 16)
        values = matrix.toarray().astype(np.float32).reshape(-1, 16, 16)
        low, high = values.min(initial=0), values.max(initial=0)
        check(low >= -1 and high <= 1, path, f"pixel values run {low:g}..{high:g}, expected -1..1")
        images = ((values + 1) / 2 * 255).astype(np.uint8)  # truncated as torchvision does
        yield *released(at, size, path, images, target - 1, 16, 16), part


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
        yield *released(at, size, path, images, np.where(raw == 10, 0, raw), 32, 32, 3), part


@reader("mnistm-npz")
def mnistm_npz(at: Located, size: int) -> Iterator[Block]:
    """train_x, train_y, test_x, test_y; 32x32 colour, labels 0..9."""
    path = at.files["npz"]
    with reading(path):
        names = {f"{name}_{kind}.npy" for name, _ in PARTS for kind in "xy"}
        files = files_in(path, names.__contains__, MAX_NPZ)
        arrays = {f.parts[-1]: np.load(BytesIO(f.read()), allow_pickle=False) for f in files}
        for name, part in PARTS:
            images, raw = arrays[f"{name}_x.npy"], arrays[f"{name}_y.npy"]
            yield *released(at, size, path, images, raw, 32, 32, 3), part


@reader("cifar10-binary", "cifar100-binary")
def cifar(at: Located, size: int) -> Iterator[Block]:
    """Records: a label (CIFAR-100 has a coarse one before it), then red, green and blue planes, row
    by row. These official archives cannot run code."""
    archive, ten = at.files["archive"], len(at.classes) == 10
    train = [f"data_batch_{i}.bin" for i in range(1, 6)] if ten else ["train.bin"]
    test = "test_batch.bin" if ten else "test.bin"
    names = "batches.meta.txt" if ten else "fine_label_names.txt"
    start = 1 if ten else 2  # of the planes
    wanted, length = {*train, test, names}, start + 3 * 32 * 32
    files = files_in(archive, wanted.__contains__, MAX_CIFAR)
    members = {file.parts[-1]: file.read() for file in files}
    missing = sorted(wanted - set(members))
    check(not missing, archive, f"has no member {', '.join(missing)}")
    told = tuple(members[names].decode("utf-8", "replace").split())
    check(told == at.classes, archive, f"{names} lists other classes than expected")
    for name in (*train, test):
        whole = len(members[name]) % length == 0
        check(whole, archive, f"a member is not made of {length}-byte records")
        rows = np.frombuffer(members[name], np.uint8).reshape(-1, length)
        planes = rows[:, start:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        yield *released(at, size, archive, planes, rows[:, start - 1], 32, 32, 3), int(name == test)


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
        pictures = {file.parts[-1]: file for file in files_in(folder)}
        odd = sorted(rows.keys() ^ pictures.keys())
        check(not odd, folder, f"{len(odd)} pictures are only here or in {listing.name}: {odd[:1]}")
        labels = check_labels(np.array([*rows.values()]), 10, listing)
        decoded = (decode_image(pictures[f].read(), pictures[f].name, size) for f in rows)
        yield stack(decoded), labels, part


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


def collect(at: Located, size: int, where: Path, folders: Iterable[str]) -> Pictures:
    """The pictures of one domain, as from `decode_pictures`; none twice."""
    label = label_of(at, at.classes, [where.name] if where.is_dir() else folders)
    images, labels, keys = decode_pictures(where, label, size, at.domain)
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
    test list names the whole domain, so it is only compared with train and crossval."""
    images, labels, keys = collect(at, size, at.files["images"], at.folders)
    train, held, both = (_listed(at, f"{r}-list", 1) for r in ("train", "crossval", "test"))
    if both:
        path = at.files["test-list"]
        check(not train & held, path, "the train and crossval lists share files")
        check(train | held == both, path, "is not the train and crossval lists together")
        check(both == set(keys), path, f"does not name the {len(keys)} pictures that are here")
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
