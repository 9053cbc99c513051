"""Where data lie and where prepared arrays go: argument, else environment, else ~/.cache."""

from __future__ import annotations

import os
from pathlib import Path

from fedrepro.errors import FedReproError
from fedrepro.files import make_folder

DEFAULT = Path("~/.cache/fedrepro")


def _given(argument: Path | str | None, variable: str) -> Path | None:
    value = argument if argument is not None else os.environ.get(variable) or None
    return None if value is None else Path(value).expanduser()


def data_root(root: Path | str | None = None, create: bool = False) -> Path:
    """The folder with the official files ($FEDREPRO_DATA, else ~/.cache/fedrepro/data).

    It may be read-only. One that was named must exist unless ``create``; the default may be absent.
    """
    given = _given(root, "FEDREPRO_DATA")
    path = given if given is not None else (DEFAULT / "data").expanduser()
    if path.exists() and not path.is_dir():
        raise FedReproError(
            f"data root {path} is a file; give a folder with --root or FEDREPRO_DATA"
        )
    if create:
        return make_folder(path, "give a folder you may write to with --root or FEDREPRO_DATA")
    if given is not None and not path.exists():
        raise FedReproError(
            f"data root {path} does not exist; create it, or give another one with --root or "
            "FEDREPRO_DATA"
        )
    if path.exists() and not os.access(path, os.R_OK | os.X_OK):
        raise FedReproError(f"data root {path} cannot be read; change its permissions")
    return path


def cache_root(cache: Path | str | None = None) -> Path:
    """The folder for prepared arrays ($FEDREPRO_CACHE, else ~/.cache/fedrepro/prepared), made."""
    given = _given(cache, "FEDREPRO_CACHE")
    path = given if given is not None else (DEFAULT / "prepared").expanduser()
    if path.exists() and not path.is_dir():
        raise FedReproError(f"cache {path} is a file; give a folder with FEDREPRO_CACHE")
    return make_folder(path, "give a folder you may write to with FEDREPRO_CACHE")
