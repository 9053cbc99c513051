"""The work of a run: an estimate of its floating point operations, made without training it."""

import json
from collections.abc import Iterable
from functools import lru_cache

import pandas as pd

from fedrepro.base.protocol import DataSpec, Protocol
from fedrepro.data.domains import DATASETS
from fedrepro.data.manifest import COLLECTIONS, collection_of
from fedrepro.records import Record


def pflop(protocol: Protocol, images: int, classes: int, size: int) -> float:
    """An estimate of a run's 1e15 floating point operations: three forward passes of the protocol's
    network for each of the clients' images and epochs. Tests, the server's work, a method's extra
    work and the trials of a tuned setting are left out. size: as in `Federation`."""
    p = protocol
    passes = 3 * images * p.participation * p.local_epochs * p.rounds
    embedded = p.data.encoder is not None
    return _forward(p.model, json.dumps(p.model_args), classes, size, embedded) * passes / 1e15


def unread(protocol: Protocol, known: Iterable[Record]) -> float | None:
    """The same for data that nobody has read, where the number of images is stated or a known run
    divides the same images. None: it is not known, or the images are embedded."""
    images = _images(protocol.data, known)
    return None if images is None else _of_images(protocol, images)


def done(record: Record) -> float | None:
    """The same of a finished run; None if its images are embedded."""
    counts = pd.DataFrame(record.data["counts"])
    return _of_images(record.protocol, int(counts.images[counts.split == "train"].sum()))


def _of_images(protocol: Protocol, images: int) -> float | None:
    data, domains = protocol.data, DATASETS.get(protocol.data.dataset, ())
    listed = (c.classes_of(d) for d in domains for c in COLLECTIONS.values() if d in c.domains)
    classes = next(listed, None)
    if classes is None or data.encoder is not None:
        return None
    return pflop(protocol, images, len(classes), data.size)


def _images(data: DataSpec, known: Iterable[Record]) -> int | None:
    """The number of all clients' training images."""
    allocation, domains = data.allocation, DATASETS.get(data.dataset, ())
    clients, each = allocation.clients or dict.fromkeys(domains, 1), allocation.per_client
    if isinstance(each, int):
        return each * sum(clients.values())
    if isinstance(each, dict) and all(isinstance(each.get(d), int) for d in clients):
        return sum(int(each[domain]) * number for domain, number in clients.items())
    if allocation.rule == "dirichlet" and data.split == "official":
        totals = [collection_of(domain).sources[0].totals for domain in domains]
        return sum(total[0][0] for total in totals) if all(totals) else None
    for record in known:
        other = record.protocol.data
        same = other.dataset, other.split, other.allocation.per_client, other.validation
        if same == (data.dataset, data.split, each, data.validation):
            counts = pd.DataFrame(record.data["counts"]).query("split == 'train'")
            held = counts.groupby(["domain", "client"]).images.sum().groupby("domain").mean()
            if set(clients) <= set(held.index):
                total = sum(held[domain] * number for domain, number in clients.items())
                return round(float(total))
    return None


@lru_cache
def _forward(model: str, given: str, classes: int, size: int, embedded: bool) -> float:
    """Operations of one image's forward pass."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from fedrepro.models import build_model

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = build_model(model, classes, size, **json.loads(given)).eval()
        network(torch.zeros((1, size) if embedded else (1, 3, size, size)))  # shapes, no numbers
    return float(counter.get_total_flops())
