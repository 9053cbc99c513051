"""Readers of the official files: by content and not by trust. A reader takes a ReadSpec and gives
a Decoded, or one FedReproError that names the file."""

from __future__ import annotations

from fedrepro.data.readers.cifar import (
    read_cifar10_binary,
    read_cifar100_binary,
    read_cifar_jpeg_tar,
)
from fedrepro.data.readers.common import Decoded, Reader, ReadSpec
from fedrepro.data.readers.digits import (
    read_mnist,
    read_mnistm_npz,
    read_svhn,
    read_usps_h5,
    read_usps_libsvm,
)
from fedrepro.data.readers.domainnet import read_domainnet_folders, read_domainnet_zip
from fedrepro.data.readers.pictures import (
    read_class_folders,
    read_class_tar,
    read_digit_folders,
    read_mnistm_folders,
)

READER_VERSION = 1  # raised whenever the arrays read from the same files change

READERS: dict[str, Reader] = {
    "mnist": read_mnist,
    "usps-libsvm": read_usps_libsvm,
    "usps-h5": read_usps_h5,
    "svhn": read_svhn,
    "mnistm-npz": read_mnistm_npz,
    "mnistm-folders": read_mnistm_folders,
    "digit-folders": read_digit_folders,
    "class-folders": read_class_folders,
    "class-tar": read_class_tar,
    "domainnet-folders": read_domainnet_folders,
    "domainnet-zip": read_domainnet_zip,
    "cifar10-binary": read_cifar10_binary,
    "cifar100-binary": read_cifar100_binary,
    "cifar-jpeg-tar": read_cifar_jpeg_tar,
}

__all__ = ["READERS", "READER_VERSION", "Decoded", "ReadSpec", "Reader"]
