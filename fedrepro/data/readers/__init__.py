"""Readers of the official files: ReadSpec -> Decoded (images, labels, parts), or one FedReproError
that names the file. They check content and believe nothing that a file says of itself.

Each module in this folder registers its readers by name; a new data set is one more module."""

from __future__ import annotations

import importlib
import pkgutil

from fedrepro.data.readers.common import READERS, Decoded, ReadSpec

READER_VERSION = 1  # raised whenever the arrays read from the same files change

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["READERS", "READER_VERSION", "Decoded", "ReadSpec"]
