"""Readers of the official files: by content and not by trust. A reader takes a ReadSpec and gives
a Decoded, or one FedReproError that names the file."""

from __future__ import annotations

from fedrepro.data.readers import cifar, digits, pictures
from fedrepro.data.readers.common import Decoded, Reader, ReadSpec

READER_VERSION = 1  # raised whenever the arrays read from the same files change

# The names are part of the hash of what is read, so that they stay where readers became one.
READERS: dict[str, Reader] = {
    "mnist": digits.read_mnist,
    "usps-libsvm": digits.read_usps_libsvm,
    "usps-h5": digits.read_usps_h5,
    "svhn": digits.read_svhn,
    "mnistm-npz": digits.read_mnistm_npz,
    "mnistm-folders": pictures.read_mnistm_folders,
    "digit-folders": pictures.read_part_folders,
    "class-folders": pictures.read_classes,
    "class-tar": pictures.read_classes,
    "domainnet-folders": pictures.read_domainnet,
    "domainnet-zip": pictures.read_domainnet,
    "cifar10-binary": cifar.read_cifar10_binary,
    "cifar100-binary": cifar.read_cifar100_binary,
    "cifar-jpeg-tar": pictures.read_part_folders,
}

__all__ = ["READERS", "READER_VERSION", "Decoded", "ReadSpec", "Reader"]
