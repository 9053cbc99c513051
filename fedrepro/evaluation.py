"""Tests of a round's networks, and the curve's rows they become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrepro.clients import Client
from fedrepro.curve import Row
from fedrepro.data.federation import Federation, Samples
from fedrepro.engine import Engine


class Test(NamedTuple):
    """Accuracy in percent and mean cross-entropy of one network on one split of a domain."""

    domain: str
    split: str
    accuracy: float
    loss: float


def everywhere(engine: Engine, federation: Federation, state: Mapping[str, Tensor]) -> list[Test]:
    """One network on every domain's test set, and on its held-out training images where the
    federation has some."""
    tests: list[tuple[str, str, Samples]] = []
    validation = {c.domain: c.validation for c in federation.clients}
    for domain, samples in federation.tests.items():
        tests.append((domain, "test", samples))
        held_out = validation.get(domain)
        if held_out is not None:
            tests.append((domain, "validation", held_out))
    return [Test(d, split, *engine.evaluate(state, samples)) for d, split, samples in tests]


def at_home(
    engine: Engine, federation: Federation, client: Client, state: Mapping[str, Tensor]
) -> list[Test]:
    """A client's network on its own domain."""
    domain, held_out = client.data.domain, client.data.validation
    tests = [Test(domain, "test", *engine.evaluate(state, federation.tests[domain]))]
    if held_out is not None:
        tests.append(Test(domain, "validation", *engine.evaluate(state, held_out)))
    return tests


def abroad(
    number: int,
    engine: Engine,
    federation: Federation,
    client: Client,
    state: Mapping[str, Tensor],
) -> Iterator[Row]:
    """A client's network on every domain's test set, its own included, as rows of the curve under
    the client's name."""
    for domain, samples in federation.tests.items():
        accuracy, _ = engine.evaluate(state, samples)
        yield number, "cross-accuracy", client.data.name, domain, "test", accuracy


def rows(
    number: int, subject: str, tests: Sequence[Sequence[Test]], held_out: bool = True
) -> Iterator[Row]:
    """The curve's rows; a domain with several clients' networks counts as their mean. held_out:
    those of validation images too."""
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for test in (test for one in tests for test in one if held_out or test.split == "test"):
        results.setdefault((test.domain, test.split), []).append((test.accuracy, test.loss))
    for (domain, split), pairs in results.items():
        accuracy, loss = np.mean(pairs, axis=0)
        yield number, "accuracy", subject, domain, split, float(accuracy)
        yield number, "loss", subject, domain, split, float(loss)


def embed(
    engine: Engine,
    federation: Federation,
    networks: Mapping[str, Mapping[str, Tensor]],
    per_domain: int,
) -> tuple[Tensor, Tensor, list[str]]:
    """Features (m, d) of up to `per_domain` test images of each domain under its network, their
    labels (m,) and domains."""
    features, labels, domains = [], [], []
    for domain in (d for d in federation.tests if d in networks):
        test = federation.tests[domain]
        part = Samples(test.images[:per_domain], test.labels[:per_domain])
        features.append(engine.features(networks[domain], part).cpu())
        labels.append(part.labels.cpu())
        domains += [domain] * len(part)
    return torch.cat(features), torch.cat(labels), domains
