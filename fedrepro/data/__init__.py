"""Domain sets: official files (or the generator) -> uint8 arrays in a cache -> clients. And the
weights of frozen encoders."""

from __future__ import annotations

from fedrepro.data.domains import DATASETS, DomainArrays, load_domain
from fedrepro.data.encoders import ENCODERS, Encoder, load_encoder
from fedrepro.data.status import DomainStatus, Fetched, fetch, prepare, status

__all__ = [
    "DATASETS",
    "ENCODERS",
    "DomainArrays",
    "DomainStatus",
    "Encoder",
    "Fetched",
    "fetch",
    "load_domain",
    "load_encoder",
    "prepare",
    "status",
]
