"""Pictures in folders, in a tar or in a zip: one listing for all, members checked, nothing
extracted, and only what is asked for unpacked."""

from __future__ import annotations

import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from fedrepro.data.readers.common import MAX_FILE_BYTES, check, reading

PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
MAX_MEMBERS = 200_000
MAX_ARCHIVE_BYTES = 16 * 2**30

Member = TypeVar("Member", tarfile.TarInfo, zipfile.ZipInfo)


class TreeFile(NamedTuple):
    """A file: its path inside the tree (parts, lower folders last); its bytes are read when asked
    for, while the listing stands at it."""

    parts: tuple[str, ...]
    read: Callable[[], bytes]


def plain(name: str) -> str:
    """A folder name without case, leading numbers and separators: 007.Back-Pack -> backpack."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"^\d+\.", "", name.lower()))


def is_picture(name: str) -> bool:
    """By suffix, hidden files (macOS leaves ._x.png) left out."""
    return not name.startswith(".") and name.lower().endswith(PICTURES)


def list_pictures(folder: Path) -> list[Path]:
    """Every picture file below a folder, sorted by its relative path."""
    with reading(folder):
        found = [p for p in folder.rglob("*") if is_picture(p.name) and not p.is_dir()]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def folder_files(folder: Path) -> Iterator[TreeFile]:
    """The pictures of a folder; parts start with the folder's own name."""
    for path in list_pictures(folder):
        parts = (folder.name, *path.relative_to(folder).parts)
        yield TreeFile(parts, partial(_file_content, path))


def _file_content(path: Path) -> bytes:
    with reading(path):
        check(path.stat().st_size <= MAX_FILE_BYTES, path, "is larger than 64 MiB")
        return path.read_bytes()


def tree_files(where: Path) -> Iterator[TreeFile]:
    """The pictures of a folder, a zip or a tar."""
    if where.is_dir():
        return folder_files(where)
    return zip_files(where) if where.suffix == ".zip" else tar_files(where)


def _inspected(
    archive: Path, members: Iterable[tuple[Member, str, int, bool]], limit: int | None
) -> Iterator[tuple[Member, PurePosixPath]]:
    """Look at every member (name, size, whether a plain file), wanted or not, before anything of
    it is read. One check for tar and zip: the standard library's filter for tars only guards what
    is extracted, and mends or allows some of what is refused here."""
    limit, total, seen = limit or MAX_FILE_BYTES, 0, set[PurePosixPath]()
    for member, name, size, plain_file in members:
        path, said = PurePosixPath(name), f"member {name!r}"
        outside = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name
        check(not outside, archive, f"{said} leaves the archive")
        check(plain_file, archive, f"{said} is a link or a device, or locked")
        check(size <= limit, archive, f"{said} is {size} bytes long")
        check(path not in seen, archive, f"{said} occurs twice")
        seen.add(path)
        total += size
        check(len(seen) <= MAX_MEMBERS, archive, f"has over {MAX_MEMBERS} members")
        check(total <= MAX_ARCHIVE_BYTES, archive, "holds more than 16 GiB")
        yield member, path


def tar_files(
    archive: Path, wanted: Callable[[str], bool] = is_picture, limit: int | None = None
) -> Iterator[TreeFile]:
    """The files of a tar (compressed or not) with a wanted name, in the archive's order."""
    with reading(archive), tarfile.open(archive, "r:*") as tar:
        members = ((m, m.name, m.size, m.isreg()) for m in tar if not m.isdir())
        for member, path in _inspected(archive, members, limit):
            if wanted(path.name):
                yield TreeFile(path.parts, partial(_content, archive, member.size, tar, member))


def zip_files(
    archive: Path, wanted: Callable[[str], bool] = is_picture, limit: int | None = None
) -> Iterator[TreeFile]:
    """The same of a zip."""
    with reading(archive), zipfile.ZipFile(archive) as packed:
        files = (m for m in packed.infolist() if not m.is_dir())
        members = ((m, m.filename, m.file_size, _is_plain(m)) for m in files)
        for member, path in _inspected(archive, members, limit):
            if wanted(path.name):
                size = member.file_size
                yield TreeFile(path.parts, partial(_content, archive, size, packed, member))


def _is_plain(member: zipfile.ZipInfo) -> bool:
    return not (stat.S_ISLNK(member.external_attr >> 16) or member.flag_bits & 1)


def _content(
    archive: Path, size: int, opened: tarfile.TarFile | zipfile.ZipFile, member: Any
) -> bytes:
    """One member's bytes, all of them; neither library reads more than the member claims."""
    with reading(archive):
        if isinstance(opened, zipfile.ZipFile):
            content = opened.read(member)
        else:
            file = opened.extractfile(member)
            content = b"" if file is None else file.read()
    check(len(content) == size, archive, f"a member is cut to {len(content)} of {size} bytes")
    return content
