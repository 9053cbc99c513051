"""Files in folders and archives, and pictures -> arrays, or one FedReproError that names the file.
The content is checked; a file's own header is not trusted."""

import re
import stat
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fedrepro.base.errors import FedReproError, need, one_line

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Opened = Callable[[], Any]  # a binary file, or None
LabelOf = Callable[[tuple[str, ...]], int | None]  # from the parts of a path
Pictures = tuple[Images, Labels, list[str]]

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")  # theirs; no other is ever decoded
MAX_PIXELS = 50_000_000  # a larger picture is not from a data set, but an attack or a mistake
MAX_FILE_BYTES = 64 * 2**20
MAX_ARCHIVE_BYTES = 16 * 2**30
MAX_MEMBERS = 200_000
MEND = "put the official file in its place"


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn any error of a parser on a broken file into one FedReproError that names the file."""
    try:
        yield
    except FedReproError:
        raise
    except Exception as error:  # each parser has its own errors, from SyntaxError to struct.error
        raise FedReproError(
            f"{path}: cannot be read ({one_line(error)}); the file is incomplete, changed or "
            "of another format: delete it and fetch it again"
        ) from error


def check(condition: bool, path: Path | str, problem: str) -> None:
    """Raise a FedReproError that names the file unless the condition is true."""
    need(condition, f"{path}: {problem}; {MEND}")


class TreeFile(NamedTuple):
    """A file: the parts of its path, and its name in a message. Read it before the next one."""

    parts: tuple[str, ...]
    name: str
    where: Path
    size: int
    opened: Opened

    def read(self) -> bytes:
        """All its bytes; no library reads more than the stated size."""
        with reading(self.where), self.opened() or BytesIO() as file:
            content: bytes = file.read()
        cut = f"a member is cut to {len(content)} of {self.size} bytes"
        check(len(content) == self.size, self.where, cut)
        return content


def list_pictures(folder: Path) -> list[Path]:
    """Every picture file below a folder that is in no hidden one, sorted by its relative path."""
    with reading(folder):
        found = [p for p in folder.rglob("*") if is_picture(p.name) and not p.is_dir()]
    shown = {p.relative_to(folder).as_posix(): p for p in found}
    return [p for name, p in sorted(shown.items()) if "/." not in f"/{name}"]


def is_picture(name: str) -> bool:
    """Whether a name has a picture's suffix and is not hidden (macOS leaves ._x.png)."""
    return not name.startswith(".") and name.lower().endswith(PICTURES)


def files_in(where: Path) -> Iterator[TreeFile]:
    """The pictures in a zip, a tar or a folder (paths start with its own name), in the archive's
    order. Nothing is extracted, and every member is checked before it is read. (tarfile's data
    filter protects extraction only.)"""
    total, above = 0, where.parent if where.is_dir() else where
    with reading(where):
        for count, (name, size, ordinary, opened) in enumerate(_members(where)):
            path, total = PurePosixPath(name), total + size
            outside = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name
            check(not outside, where, f"member {name!r} leaves the archive")
            check(ordinary, where, f"member {name!r} is a link or a device, or locked")
            check(size <= MAX_FILE_BYTES, where, f"member {name!r} is {size} bytes long")
            much = count >= MAX_MEMBERS or total > MAX_ARCHIVE_BYTES
            check(not much, where, f"holds over {MAX_MEMBERS} members or over 16 GiB")
            if is_picture(path.name):
                yield TreeFile(path.parts, f"{above}/{name}", where, size, opened)


def _members(where: Path) -> Iterator[tuple[str, int, bool, Opened]]:
    """Each file's name, size, whether it is a regular file, and a function that opens it."""
    if where.is_dir():
        for file in list_pictures(where):
            name = f"{where.name}/{file.relative_to(where).as_posix()}"
            yield name, file.stat().st_size, True, partial(file.open, "rb")
    elif where.suffix == ".zip":
        with zipfile.ZipFile(where) as packed:
            for entry in (e for e in packed.infolist() if not e.is_dir()):
                ordinary = not (stat.S_ISLNK(entry.external_attr >> 16) or entry.flag_bits & 1)
                yield entry.filename, entry.file_size, ordinary, partial(packed.open, entry)
    else:
        with tarfile.open(where, "r:*") as tar:
            for info in (m for m in tar if not m.isdir()):
                yield info.name, info.size, info.isreg(), partial(tar.extractfile, info)


def plain(name: str) -> str:
    """A folder name without case, leading numbers and separators: 007.Back-Pack -> backpack."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"^\d+\.", "", name.lower()))


def resized(image: Image.Image, size: int) -> Images:
    """Bilinear with antialiasing to uint8 (C, size, size), as torchvision's Resize of a picture."""
    array = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)


def on_white(image: Image.Image) -> Image.Image:
    """A picture without transparency; it would become black where it is transparent."""
    if not image.has_transparency_data:
        return image
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA"))


def decode_image(content: bytes, name: str, size: int, upright: bool = False) -> Images:
    """One picture file's bytes -> (C, size, size) uint8; grey files keep C = 1. upright: turned as
    its EXIF data say, and on white; never for official files."""
    with opened(BytesIO(content), name) as image:
        turned = on_white(ImageOps.exif_transpose(image)) if upright else image
        return resized(turned.convert("L" if image.mode in ("L", "1") else "RGB"), size)


@contextmanager
def opened(file: BytesIO | Path, name: str) -> Iterator[Image.Image]:
    """A picture of which only the header was read and checked."""
    large = f"is too large a picture, over {MAX_PIXELS // 10**6} megapixels"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                check(image.width * image.height <= MAX_PIXELS, name, large)
                eight = image.mode[0] not in "IF"
                check(eight, name, "has more than 8 bits per colour, save it with 8")
                yield image
        return
    except FedReproError:
        raise
    except Image.DecompressionBombError:
        problem = large
    except Exception:  # Pillow has many kinds, and words that name no file
        problem = f"cannot be read: it is cut, damaged or none of {', '.join(FORMATS)}"
    raise FedReproError(f"{name}: {problem}; {MEND}")


def decode_pictures(
    where: Path, label_of: LabelOf, size: int, domain: str, upright: bool = False
) -> Pictures:
    """The pictures whose path has a label, sorted by label, then file name.
    Returns images (n, C, size, size), labels (n,), and ``<label>/<file>`` keys."""
    found: list[tuple[int, str, Images]] = []
    for file in files_in(where):
        if (label := label_of(file.parts)) is not None:
            image = decode_image(file.read(), file.name, size, upright)
            found.append((label, file.parts[-1], image))
    check(len(found) > 0, where, f"holds no pictures of {domain}")
    found.sort(key=lambda item: item[:2])
    labels, names, images = zip(*found, strict=True)
    keys = [f"{label}/{name}" for label, name in zip(labels, names, strict=True)]
    return stack(images), np.array(labels, np.int64), keys


def stack(pictures: Iterable[Images]) -> Images:
    """(C, s, s) pictures -> (n, C, s, s); grey ones among coloured ones get equal channels."""
    found = list(pictures)
    channels = max(len(picture) for picture in found)
    return np.stack([np.broadcast_to(p, (channels, *p.shape[1:])) for p in found])


def resize_stack(arrays: Images, size: int) -> Images:
    """(n, H, W) grey or (n, H, W, 3) colour -> (n, C, size, size) uint8."""
    return stack(resized(Image.fromarray(one), size) for one in arrays)
