"""Dealing labelled images out to clients: who owns which position. Rules on labels alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrepro.base.errors import FedReproError
from fedrepro.data.splits import Indices


def every_class(
    name: str, label: NDArray[np.int64], owner: Indices, clients: int, rng: np.random.Generator
) -> Indices:
    """The order in which images must lie so that every client has each class of the domain.

    label, owner: of the image at each position; an owner from ``clients`` on is nobody. A client
    that lacks a class gives away an image of one it has twice, for one that nobody has, or
    whose owner comes later or has another. (RethinkFL's sampler for Office-Caltech-10; it may
    also take an image that another client keeps.)
    """
    order, label, classes = np.arange(len(label)), label.copy(), int(label.max()) + 1
    for client in range(clients):
        for k in np.unique(label):
            mine = owner == client
            if (label[mine] == k).any():
                continue
            spare = np.flatnonzero(mine & (np.bincount(label[mine], minlength=classes) >= 2)[label])
            several = np.bincount(owner[label == k], minlength=clients + 1)[owner] >= 2
            offered = np.flatnonzero((label == k) & ((owner > client) | several))
            if not len(spare) or not len(offered):
                raise FedReproError(
                    f"not every client of {name} can have an image of each class; raise "
                    "per_client, lower the clients or set every_class to false"
                )
            swap = [rng.choice(spare), rng.choice(offered)]
            order[swap], label[swap] = order[swap[::-1]], label[swap[::-1]]
    return order


def skewed_owners(
    label: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The client of each image under label skew: for each class k, p_k ~ Dir_N(alpha), client j
    gets the share p_kj of its images."""
    owners = np.empty(len(label), dtype=np.int64)
    for k in np.unique(label):
        members = rng.permutation(np.flatnonzero(label == k))
        shares = rng.dirichlet(np.full(clients, alpha))
        borders = np.floor(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for j, part in enumerate(np.split(members, borders)):
            owners[part] = j
    return owners


def parts(indices: Indices, labels: NDArray[np.int64], count: int) -> list[Indices]:
    """So many parts of one size, rounded up class by class; the last one ends with its class, and
    so shares a few images with the one before (MPFT's code). labels: of all the domain's images."""
    dealt: list[list[Indices]] = [[] for _ in range(count)]
    for members in (indices[labels[indices] == k] for k in np.unique(labels[indices])):
        size = -(-len(members) // count)
        for number in range(count):
            start = number * size if number < count - 1 else len(members) - size
            dealt[number].append(members[start : start + size])
    return [np.concatenate(pieces) for pieces in dealt]
