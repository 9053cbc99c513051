"""The unfinished state of a run: one safetensors file with its facts as JSON in the header, so that
tensors and facts are always of the same round.
The header also names the run, which is its folder, and has a checksum of the whole file
(`base.files`). It is computed after writing and checked before reading. Each takes a third of
a second for 1 GB; saving 1 GB takes 2 to 7 s."""

import json
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from fedrepro.base import files
from fedrepro.base.errors import FedReproError

NAME = "checkpoint.safetensors"
SHARE = 20  # saves may take this fraction (1/n) of the time
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int16: "I16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class FileCheckpoint:
    """A checkpoint in a run's folder, due every 30 seconds, or less often if it is large."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._every = 30.0
        self._saved = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._saved >= self._every

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the checkpoint. If the disk has no room, the old one stays, with a warning."""
        begun = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = sum(value.nbytes for value in tensors.values())
        free = shutil.disk_usage(self.path.parent).free
        if size > free:
            warnings.warn(
                f"a checkpoint needs {size / 1e9:.1f} GB, {self.path.parent} has {free / 1e9:.1f}: "
                "not saved; make room, or an interrupted run starts from an older one",
                stacklevel=2,
            )
        else:
            files.write(self.path, lambda file: _write(file, self.path.parent.name, tensors, facts))
        self._saved = time.monotonic()
        self._every = max(self._every, SHARE * (self._saved - begun))

    def load(self) -> tuple[Mapping[str, Tensor], dict[str, Any]] | None:
        """The tensors and facts, or None if there is no checkpoint."""
        if not self.path.exists():
            return None
        mend = "delete it to train this run from the start"
        if not files.is_whole(self.path):
            raise FedReproError(f"{self.path} is damaged, or older than checksums; {mend}")
        with safe_open(self.path, framework="pt") as file:
            run, facts = file.metadata()["run"], json.loads(file.metadata()["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if run != self.path.parent.name:
            raise FedReproError(f"{self.path} is of another run, {run}; {mend}")
        return tensors, facts

    def remove(self) -> None:
        """Delete the file, when the record is complete."""
        self.path.unlink(missing_ok=True)


def _write(path: Path, run: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write safetensors' format tensor by tensor; its own writer needs all twice in memory."""
    said = {**files.UNSIGNED, "run": run, "facts": json.dumps(facts)}
    header: dict[str, Any] = {"__metadata__": said}
    end = 0
    for name, value in tensors.items():
        start, end = end, end + value.nbytes
        entry = {"dtype": TYPES[value.dtype], "shape": list(value.shape)}
        header[name] = {**entry, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tofile(file)
    files.sign(path)
