"""The neural lower bound of mutual information, against pairs whose mutual information is known."""

import math

import numpy as np
import pytest
import torch

from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.extras.mutual_information import leakage, lower_bound, mutual_information, sent_pairs
from fedrepro.federated.rounds import Training
from tests import toys


def gaussians(n: int, d: int, rho: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """n pairs of normal vectors whose d coordinates are correlated by rho, each with its own."""
    rng = np.random.default_rng(seed)
    x, other = rng.standard_normal((2, n, d))
    return x, rho * x + math.sqrt(1 - rho**2) * other


def test_the_bound_by_hand():
    scores = torch.tensor([[2.0, 0.0], [math.log(3.0), 4.0]])
    assert float(lower_bound(scores)) == pytest.approx(3.0 - math.log((1 + 3) / 2))


@pytest.mark.parametrize("d", [3, 16])
def test_correlated_gaussians(d):
    found = mutual_information(*gaussians(1000, d, 0.5))
    known = -d / 2 * math.log(1 - 0.5**2)
    assert 0.7 * known < found < 1.03 * known + 0.03


def test_independence_tells_nothing_and_dependence_without_correlation_much():
    x, y = gaussians(400, 4, 0.0)
    assert mutual_information(x, y) < 0.03 and mutual_information(x, 0 * y) < 0.03
    x, noise = gaussians(500, 1, 0.0)
    y = np.abs(x) + 0.1 * noise
    assert abs(np.corrcoef(x[:, 0], y[:, 0])[0, 1]) < 0.1
    assert mutual_information(x, y) > 0.8


def test_wrong_pairs_are_one_line():
    x, y = gaussians(60, 2, 0.5)
    with pytest.raises(FedReproError, match="30 pairs are too few"):
        mutual_information(x[:30], y[:30])
    with pytest.raises(FedReproError, match="not finite"):
        mutual_information(x, np.where(y > 2, np.nan, y) * np.inf)
    with pytest.raises(FedReproError, match="FedAvg sends nothing image by image"):
        leakage(trained("FedAvg"))


def trained(method: str = "FedPall", **fields: object) -> Training:
    training = toys.start(method, (40, 30, 20), fields=fields)
    training.run(Silent())
    return training


def test_pairs_are_the_images_and_what_is_sent_of_them():
    training = trained(sent_as="raw", closing_pass=False)
    networks = training.tested_networks(training.round)
    for client, (images, sent) in zip(training.clients, sent_pairs(training), strict=True):
        assert np.array_equal(images, client.data.train.images.flatten(1).numpy())
        z = training.engine.features(networks[client.data.domain], client.data.train)
        np.testing.assert_allclose(sent, z.numpy(), rtol=1e-5, atol=1e-6)
    masked = list(sent_pairs(trained(sent_as="masked", closing_pass=False)))
    assert all((sent == 0).all(axis=0).any() for _, sent in masked)  # a place empty in every row


def test_measuring_leaves_the_training_as_it_is():
    training = trained()
    before = {name: value.clone() for name, value in training.state().items()}
    curve = training.curve()
    first = leakage(training)
    assert first == leakage(training) and first["pairs"] == 90.0
    assert first["mutual_information"] >= 0
    assert training.curve().equals(curve)
    toys.assert_equal(training.state(), before)
