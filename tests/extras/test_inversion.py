"""The attack on prototypes where its outcome is known beforehand."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fedrepro.base.rng import torch_stream
from fedrepro.data.embeddings import Embedder
from fedrepro.extras import clip
from fedrepro.extras.inversion import invert
from fedrepro.quantities.counted import likeness
from fedrepro.records.store import FileCheckpoint
from tests.data.test_embeddings import Made


def linear(weights: torch.Tensor) -> Embedder:
    """Embeddings W x of images of 2x2 pixels, 12 values."""
    return Embedder("linear", len(weights), "hash", lambda x: x.flatten(1) @ weights.T)


TURNED = 2 * torch.eye(12) + torch.eye(12).roll(1, 0)  # invertible


def generator(seed: int = 0) -> torch.Generator:
    return torch_stream(seed, "figure")


def test_an_invertible_encoder_gives_the_image_away():
    """W = 2 I + a permutation: x = W^-1 p is the one image behind a prototype."""
    encoder = linear(TURNED)
    truth = torch.linspace(0.1, 0.9, 24).reshape(2, 3, 2, 2)
    found = invert(encoder, encoder.images(truth), 2, 800, 0.01, generator())
    torch.testing.assert_close(found, truth, atol=1e-3, rtol=0)
    # A prototype of no image ends at the nearest one: pixels cannot leave [0, 1].
    found = invert(linear(torch.eye(12)), torch.full((1, 12), 3.0), 2, 200, 0.01, generator())
    assert torch.equal(found, torch.ones(1, 3, 2, 2))


def test_a_search_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    """Cut after 7 of 20 steps, and again after 12: the same bits as in one go."""
    monkeypatch.setattr(FileCheckpoint, "due", lambda self: True)
    prototypes = torch.linspace(0.5, 2.5, 24).reshape(2, 12)
    whole = invert(linear(TURNED), prototypes, 2, 20, 0.01, generator())
    for last in (7, 12):
        calls = iter(range(last))

        def cut(x: torch.Tensor, calls: Iterator[int] = calls) -> torch.Tensor:
            next(calls)
            return x.flatten(1) @ TURNED.T

        breaking = Embedder("linear", 12, "hash", cut)
        with pytest.raises(StopIteration):
            invert(breaking, prototypes, 2, 20, 0.01, generator(), FileCheckpoint(tmp_path))
    assert FileCheckpoint(tmp_path).load()[1] == {"steps": 19}
    again = invert(linear(TURNED), prototypes, 2, 20, 0.01, generator(), FileCheckpoint(tmp_path))
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
