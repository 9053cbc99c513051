"""The unfinished state of a run: one safetensors file, its facts as JSON in the file's header, so
that tensors and facts can never be of different rounds."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedrepro import files
from fedrepro.errors import FedReproError

NAME = "checkpoint.safetensors"


class FileCheckpoint:
    """A checkpoint in a run's folder, due every `every` seconds."""

    def __init__(self, folder: Path, every: float = 30.0) -> None:
        self.path = folder / NAME
        self._every = every
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Whether enough time has passed since the last save."""
        return time.monotonic() - self._saved >= self._every

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the checkpoint. Tensors are written apart and in plain order."""
        whole = torch.contiguous_format
        apart = {k: v.detach().cpu().clone(memory_format=whole) for k, v in tensors.items()}
        header = {"facts": json.dumps(facts)}
        files.write(self.path, lambda file: save_file(apart, file, metadata=header))
        self._saved = time.monotonic()

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors and facts, or None where there is no checkpoint."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                facts = json.loads(file.metadata()["facts"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise FedReproError(
                f"{self.path} is damaged ({error}); delete it to train this run from the start"
            ) from None
        return tensors, facts

    def remove(self) -> None:
        """Delete the file, once the record is whole."""
        self.path.unlink(missing_ok=True)
