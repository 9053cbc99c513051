"""Small files of each kind, and what readers make of them."""

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedrepro.base.errors import FedReproError
from fedrepro.data.manifest import Collection, Located
from fedrepro.data.readers import READERS, Decoded

Members = dict[str, bytes]


def read(reader: str, size: int, files: dict[str, Path], *known: Any) -> Decoded:
    of, domain = known or (collection("made", reader, {"any": ("", b"")}), "made")
    return READERS[reader](Located(domain, of, of.sources[0], Path(), files, {}, ()), size)


@contextmanager
def one_line(message: str) -> Iterator[pytest.ExceptionInfo[FedReproError]]:
    """What follows is refused in one line that says this."""
    with pytest.raises(FedReproError, match=message) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def refused(message: str, path: Path, reader: str, files: dict[str, Path], *known: Any) -> None:
    with one_line(message) as caught:
        read(reader, 8, files, *known)
    assert path.name in str(caught.value)


def picture(value: int, mode: str = "RGB", side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (side, side), value if mode == "L" else (value, 0, 255)).save(buffer, "PNG")
    return buffer.getvalue()


def collection(
    domain: str, reader: str, files: dict[str, tuple[str, bytes]], **source: Any
) -> Collection:
    entries = [
        {"role": role, "names": [name], "hash": f"sha256:{hashlib.sha256(content).hexdigest()}"}
        for role, (name, content) in files.items()
    ]
    told = {"licence": "free", "citation": "none", "manual": "By hand.", "places": ["mnist", ""]}
    told |= {"domains": {domain: {"folders": [domain]}}}
    told |= {"sources": [{"name": "official", "reader": reader, "files": entries, **source}]}
    return Collection.model_validate(told)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def pack(path: Path, members: Members) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in members.items():
                info = zipfile.ZipInfo("x")
                info.filename = name  # the constructor would mend a hostile name
                packed.writestr(info, content)
    elif path.name.endswith((".tar", ".tar.gz")):
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    else:
        for name, content in members.items():
            put(path.parent / name, content)
    return path
