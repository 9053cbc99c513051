"""Domain sets: official files (or the generator) -> uint8 arrays in a cache -> clients."""

from __future__ import annotations

from fedrepro.data.domains import DATASETS, DomainArrays, load_domain
from fedrepro.data.download import Fetched, fetch
from fedrepro.data.inventory import DomainStatus, Prepared, prepare, status

__all__ = [
    "DATASETS",
    "DomainArrays",
    "DomainStatus",
    "Fetched",
    "Prepared",
    "fetch",
    "load_domain",
    "prepare",
    "status",
]
