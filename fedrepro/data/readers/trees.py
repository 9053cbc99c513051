"""Pictures in folders or in a tar: one listing for both, members checked, nothing extracted."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedrepro.data.readers.common import MAX_FILE_BYTES, check, reading
from fedrepro.errors import FedReproError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
MAX_MEMBERS = 200_000
MAX_TAR_BYTES = 16 * 2**30


@dataclass(frozen=True)
class TreeFile:
    """A picture: its path inside the tree (parts, lower folders last) and its bytes."""

    parts: tuple[str, ...]
    content: bytes


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
        with reading(path):
            check(path.stat().st_size <= MAX_FILE_BYTES, path, "is larger than 64 MiB")
            content = path.read_bytes()
        yield TreeFile((folder.name, *path.relative_to(folder).parts), content)


def check_member(member: tarfile.TarInfo, archive: Path) -> PurePosixPath:
    """A member's path if it is a plain file of modest size inside the archive, else an error."""
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        problem = "leaves the archive"
    elif not member.isreg():
        problem = "is a link or a device"
    elif member.size > MAX_FILE_BYTES:
        problem = f"is {member.size} bytes long"
    else:
        return path
    raise FedReproError(
        f"{archive}: member {member.name!r} {problem}; this is not the official archive: delete it"
    )


def tar_files(archive: Path) -> Iterator[TreeFile]:
    """The pictures of a tar (compressed or not), in the archive's order; every member is checked,
    also those that are no pictures, and a repeated name is refused."""
    seen: set[PurePosixPath] = set()
    total = 0
    with reading(archive), tarfile.open(archive, "r:*") as tar:
        for member in tar:
            if member.isdir():
                continue
            path = check_member(member, archive)
            total += member.size
            check(path not in seen, archive, f"member {member.name!r} occurs twice")
            check(len(seen) < MAX_MEMBERS, archive, f"has more than {MAX_MEMBERS} members")
            check(total <= MAX_TAR_BYTES, archive, "holds more than 16 GiB")
            seen.add(path)
            if is_picture(path.name):
                yield TreeFile(path.parts, _content(tar, member, archive))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> bytes:
    """One member's bytes, all of them."""
    file = tar.extractfile(member)
    content = b"" if file is None else file.read()
    check(len(content) == member.size, archive, f"member {member.name!r} is cut")
    return content
