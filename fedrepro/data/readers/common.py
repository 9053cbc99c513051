"""What all readers share: the decoded form, resizing, and turning any broken file into one line."""

from __future__ import annotations

import lzma
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedrepro.errors import FedReproError, one_line

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Parts = npt.NDArray[np.int8]

TRAIN, TEST, VALIDATION, NO_PART = 0, 1, 2, -1
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
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        EOFError,
        SyntaxError,  # PIL's word for a broken PNG
        NotImplementedError,  # scipy's word for a MATLAB 7.3 file
        MemoryError,
        zlib.error,
        lzma.LZMAError,
        struct.error,
        tarfile.TarError,
        zipfile.BadZipFile,
        Image.DecompressionBombError,
    ) as error:
        raise FedReproError(
            f"{path}: cannot be read ({one_line(error)}); the file is cut, altered or of another "
            "format: delete it and fetch it again"
        ) from error


def check(condition: bool, path: Path | str, problem: str) -> None:
    """Raise one line naming the file unless the condition holds."""
    if not condition:
        raise FedReproError(f"{path}: {problem}; put the official file in its place")


def check_labels(labels: Labels, classes: int, path: Path | str) -> None:
    """There must be labels, all in 0..classes-1."""
    check(labels.size > 0, path, "holds no images")
    low, high = int(labels.min()), int(labels.max())
    check(
        low >= 0 and high < classes,
        path,
        f"labels run {low}..{high}, expected 0..{classes - 1}",
    )


def resized(image: Image.Image, size: int) -> Image.Image:
    """Bilinear with antialiasing to size x size, as torchvision's Resize does on a PIL image."""
    if image.size == (size, size):
        return image
    return image.resize((size, size), Image.Resampling.BILINEAR)


def resize_stack(stack: Images, size: int) -> Images:
    """(n, H, W) grey or (n, H, W, 3) colour -> (n, C, size, size) uint8."""
    grey = stack.ndim == 3
    n, height, width = stack.shape[:3]
    channels = 1 if grey else stack.shape[3]
    if (height, width) == (size, size):
        moved = stack[:, None] if grey else np.moveaxis(stack, 3, 1)
        return np.ascontiguousarray(moved)
    out = np.empty((n, channels, size, size), np.uint8)
    for index in range(n):
        small = np.asarray(resized(Image.fromarray(np.ascontiguousarray(stack[index])), size))
        out[index] = small[None] if grey else np.moveaxis(small, 2, 0)
    return out


def decode_image(content: bytes, name: str, size: int) -> Images:
    """One picture file's bytes -> (C, size, size) uint8; grey files keep C = 1."""
    with reading(name), warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(BytesIO(content), formats=("PNG", "JPEG", "BMP")) as image:
            check(image.width * image.height <= MAX_PIXELS, name, "is too large a picture")
            small = resized(image.convert("L" if image.mode in ("L", "1") else "RGB"), size)
        array = np.asarray(small, dtype=np.uint8)
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)


def stack_images(images: Iterable[Images], path: Path | str) -> Images:
    """(C, s, s) pictures -> (n, C, s, s); C = 1 only where all of them are grey."""
    pictures = list(images)
    check(len(pictures) > 0, path, "holds no images")
    channels = max(picture.shape[0] for picture in pictures)
    out = np.empty((len(pictures), channels, *pictures[0].shape[1:]), np.uint8)
    for index, picture in enumerate(pictures):
        out[index] = picture  # a grey picture among coloured ones is repeated over the channels
    return out


def join(parts: list[tuple[Images, Labels, int]]) -> Decoded:
    """(images, labels, part number) blocks, in order -> one Decoded."""
    return Decoded(
        np.concatenate([images for images, _, _ in parts]) if len(parts) > 1 else parts[0][0],
        np.concatenate([labels for _, labels, _ in parts]).astype(np.int64),
        np.concatenate([np.full(len(labels), part, np.int8) for _, labels, part in parts]),
    )
