"""The bound of mutual information on pairs whose mutual information is known, and the attack on
prototypes where its outcome is known beforehand."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.data.embeddings import Embedder
from fedrepro.extras import clip
from fedrepro.extras.leakage import invert, leakage, lower_bound, mutual_information, sent_pairs
from fedrepro.federated.rounds import Training
from fedrepro.quantities.counted import likeness
from fedrepro.records.store import FileCheckpoint
from tests import toys
from tests.data.test_embeddings import Made


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
        z = training.engine.outputs(networks[client.data.domain], client.data.train)
        np.testing.assert_allclose(sent, z.numpy(), rtol=1e-5, atol=1e-6)
    masked = list(sent_pairs(trained(sent_as="masked", closing_pass=False)))
    assert all((sent == 0).all(axis=0).any() for _, sent in masked)  # a place empty in every row
    rows = [len(images) for images, _ in sent_pairs(trained("FADA"))]  # reads the model it received
    assert rows == [40, 30, 20]


def test_measuring_leaves_the_training_as_it_is():
    training = trained()
    before = {name: value.clone() for name, value in training.state().items()}
    curve = training.curve()
    first = leakage(training)
    assert first == leakage(training) and first["pairs"] == 90.0
    assert first["mutual_information"] >= 0
    assert training.curve().equals(curve)
    toys.assert_equal(training.state(), before)


def linear(weights: torch.Tensor) -> Embedder:
    """Embeddings W x of images of 2x2 pixels, 12 values."""
    return Embedder("linear", len(weights), "hash", lambda x: x.flatten(1) @ weights.T)


TURNED = 2 * torch.eye(12) + torch.eye(12).roll(1, 0)  # invertible
GREY = torch.full((2, 3, 2, 2), 0.5)


def test_an_invertible_encoder_gives_the_image_away():
    """W = 2 I + a permutation: x = W^-1 p is the one image behind a prototype."""
    encoder = linear(TURNED)
    truth = torch.linspace(0.1, 0.9, 24).reshape(2, 3, 2, 2)
    found = invert(encoder, encoder.images(truth), GREY, 800)
    torch.testing.assert_close(found, truth, atol=1e-3, rtol=0)
    # A prototype of no image ends at the nearest one: pixels cannot leave [0, 1].
    found = invert(linear(torch.eye(12)), torch.full((1, 12), 3.0), GREY[:1], 200)
    assert torch.equal(found, torch.ones(1, 3, 2, 2))


def test_a_search_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    """Cut after 7 of 20 steps, and again after 12: the same bits as in one go."""
    monkeypatch.setattr(FileCheckpoint, "due", lambda self: True)
    what = torch.linspace(0.5, 2.5, 24).reshape(2, 12), GREY, 20
    whole = invert(linear(TURNED), *what)
    for last in (7, 12):
        calls = iter(range(last))

        def cut(x: torch.Tensor, calls: Iterator[int] = calls) -> torch.Tensor:
            next(calls)
            return x.flatten(1) @ TURNED.T

        breaking = Embedder("linear", 12, "hash", cut)
        with pytest.raises(StopIteration):
            invert(breaking, *what, FileCheckpoint(tmp_path))
    assert FileCheckpoint(tmp_path).load()[1] == {"steps": 19}
    again = invert(linear(TURNED), *what, FileCheckpoint(tmp_path))
    assert torch.equal(again, whole)


def test_likeness_by_hand():
    """Ten grey levels off everywhere: 10 log10(255^2 / 100) dB. Flat images have no structure, so
    that SSIM is (2 a b + c) / (a^2 + b^2 + c), c = (0.01 x 255)^2."""
    found, truth = (np.full((3, 8, 8), level, dtype=np.uint8) for level in (110, 100))
    ratio, alike = likeness(found, truth)
    assert ratio == pytest.approx(10 * math.log10(255**2 / 100)) == pytest.approx(28.13, abs=0.01)
    c = (0.01 * 255) ** 2
    assert alike == pytest.approx((2 * 110 * 100 + c) / (110**2 + 100**2 + c))
    assert likeness(truth, truth) == (math.inf, 1.0)


def test_clip_lets_the_gradient_through_and_says_its_side():
    """The made network gives each channel's mean over 64 pixels, which are divided by 0.25."""
    made = clip.wrap(Made(), lambda prompts: torch.zeros(len(prompts), 3), "", torch.device("cpu"))
    image = torch.full((1, 3, 8, 8), 0.5, requires_grad=True)
    (gradient,) = torch.autograd.grad(made.images(image).sum(), [image])
    assert made.side == 8
    torch.testing.assert_close(gradient, torch.full_like(gradient, 4 / 64))
