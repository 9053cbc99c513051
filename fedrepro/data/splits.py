"""Which images of a domain are for training and which for testing: rules with a hash."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedrepro.base.errors import FedReproError, need
from fedrepro.base.rng import numpy_stream
from fedrepro.data.domains import DomainArrays
from fedrepro.data.pictures import Labels

Indices = NDArray[np.int64]
Sides = tuple[Indices, Indices]  # training and test images


@dataclass(frozen=True, eq=False)
class Split:
    """Image indices of one domain; ``train`` is in the rule's order."""

    domain: str
    train: Indices
    test: Indices
    rule: str

    @property
    def hash(self) -> str:
        return digest_of(f"{self.domain}|{self.rule}|", self.train, self.test)


def _sides(domain: DomainArrays, rule: str, seed: int, share: float) -> Sides:
    """The training and the test images of a domain under a rule."""
    labels, part, n = domain.labels, domain.part, len(domain.labels)
    every = np.arange(n)
    if rule.startswith("pooled-"):
        # Official parts merged (FedBN's and FedPall's scripts: a fifth is test, seed 0); leaky:
        # tested on the whole domain (MPFT's files of PACS)
        train, test = divide(domain.name, every, labels, share, seed)
        return train, every if rule == "pooled-leaky" else test
    if rule == "random-fifth":  # rounded up: the sizes of ADCOL's Table 3
        order = numpy_stream(seed, "split", domain_key(domain.name)).permutation(n)
        return order[-(-n // 5) :], order[: -(-n // 5)]
    if rule == "every-tenth":  # FPL family
        return every[every % 10 < 8], every[every % 10 >= 8]
    if rule.startswith("class-first"):
        # FedPall's scripts round 0.8 n on Office-Caltech-10 and round it down on
        # PACS; whole-number arithmetic: no float decides which side an image falls
        more = 0 if rule.endswith("floor") else 5
        members = [np.flatnonzero(labels == k) for k in np.unique(labels)]
        cut = [np.split(m, [(8 * len(m) + more) // 10]) for m in members]
        train, test = (np.concatenate(side) for side in zip(*cut, strict=True))
        return train, test
    own, train_part, held, has_test = part >= 0, part == 0, part == 2, (part == 1).any()
    if rule == "official-leaky":
        # the official test list of PACS names every image, and the FPL family uses it unchanged
        said = f"{domain.name} has no official test list that names the whole domain"
        need(train_part.any() and held.any() and not has_test, f"{said}; use split official")
        return np.flatnonzero(train_part), np.flatnonzero(own)
    # Validation images belong to training, or are the test set where the release has no test part
    # apart from its training images (PACS)
    tested = part == 1 if has_test else held
    return np.flatnonzero(own & ~tested), np.flatnonzero(tested)


def divide(name: str, indices: Indices, labels: Labels, share: float, seed: int) -> Sides:
    """Divide indices in two by class, a share of them second: scikit-learn's stratified shuffle.
    labels: of all the domain's images."""
    from sklearn.model_selection import train_test_split  # takes a second

    own = labels[indices]
    try:
        first, second = train_test_split(indices, test_size=share, stratify=own, random_state=seed)
    except ValueError:
        few = min(np.unique(own, return_counts=True)[1], default=0)
        raise FedReproError(
            f"{name} cannot be split by class: {len(own)} images, {few} of the rarest class, are "
            f"too few for a part of {share:g}; use more images, another split or share, or no "
            "validation images (data.validation=0)"
        ) from None
    return first, second


def parts(indices: Indices, labels: Labels, count: int) -> list[Indices]:
    """`count` parts of one size, rounded up per class. The last part ends with its class, so it
    shares a few images with the previous one (MPFT's code). labels: of all the domain's images."""
    pieces: list[list[Indices]] = [[] for _ in range(count)]
    for members in (indices[labels[indices] == k] for k in np.unique(labels[indices])):
        size = -(-len(members) // count)
        for number in range(count):
            start = number * size if number < count - 1 else len(members) - size
            pieces[number].append(members[start : start + size])
    return [np.concatenate(own) for own in pieces]


def make_split(domain: DomainArrays, rule: str, seed: int, share: float | None = None) -> Split:
    """Split one domain by a rule of ``DataSpec.split`` (or ``class-first-floor``). A domain with a
    ``cut`` is always split there, because neighbouring images show the same photo: rule
    ``index-range``. FedReproError: a rule the domain cannot follow, an empty side."""
    need(
        domain.cut is not None or not rule.startswith("official") or (domain.part >= 0).any(),
        f"{domain.name} has no official parts; use another split: pooled-stratified, or "
        "random-fifth, class-first or every-tenth with test_share = null",
    )
    need(
        share is None or rule.startswith("pooled-"),
        f"split {rule} has its own test share; test_share = {share} goes with "
        "pooled-stratified: set it to null",
    )
    if domain.cut is not None:
        rule, (end, start) = "index-range", domain.cut
        train, test = np.arange(end), np.arange(start, len(domain.labels))
    else:
        train, test = _sides(domain, rule, seed, 0.2 if share is None else share)
        rule += "" if share is None else f", test share {share}"
    said = f"split {rule} of {domain.name} gives {len(train)} training and {len(test)} test images"
    need(len(train) and len(test), f"{said}; use another split")
    return Split(domain.name, train.astype(np.int64), test.astype(np.int64), rule)


def limit_test(split: Split, labels: Labels, limit: int, seed: int) -> Split:
    """The split with its test set cut to ``limit`` images, class shares kept within one image.
    Drawn from the split stream; indices ascending. A smaller test set does not change."""
    if limit >= len(split.test):
        return split
    rng = numpy_stream(seed, "split", domain_key(split.domain), round=1)
    shuffled = rng.permutation(split.test)
    # Each image's place within its class, as a share of the class: cutting all classes at the same
    # share keeps their proportions, and the shuffle decides ties.
    classes = pd.Series(shuffled).groupby(labels[shuffled])
    share = (classes.cumcount() + 0.5) / classes.transform("size")
    kept = np.sort(shuffled[np.argsort(share.to_numpy(), kind="stable")[:limit]])
    return replace(split, test=kept, rule=f"{split.rule}, {limit} test images")


def tested_sample(domain: str, images: int, most: int, seed: int) -> Indices:
    """The positions, ascending, of the tested images if not all are tested."""
    rng = numpy_stream(seed, "split", domain_key(domain), round=2)
    return np.sort(rng.choice(images, most, replace=False))


def domain_key(name: str) -> int:
    """A number for a domain's own random streams, so that domains do not change others' draws."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def digest_of(*told: str | Indices) -> str:
    """sha256 over words and index lists, each list's length first, the same on every machine."""
    digest = hashlib.sha256()
    for one in told:
        if isinstance(one, str):
            digest.update(one.encode())
        else:
            digest.update(f"{len(one)}:".encode())
            digest.update(np.ascontiguousarray(one, dtype="<i8").tobytes())
    return digest.hexdigest()
