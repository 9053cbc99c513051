"""Prepared arrays: one safetensors file a domain and size. It memory-maps and cannot run code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedrepro import files
from fedrepro.data.readers.common import Decoded, Images

MEND = "free some space or set FEDREPRO_CACHE to a folder you may write to"
NAMES = {"images", "labels", "part"}
DTYPES = {"U8": np.uint8, "I8": np.int8, "I64": np.int64}


def cache_path(cache: Path, name: str, size: int, hash: str) -> Path:
    """The hash is part of the name, so other files or readers never meet old arrays."""
    return cache / f"{name}-{size}-{hash[:16]}.safetensors"


def write_arrays(path: Path, decoded: Decoded, facts: dict[str, str]) -> None:
    """One file, whole or not at all."""
    arrays = {"images": decoded.images, "labels": decoded.labels, "part": decoded.part}
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # one string, because safetensors writes several in no fixed order
    note = {"fedrepro": json.dumps(facts, sort_keys=True)}
    files.write(path, lambda file: save_file(whole, file, metadata=note), MEND)


def open_arrays(path: Path, hash: str) -> tuple[Decoded, dict[str, str]] | None:
    """Arrays (images memory-mapped read-only) and their facts; None if absent, cut or of another
    hash, which means: prepare again."""
    try:
        with safe_open(str(path), framework="np") as file:  # checks the header and the length
            facts: dict[str, str] = json.loads((file.metadata() or {})["fedrepro"])
            if set(file.keys()) != NAMES or facts.get("hash") != hash:
                return None
            labels, part = file.get_tensor("labels"), file.get_tensor("part")
        images = _map(path, "images")
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    return Decoded(images, labels, part), facts


def _map(path: Path, name: str) -> Images:
    """numpy.memmap of one tensor: safe_open's numpy tensors are copies, not views of the file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    entry = header[name]
    return np.memmap(
        path,
        dtype=DTYPES[entry["dtype"]],
        mode="r",
        offset=8 + length + entry["data_offsets"][0],
        shape=tuple(entry["shape"]),
    )
