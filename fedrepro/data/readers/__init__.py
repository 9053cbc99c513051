"""Readers of the official files: ReadSpec -> Decoded (images, labels, parts), or one FedReproError
that names the file. They check the content and do not trust a file's own header.

Each module in this folder registers its readers by name. A new data set needs a new module."""

from fedrepro.base.places import modules_of
from fedrepro.data.readers.common import READERS, Decoded, ReadSpec

READER_VERSION = 1  # raised whenever the arrays read from the same files change

modules_of(__name__)

__all__ = ["READERS", "READER_VERSION", "Decoded", "ReadSpec"]
