"""Where data lie and where prepared arrays go: argument, else environment, else ~/.cache."""

from __future__ import annotations

import os
from pathlib import Path

from fedrepro.base.errors import FedReproError
from fedrepro.base.files import make_folder

DEFAULT = "~/.cache/fedrepro"
DATA, CACHE = "FEDREPRO_DATA", "FEDREPRO_CACHE"
SAY_DATA, SAY_CACHE = f"with --root or {DATA}", f"with {CACHE}"


def _folder(given: Path | str | None, default: str, kind: str, say: str) -> Path:
    path = Path(given if given is not None else f"{DEFAULT}/{default}").expanduser()
    if path.exists() and not path.is_dir():
        raise FedReproError(f"{kind} {path} is a file; give a folder {say}")
    return path


def data_root(root: Path | str | None = None, create: bool = False) -> Path:
    """The folder with the official files ($FEDREPRO_DATA, else ~/.cache/fedrepro/data).

    It may be read-only. One that was named must exist unless ``create``; the default may be absent.
    """
    given = root if root is not None else os.environ.get(DATA) or None
    path = _folder(given, "data", "data root", SAY_DATA)
    if create:
        return make_folder(path, f"give a folder you may write to {SAY_DATA}")
    if given is not None and not path.exists():
        raise FedReproError(
            f"data root {path} does not exist; create it, or give another one {SAY_DATA}"
        )
    if path.exists() and not os.access(path, os.R_OK | os.X_OK):
        raise FedReproError(f"data root {path} cannot be read; change its permissions")
    return path


def cache_root(cache: Path | str | None = None) -> Path:
    """The folder for prepared arrays ($FEDREPRO_CACHE, else ~/.cache/fedrepro/prepared), made."""
    given = cache if cache is not None else os.environ.get(CACHE) or None
    path = _folder(given, "prepared", "cache", SAY_CACHE)
    return make_folder(path, f"give a folder you may write to {SAY_CACHE}")
