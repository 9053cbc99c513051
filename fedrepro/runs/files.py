"""Files that are either whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedrepro.errors import FedReproError


def write(path: Path, writer: Callable[[Path], object]) -> None:
    """Let `writer` fill a temporary file beside `path`, then rename it. OSError, a full disk say,
    leaves no half file and becomes one line."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise FedReproError(
                f"cannot write {path}: {reason}; free or change the place and run again, "
                "finished rounds are kept"
            ) from None
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, keys in their order."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write(path, lambda file: file.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; FedReproError naming the file where it is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedReproError(
            f"{path} cannot be read ({error}); delete its folder and run again"
        ) from None
    if not isinstance(content, dict):
        raise FedReproError(f"{path} is no JSON object; delete its folder and run again")
    return content
