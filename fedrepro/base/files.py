"""Files that are complete or absent, written under a temporary name, and their checksums; paths:
the checkout, if there is one, and the folder of runs; and the modules of a package."""

import gzip
import hashlib
import importlib
import json
import mmap
import os
import pkgutil
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError

from fedrepro.base.errors import explained, need

CHECKOUT = Path(__file__).resolve().parents[2]
RECORDS = CHECKOUT / "book" / "records"  # the published, packed ones
LIST = CHECKOUT / "book" / "campaign.yaml"
# In the checkout, from any working directory; without a checkout, in the working directory.
RUNS = CHECKOUT / "runs" if (CHECKOUT / "notebooks").is_dir() else Path("runs")
# Environment variables: Python files with methods, joined like PATH; the tracker of runs; the
# folder of answers to claims that the pages of one build share.
LOAD, TRACK, ANSWERS = "FEDREPRO_LOAD", "FEDREPRO_TRACK", "FEDREPRO_ANSWERS"
# How to get a checkout, which a wheel lacks.
CLONE = "clone the repository and install it with `pip install -e .`"

# Checksums inside safetensors files: over all bytes, header included, except their own digits.
# CRC-32 detects every change within 32 neighbouring bits, and misses one in 4 billion others. One
# core checks 3.2 GB per second, with SHA-256 1.0. It does not protect against deliberate changes.
UNSIGNED = {"checksum": "0" * 8}  # what a header says until its file is signed
MARK = re.compile(rb"checksum\W{1,8}([0-9a-f]{8})\W")  # the quotes are escaped inside JSON's own

RUN_AGAIN = "make room or change the place and run again, finished rounds are kept"


def loaded() -> list[Path]:
    """The files with the user's own methods, as `--load` named them."""
    return [Path(name) for name in os.environ.get(LOAD, "").split(os.pathsep) if name]


def loaded_code() -> str:
    """A checksum of these files; empty if there are none."""
    code = b"".join(file.read_bytes() for file in loaded() if file.is_file())
    return hashlib.sha256(code).hexdigest() if code else ""


def sign(path: Path) -> None:
    """Write the checksum of a finished file into its header, in place of `UNSIGNED`."""
    with path.open("r+b") as file:
        at, checksum = _checksum(file.fileno())
        file.seek(at)
        file.write(checksum)


def is_whole(path: Path) -> bool:
    """Whether a file is unchanged since it was signed; False if absent or never signed."""
    try:
        with path.open("rb") as file:
            at, checksum = _checksum(file.fileno())
            file.seek(at)
            return file.read(len(checksum)) == checksum
    except (OSError, ValueError):
        return False


def _checksum(file: int) -> tuple[int, bytes]:
    """Where a file's header has its checksum, and what that should be."""
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as whole:
        end = 8 + int.from_bytes(whole[:8], "little")  # of the header
        found = MARK.search(bytes(whole[:end]))
        if found is None:
            raise ValueError("no checksum")
        at = found.start(1)
        before = zlib.crc32(UNSIGNED["checksum"].encode(), zlib.crc32(whole[:at]))
        return at, b"%08x" % zlib.crc32(whole[at + 8 :], before)


def write(path: Path, writer: Callable[[Path], object], mend: str = RUN_AGAIN) -> None:
    """Let `writer` fill a temporary file, then rename it. A failure leaves no partial file and
    gives one line that ends in `mend`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    make_folder(path.parent, mend)
    with explained(f"{path} cannot be written", mend, OSError, SafetensorError):
        try:
            writer(temporary)
            temporary.chmod(0o644)  # safetensors writes files only their owner may read
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def full(place: Path | str) -> Path:
    """A path whose ~ is replaced. FedReproError: it is that of an unknown user."""
    with explained(f"{place} cannot be read", "correct the path", RuntimeError):
        return Path(place).expanduser()


def make_folder(path: Path, mend: str) -> Path:
    """Make a folder and its parents. FedReproError, ending in `mend`, if this is impossible."""
    with explained(f"{path} cannot be made", mend, OSError):
        path.mkdir(parents=True, exist_ok=True)
    return path


def alone(lock: Path, mend: str, busy: str) -> AbstractContextManager[Any]:
    """Inside, no other process holds this lock. One that does is waited for, and `busy` is said.
    FedReproError, ending in `mend`, if it cannot be made."""
    from filelock import FileLock, Timeout  # not where only help is asked for

    make_folder(lock.parent, mend)
    held = FileLock(lock)
    with explained(f"{lock} cannot be written", mend, OSError):
        try:
            return held.acquire(timeout=0)
        except Timeout:  # an OSError
            print(f"{busy}; waiting for it", file=sys.stderr)
            return held.acquire()


def check_runs(folder: Path) -> None:
    """FedReproError where a file has the place of the folder of runs."""
    here = folder.is_dir() or not folder.exists()
    need(here, f"runs folder {folder} is a file; name a folder for runs")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, keys in their order."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write(path, lambda file: file.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. FedReproError: it is not one."""
    mend = "delete its folder and run again"
    with explained(f"{path} cannot be read", mend, OSError, ValueError):
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    return content


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]], before: bytes = b"") -> None:
    """Write mappings as JSON, one per line, after what is given; compressed if named ``.gz``."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    content = before + (gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    write(path, lambda file: file.write_bytes(content))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of such a file; none where there is no file."""
    if not path.exists():
        return []
    problem, errors = f"{path} cannot be read", (OSError, EOFError, zlib.error, ValueError)
    with explained(problem, "restore the file", *errors):
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        return [json.loads(line) for line in text.splitlines()]  # bytes: not at U+2028


def list_sums(folder: Path, without: str = "") -> None:
    """Write `done`: the SHA-256 of every file of a run's folder by name."""
    parts = sorted(p for p in folder.glob("[!.]*") if p.is_file() and p.name != without)
    write_json(folder / "done", {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in parts})


def modules_of(*packages: str) -> list[ModuleType]:
    """Every module of some packages, imported, so that their methods and readers are registered."""
    return [
        importlib.import_module(f"{package}.{module.name}")
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
