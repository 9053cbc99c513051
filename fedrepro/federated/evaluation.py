"""Tests of a round's networks, and their rows in the curve."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedrepro.data.federation import Federation
from fedrepro.engine import Engine
from fedrepro.federated.metrics import Row


class Test(NamedTuple):
    """One network on one split of a domain. network: ``server`` or a client's name. accuracy: in
    percent. loss: mean cross-entropy. predicted (m,): the class of each image."""

    network: str
    domain: str
    split: str
    accuracy: float
    loss: float
    predicted: Tensor


def tests(
    engine: Engine,
    network: str,
    state: Mapping[str, Tensor],
    federation: Federation,
    domains: Collection[str],
    splits: Iterable[str] = ("test", "validation"),
) -> list[Test]:
    """The tests of one network on some domains' test sets, and validation images if any."""
    images = {"test": federation.tests, "validation": federation.validations()}
    places = [(split, domain) for split in splits for domain in images[split] if domain in domains]
    return [Test(network, d, s, *engine.evaluate(state, images[s][d])) for s, d in places]


def rows(number: int, subject: str, found: Iterable[Test]) -> Iterator[Row]:
    """The curve's rows; a domain with several clients' networks has their mean."""
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for test in found:
        results.setdefault((test.domain, test.split), []).append((test.accuracy, test.loss))
    for (domain, split), pairs in results.items():
        accuracy, loss = np.mean(pairs, axis=0)
        yield number, "accuracy", subject, domain, split, float(accuracy)
        yield number, "loss", subject, domain, split, float(loss)


def predictions(number: int, subject: str, found: Iterable[Test]) -> dict[str, Tensor]:
    """Predicted classes of the test images, by ``round/subject/network/domain``."""
    return {
        f"{number}/{subject}/{test.network}/{test.domain}": test.predicted
        for test in found
        if test.split == "test"
    }
