"""What all readers share: the decoded form, resizing, and turning any broken file into one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedrepro.base.errors import FedReproError, one_line

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Parts = npt.NDArray[np.int8]

TRAIN, TEST, VALIDATION, NO_PART = 0, 1, 2, -1
PARTS = (("train", TRAIN), ("test", TEST))
MAX_PIXELS = 50_000_000  # a picture of more is no data set picture but an attack or a mistake
MAX_FILE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Decoded:
    """images uint8 (n, C, size, size), labels int64 (n,), part int8 (n,); see DomainArrays."""

    images: Images
    labels: Labels
    part: Parts


@dataclass(frozen=True)
class ReadSpec:
    """What a reader is told: files by role, the domain's folder names, classes (and their other
    spellings), the image size wanted, and, where the data set keeps only some of the release's
    classes, all of them in the release's order."""

    domain: str
    files: Mapping[str, Path]
    size: int
    folders: tuple[str, ...]
    classes: tuple[str, ...]
    spellings: Mapping[str, tuple[str, ...]]
    all_classes: tuple[str, ...] = ()


Reader = Callable[[ReadSpec], Decoded]


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Whatever a parser raises on a broken file leaves as one FedReproError naming the file."""
    try:
        yield
    except FedReproError:
        raise
    except Exception as error:  # each parser has its own kinds, from SyntaxError to struct.error
        raise FedReproError(
            f"{path}: cannot be read ({one_line(error)}); the file is cut, altered or of another "
            "format: delete it and fetch it again"
        ) from error


def check(condition: bool, path: Path | str, problem: str) -> None:
    """Raise one line naming the file unless the condition holds."""
    if not condition:
        raise FedReproError(f"{path}: {problem}; put the official file in its place")


def check_labels(raw: npt.NDArray[Any], classes: int, path: Path | str) -> Labels:
    """Labels as int64 (n,): there must be some, whole numbers in 0..classes-1."""
    check(raw.size > 0, path, "holds no images")
    labels = raw.reshape(-1).astype(np.int64)
    check(np.array_equal(labels, raw.reshape(-1)), path, "labels are not whole numbers")
    low, high = int(labels.min()), int(labels.max())
    fits = low >= 0 and high < classes
    check(fits, path, f"labels run {low}..{high}, expected 0..{classes - 1}")
    return labels


def resized(image: Image.Image, size: int) -> Images:
    """Bilinear with antialiasing to uint8 (C, size, size), as torchvision's Resize of a picture."""
    array = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)


def resize_stack(stack: Images, size: int) -> Images:
    """(n, H, W) grey or (n, H, W, 3) colour -> (n, C, size, size) uint8."""
    channels = 1 if stack.ndim == 3 else stack.shape[3]
    if stack.shape[1:3] == (size, size):
        return np.ascontiguousarray(stack[:, None] if channels == 1 else np.moveaxis(stack, 3, 1))
    out = np.empty((len(stack), channels, size, size), np.uint8)
    for index, picture in enumerate(stack):
        out[index] = resized(Image.fromarray(np.ascontiguousarray(picture)), size)
    return out


def decode_image(content: bytes, name: str, size: int) -> Images:
    """One picture file's bytes -> (C, size, size) uint8; grey files keep C = 1."""
    with reading(name), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(BytesIO(content), formats=("PNG", "JPEG", "BMP")) as image:
            check(image.width * image.height <= MAX_PIXELS, name, "is too large a picture")
            return resized(image.convert("L" if image.mode in ("L", "1") else "RGB"), size)


def stack_images(images: Iterable[Images], path: Path | str) -> Images:
    """(C, s, s) pictures -> (n, C, s, s); C = 1 only where all of them are grey."""
    pictures = list(images)
    check(len(pictures) > 0, path, "holds no images")
    channels = max(picture.shape[0] for picture in pictures)
    out = np.empty((len(pictures), channels, *pictures[0].shape[1:]), np.uint8)
    for index, picture in enumerate(pictures):
        out[index] = picture  # a grey picture among coloured ones is repeated over the channels
    return out


def join(blocks: list[tuple[Images, Labels, int]]) -> Decoded:
    """(images, labels, part number) blocks, in order -> one Decoded; grey blocks among coloured
    ones are repeated over the channels."""
    channels = max(images.shape[1] for images, _, _ in blocks)
    return Decoded(
        np.concatenate([np.repeat(i, channels // i.shape[1], 1) for i, _, _ in blocks]),
        np.concatenate([labels for _, labels, _ in blocks]),
        np.concatenate([np.full(len(labels), part, np.int8) for _, labels, part in blocks]),
    )
