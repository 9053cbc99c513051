"""Checksums inside safetensors files: over all bytes, header included, except their own digits.

CRC-32 detects every change within 32 neighbouring bits, and misses one in 4 billion others. One
core checks 3.2 GB per second, with SHA-256 1.0. It does not protect against deliberate changes.
"""

import re
import zlib
from pathlib import Path
from typing import BinaryIO

UNSIGNED = {"checksum": "0" * 8}  # what a header says until its file is signed
CHUNK = 1 << 24
MARK = re.compile(rb"checksum\W{1,8}([0-9a-f]{8})\W")  # the quotes are escaped inside JSON's own


def sign(path: Path) -> None:
    """Write the checksum of a finished file into its header, in place of `UNSIGNED`."""
    with path.open("r+b") as file:
        header, at = _header(file)
        checksum = _sum(file, zlib.crc32(header))
        file.seek(at)
        file.write(b"%08x" % checksum)


def is_whole(path: Path) -> bool:
    """Whether a file is unchanged since it was signed; False if absent or never signed."""
    try:
        with path.open("rb") as file:
            header, at = _header(file)
            said = header[at : at + 8]
            rest = header[:at] + b"0" * 8 + header[at + 8 :]
            return said == b"%08x" % _sum(file, zlib.crc32(rest))
    except (OSError, ValueError):
        return False


def _header(file: BinaryIO) -> tuple[bytes, int]:
    """A file's first bytes up to its tensors, and the checksum's position in them."""
    length = int.from_bytes(file.read(8), "little")
    size = file.seek(0, 2)
    file.seek(0)
    header = file.read(8 + min(length, size))
    found = MARK.search(header)
    if found is None:
        raise ValueError("no checksum")
    return header, found.start(1)


def _sum(file: BinaryIO, checksum: int) -> int:
    """The checksum so far, continued to the end of the file."""
    while chunk := file.read(CHUNK):
        checksum = zlib.crc32(chunk, checksum)
    return checksum
