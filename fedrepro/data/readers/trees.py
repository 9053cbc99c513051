"""Pictures in folders, in a tar or in a zip: one listing for all, members checked, nothing
extracted, and only what is asked for unpacked."""

from __future__ import annotations

import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from fedrepro.data.readers.common import MAX_FILE_BYTES, check, reading
from fedrepro.errors import FedReproError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
MAX_MEMBERS = 200_000
MAX_ARCHIVE_BYTES = 16 * 2**30


@dataclass(frozen=True)
class TreeFile:
    """A picture: its path inside the tree (parts, lower folders last); its bytes are read when
    asked for, while the listing stands at it."""

    parts: tuple[str, ...]
    read: Callable[[], bytes]

    @property
    def content(self) -> bytes:
        return self.read()


def plain(name: str) -> str:
    """A folder name without case, leading numbers and separators: 007.Back-Pack -> backpack."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"^\d+\.", "", name.lower()))


def is_picture(name: str) -> bool:
    """By suffix, hidden files (macOS leaves ._x.png) left out."""
    return not name.startswith(".") and name.lower().endswith(PICTURES)


def list_pictures(folder: Path) -> list[Path]:
    """Every picture file below a folder, sorted by its relative path."""
    found = []
    with reading(folder):
        for base, folders, names in os.walk(folder):
            folders.sort()
            found += [Path(base, name) for name in names if is_picture(name)]
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


class _Inspector:
    """Looks at every member of an archive, wanted or not, before anything of it is read."""

    def __init__(self, archive: Path, limit: int = MAX_FILE_BYTES) -> None:
        self.archive, self.limit, self.total = archive, limit, 0
        self.seen: set[PurePosixPath] = set()

    def path_of(self, name: str, size: int, plain_file: bool) -> PurePosixPath:
        """A member's path if it is a plain file of modest size inside the archive, and the only
        one of that name; else an error."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
            problem = "leaves the archive"
        elif not plain_file:
            problem = "is a link or a device, or locked"
        elif size > self.limit:
            problem = f"is {size} bytes long"
        else:
            self.total += size
            check(path not in self.seen, self.archive, f"member {name!r} occurs twice")
            check(len(self.seen) < MAX_MEMBERS, self.archive, f"has over {MAX_MEMBERS} members")
            check(self.total <= MAX_ARCHIVE_BYTES, self.archive, "holds more than 16 GiB")
            self.seen.add(path)
            return path
        raise FedReproError(
            f"{self.archive}: member {name!r} {problem}; this is not the official archive: delete "
            "it"
        )


def tar_files(archive: Path) -> Iterator[TreeFile]:
    """The pictures of a tar (compressed or not), in the archive's order."""
    inspector = _Inspector(archive)
    with reading(archive), tarfile.open(archive, "r:*") as tar:
        for member in tar:
            if not member.isdir():
                path = inspector.path_of(member.name, member.size, member.isreg())
                if is_picture(path.name):
                    yield TreeFile(path.parts, partial(_content, tar, member, archive))


def tar_members(archive: Path, names: Collection[str], limit: int) -> dict[str, bytes]:
    """The members of a tar with these file names, in whatever folder; all must be there, none
    longer than ``limit`` bytes."""
    inspector, found = _Inspector(archive, limit), dict[str, bytes]()
    with reading(archive), tarfile.open(archive, "r:*") as tar:
        for member in tar:
            if not member.isdir():
                path = inspector.path_of(member.name, member.size, member.isreg())
                if path.name in names:
                    check(path.name not in found, archive, f"holds {path.name} twice")
                    found[path.name] = _content(tar, member, archive)
    missing = sorted(set(names) - set(found))
    check(not missing, archive, f"has no member {', '.join(missing)}")
    return found


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> bytes:
    """One member's bytes, all of them."""
    with reading(archive):
        file = tar.extractfile(member)
        content = b"" if file is None else file.read()
    check(len(content) == member.size, archive, f"member {member.name!r} is cut")
    return content


def zip_files(archive: Path) -> Iterator[TreeFile]:
    """The pictures of a zip, in the archive's order."""
    inspector = _Inspector(archive)
    with reading(archive), zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            if not member.is_dir():
                locked = bool(member.flag_bits & 1)
                link = stat.S_ISLNK(member.external_attr >> 16)
                path = inspector.path_of(member.filename, member.file_size, not link and not locked)
                if is_picture(path.name):
                    yield TreeFile(path.parts, partial(_unzipped, packed, member, archive))


def _unzipped(packed: zipfile.ZipFile, member: zipfile.ZipInfo, archive: Path) -> bytes:
    """One member's bytes; zipfile reads no more than the member claims and checks its sum."""
    with reading(archive):
        content = packed.read(member)
    check(len(content) == member.file_size, archive, f"member {member.filename!r} is cut")
    return content
