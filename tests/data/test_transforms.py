"""Augmentation and normalisation of whole batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedrepro.data.transforms import prepare_batch, rotate
from fedrepro.protocol import DataSpec


def spec(**changes: Any) -> DataSpec:
    return DataSpec(dataset="digits5", size=28, **changes)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, size: int = 28) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=seeded())


@pytest.mark.parametrize(
    ("how", "black", "white"),
    [
        ("half", [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]),
        ("none", [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
        (
            "imagenet",
            [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225],
            [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225],
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalisation_in_closed_form(
    how: Any, black: list[float], white: list[float], dtype: torch.dtype
) -> None:
    x = torch.stack([torch.zeros(3, 2, 2), torch.full((3, 2, 2), 255.0)]).to(torch.uint8)
    out = prepare_batch(x, spec(normalise=how), None, dtype)
    assert out.dtype == dtype
    expected = torch.tensor([black, white], dtype=dtype)[:, :, None, None].expand(2, 3, 2, 2)
    torch.testing.assert_close(out, expected)


def test_bfloat16_rounds_only_at_the_end() -> None:
    x = images()
    wide = prepare_batch(x, spec(), None)
    assert torch.equal(prepare_batch(x, spec(), None, torch.bfloat16), wide.to(torch.bfloat16))


def test_evaluation_ignores_augmentation_and_training_without_it_is_evaluation() -> None:
    x = images()
    plain = prepare_batch(x, spec(), None)
    assert torch.equal(prepare_batch(x, spec(flip=True, rotate=30), None), plain)
    generator = seeded()
    before = generator.get_state()
    assert torch.equal(prepare_batch(x, spec(), generator), plain)
    assert torch.equal(generator.get_state(), before)


def test_equal_generators_draw_equally_and_others_do_not() -> None:
    x, s = images(), spec(flip=True, rotate=30)
    first = prepare_batch(x, s, seeded(1))
    assert torch.equal(first, prepare_batch(x, s, seeded(1)))
    assert not torch.equal(first, prepare_batch(x, s, seeded(2)))
    double = prepare_batch(x, s, seeded(1), torch.float64)
    torch.testing.assert_close(double.float(), first)  # the same pixels whatever the precision


def test_half_of_the_images_flip_whole_and_left_to_right() -> None:
    x = images(400, 4)
    out = prepare_batch(x, spec(flip=True, normalise="none"), seeded())
    plain = x.float() / 255
    kept = (out == plain).flatten(1).all(1)
    flipped = (out == plain.flip(-1)).flatten(1).all(1)
    assert bool((kept ^ flipped).all())
    assert 160 < int(flipped.sum()) < 240


def shape_image(size: int) -> np.ndarray:
    """A bright L, far from any symmetry, on a dim ramp."""
    image = np.tile(np.linspace(10, 60, size), (size, 1))
    image[size // 5 : -size // 5, size // 4 : size // 4 + 4] = 255
    image[-size // 4 - 4 : -size // 4, size // 4 : -size // 5] = 200
    return image.astype(np.uint8)


@pytest.mark.parametrize("size", [28, 64])
@pytest.mark.parametrize("degrees", [-30.0, -7.3, 12.0, 30.0, 75.0])
def test_rotation_is_pils_up_to_pixels_on_an_edge(size: int, degrees: float) -> None:
    image = shape_image(size)
    expected = np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.NEAREST))
    x = torch.from_numpy(image)[None, None].float()
    found = rotate(x, torch.tensor([degrees]))[0, 0].numpy()
    differing = np.count_nonzero(np.abs(found - expected.astype(float)) > 2)
    assert differing <= 0.005 * size**2
    wrong_way = rotate(x, torch.tensor([-degrees]))[0, 0].numpy()
    assert np.count_nonzero(np.abs(wrong_way - expected.astype(float)) > 2) > 0.05 * size**2


def test_quarter_turns_are_exact_and_each_image_turns_by_its_own_angle() -> None:
    x = images(4).float()
    turned = rotate(x, torch.tensor([0.0, 90.0, 180.0, -90.0]))
    for i, quarters in enumerate([0, 1, 2, -1]):
        assert torch.equal(turned[i], torch.rot90(x[i], quarters, (-2, -1)))


def test_angles_stay_in_range_and_the_outside_is_black_before_normalising() -> None:
    x = torch.full((64, 3, 28, 28), 255, dtype=torch.uint8)
    out = prepare_batch(x, spec(rotate=30, normalise="half"), seeded())
    assert set(out.unique().tolist()) == {-1.0, 1.0}
    white = (out[:, 0] == 1).float().mean((1, 2))
    # the further an image turns (up to 45 degrees), the less of it stays inside
    least = (rotate(x[:1].float(), torch.tensor([30.0])) > 0).float().mean()
    assert float(white.min()) >= float(least) - 0.01 and float(white.std()) > 0.01
