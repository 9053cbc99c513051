"""Data sets: official files (or the generator) -> uint8 arrays in a cache -> clients."""

from fedrepro.data.domains import DATASETS, ENCODERS, load_domain
from fedrepro.data.status import fetch, prepare, status

__all__ = ["DATASETS", "ENCODERS", "fetch", "load_domain", "prepare", "status"]
