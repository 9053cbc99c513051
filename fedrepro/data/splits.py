"""Which images of a domain are for training and which for testing: rules with a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import numpy_stream

if TYPE_CHECKING:
    from fedrepro.data.domains import DomainArrays

Indices = NDArray[np.int64]
Sides = tuple[Indices, Indices]  # training and test images


LEAKY = ("official-leaky", "pooled-leaky")  # the rules that test on training images


@dataclass(frozen=True, eq=False)
class Split:
    """Image indices of one domain; ``train`` is in the rule's order.

    No image is on both sides but under the rules in ``LEAKY``; ``leaked`` counts those.
    """

    domain: str
    train: Indices
    test: Indices
    rule: str
    leaky: bool = False
    leaked: int = field(init=False)

    def __post_init__(self) -> None:
        leaked = len(np.intersect1d(self.train, self.test))
        if leaked and not self.leaky:
            raise FedReproError(
                f"split {self.rule} of {self.domain} tests on {leaked} training images; prepare "
                "the data again"
            )
        object.__setattr__(self, "leaked", leaked)

    @property
    def hash(self) -> str:
        """sha256 over domain, rule and both index lists."""
        digest = hashlib.sha256(f"{self.domain}|{self.rule}|".encode())
        update_with(digest, self.train)
        update_with(digest, self.test)
        return digest.hexdigest()


def _pooled_stratified(domain: DomainArrays, seed: int, share: float) -> Sides:
    """Official parts merged, then divided by class, a fifth of them test unless told otherwise
    (FedBN's and FedPall's scripts: a fifth, seed 0)."""
    return divide(domain.name, np.arange(len(domain.labels)), domain.labels, share, seed)


def _pooled_leaky(domain: DomainArrays, seed: int, share: float) -> Sides:
    """The training images of that rule, tested on the whole domain (MPFT's files of PACS)."""
    return _pooled_stratified(domain, seed, share)[0], np.arange(len(domain.labels))


def _official(domain: DomainArrays, seed: int, share: float) -> Sides:
    """The release's own parts. Validation images belong to training, or are the test set where
    the release has no test part apart from its training images (PACS)."""
    part = np.asarray(domain.part)
    if not (part >= 0).any():
        raise FedReproError(
            f"{domain.name} has no official parts; use another split, e.g. random-fifth"
        )
    test = part == (1 if (part == 1).any() else 2)
    return np.flatnonzero((part >= 0) & ~test), np.flatnonzero(test)


def _official_leaky(domain: DomainArrays, seed: int, share: float) -> Sides:
    """The official training list, tested on the whole domain: the official test list of PACS
    names every image, and the FPL family reads it as it is."""
    part = np.asarray(domain.part)
    if not (part == 0).any() or not (part == 2).any() or (part == 1).any():
        raise FedReproError(
            f"{domain.name} has no official test list that names the whole domain; use split "
            "official"
        )
    return np.flatnonzero(part == 0), np.flatnonzero(part >= 0)


def _random_fifth(domain: DomainArrays, seed: int, share: float) -> Sides:
    """A random fifth, rounded up, is test (the sizes of ADCOL's Table 3)."""
    n = len(domain.labels)
    order = numpy_stream(seed, "split", domain_key(domain.name)).permutation(n)
    return order[-(-n // 5) :], order[: -(-n // 5)]


def _class_first(domain: DomainArrays, seed: int, share: float, rounding: int = 5) -> Sides:
    """Class by class, the first 0.8 n images train. FedPall's scripts round 0.8 n on
    Office-Caltech-10 and cut it down to a whole number on PACS (``class-first-floor``)."""
    labels = np.asarray(domain.labels)
    members = [np.flatnonzero(labels == k) for k in np.unique(labels)]
    # whole-number arithmetic: no float decides which side an image falls
    sides = [np.split(m, [(8 * len(m) + rounding) // 10]) for m in members]
    train, test = (np.concatenate(side) for side in zip(*sides, strict=True))
    return train, test


def _class_first_floor(domain: DomainArrays, seed: int, share: float) -> Sides:
    return _class_first(domain, seed, share, rounding=0)


def _every_tenth(domain: DomainArrays, seed: int, share: float) -> Sides:
    """Index over the whole domain mod 10: 8 and 9 are test (FPL family)."""
    index = np.arange(len(domain.labels))
    return index[index % 10 < 8], index[index % 10 >= 8]


_RULES: dict[str, Callable[[DomainArrays, int, float], Sides]] = {
    "pooled-stratified": _pooled_stratified,
    "official": _official,
    "pooled-leaky": _pooled_leaky,
    "official-leaky": _official_leaky,
    "random-fifth": _random_fifth,
    "class-first": _class_first,
    "class-first-floor": _class_first_floor,
    "every-tenth": _every_tenth,
}


def divide(
    name: str, indices: Indices, labels: NDArray[np.int64], share: float, seed: int
) -> Sides:
    """Divide indices in two by class, a share of them second: scikit-learn's stratified shuffle
    with this seed as its random state. labels: of all the domain's images."""
    try:
        first, second = train_test_split(
            indices, test_size=share, stratify=np.asarray(labels)[indices], random_state=seed
        )
    except ValueError as error:
        raise FedReproError(
            f"{name} cannot be split by class: {error}; use another split"
        ) from None
    return first, second


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


def make_split(
    domain: DomainArrays, rule: str, seed: int, test_share: float | None = None
) -> Split:
    """Split one domain by a rule of ``DataSpec.split`` (or ``class-first-floor``).

    A domain with a ``cut`` is split there whatever the rule, because its neighbouring images show
    the same photo: train below cut[0], test from cut[1], rule ``index-range``.

    Raises:
        FedReproError: unknown rule, a rule the domain cannot follow, an empty side.
    """
    if rule not in _RULES:
        raise FedReproError(f"no split is called {rule!r}; choose one of {', '.join(_RULES)}")
    if test_share is not None and not rule.startswith("pooled-"):
        raise FedReproError(
            f"split {rule} has a test share of its own; test_share = {test_share} goes with "
            "pooled-stratified"
        )
    leaky = rule in LEAKY and domain.cut is None
    if domain.cut is not None:
        rule, (end, start) = "index-range", domain.cut
        if not 0 < end <= start < len(domain.labels):
            raise FedReproError(
                f"{domain.name} cannot be cut at {domain.cut}: it has {len(domain.labels)} images; "
                "prepare it again"
            )
        train, test = np.arange(end), np.arange(start, len(domain.labels))
    else:
        train, test = _RULES[rule](domain, seed, 0.2 if test_share is None else test_share)
        rule += "" if test_share is None else f", test share {test_share}"
    if not len(train) or not len(test):
        raise FedReproError(
            f"split {rule} of {domain.name} gives {len(train)} training and {len(test)} test "
            "images; use another split"
        )
    return Split(domain.name, train.astype(np.int64), test.astype(np.int64), rule, leaky=leaky)


def limit_test(split: Split, labels: NDArray[np.int64], limit: int, seed: int) -> Split:
    """The split with its test set cut to ``limit`` images, class shares kept within one image.

    Drawn from the split stream; indices in rising order. A smaller test set stays as it is.
    """
    if limit >= len(split.test):
        return split
    rng = numpy_stream(seed, "split", domain_key(split.domain), round=1)
    shuffled = rng.permutation(split.test)
    # Each image's place within its class, as a share of the class: cutting all classes at the same
    # share keeps their proportions, and the shuffle settles ties.
    classes = pd.Series(shuffled).groupby(np.asarray(labels)[shuffled])
    share = (classes.cumcount() + 0.5) / classes.transform("size")
    kept = np.sort(shuffled[np.argsort(share.to_numpy(), kind="stable")[:limit]])
    return replace(split, test=kept, rule=f"{split.rule}, {limit} test images")


def tested_sample(domain: str, images: int, most: int, seed: int) -> Indices:
    """The positions, rising, of the test images that are tested where not all are."""
    rng = numpy_stream(seed, "split", domain_key(domain), round=2)
    return np.sort(rng.choice(images, most, replace=False))


def domain_key(name: str) -> int:
    """A number for a domain's own random streams, so that no domain shifts another's draws."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def update_with(digest: hashlib._Hash, indices: Indices) -> None:
    """Feed an index list, its length first, in one byte order on every machine."""
    digest.update(f"{len(indices)}:".encode())
    digest.update(np.ascontiguousarray(indices, dtype="<i8").tobytes())
