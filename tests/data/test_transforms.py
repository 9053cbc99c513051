"""Augmentation and normalisation of whole batches."""

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.protocol import DataSpec
from fedrepro.data import transforms
from fedrepro.data.transforms import Augmentation, augment, erase, rectangles, rotate, shift
from tests.toys import stream


def images(n: int = 6, size: int = 28) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=stream())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalisation_is_torchvisions(dtype):
    x = images()
    for how, mean, deviation in (
        ("half", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("none", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("clip", (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    ):
        expected = load_torchvision().transforms.Normalize(mean, deviation)(x.to(dtype) / 255)
        torch.testing.assert_close(transforms.normalise(x, how, dtype), expected)


@pytest.mark.parametrize("size", [28, 64])
@pytest.mark.parametrize("degrees", [-30.0, -7.3, 12.0, 75.0])
def test_rotation_is_pils_up_to_pixels_on_an_edge(size, degrees):
    image = np.zeros((size, size), np.uint8)
    image[size // 5 : -size // 5, size // 4 : size // 4 + 4] = 255
    image[-size // 4 - 4 : -size // 4, size // 4 : -size // 5] = 200
    expected = np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.NEAREST), float)

    def differing(angle):
        found = rotate(torch.from_numpy(image)[None, None].float(), torch.tensor([angle]))
        return np.count_nonzero(np.abs(found[0, 0].numpy() - expected) > 2) / size**2

    assert differing(degrees) <= 0.005 and differing(-degrees) > 0.05


def test_quarter_turns_are_exact_and_each_image_turns_by_its_own_angle():
    x = images(4).float()
    turned = rotate(x, torch.tensor([0.0, 90.0, 180.0, -90.0]))
    for i, quarters in enumerate([0, 1, 2, -1]):
        assert torch.equal(turned[i], torch.rot90(x[i], quarters, (-2, -1)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_shift_is_torchvisions_padded_crop(dtype):
    x = images(81, 9).to(dtype)
    by = torch.cartesian_prod(torch.arange(-4, 5), torch.arange(-4, 5))
    found = shift(x, by)
    assert found.dtype == dtype and found.is_contiguous()
    functional = load_torchvision().transforms.functional
    for one, (down, right), got in zip(x, by.tolist(), found, strict=True):
        padded = functional.pad(one, 4)
        assert torch.equal(got, functional.crop(padded, down + 4, right + 4, 9, 9))


def box(image: torch.Tensor) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the black rectangle of an image that was white."""
    black = (image == 0).all(0)
    rows, columns = (black.any(side).nonzero()[:, 0].tolist() for side in (1, 0))
    height, width = rows[-1] + 1 - rows[0], columns[-1] + 1 - columns[0]
    assert int(black.sum()) == height * width, "the hole is no rectangle"
    assert set(image.unique().tolist()) == {0, 255}
    return rows[0], columns[0], height, width


def test_erased_rectangles_are_distributed_as_torchvisions():
    n = 3_000
    white = torch.full((n, 3, 32, 32), 255, dtype=torch.uint8)
    ours = [box(one) for one in augment(white, Augmentation(erase=1.0), stream(1))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        erasing = load_torchvision().transforms.RandomErasing()
        settings = (erasing.scale, erasing.ratio, [0.0])
        theirs = [erasing.get_params(white[0], *settings)[:4] for _ in range(n)]
    for one, other in zip(np.array(ours).T, np.array(theirs).T, strict=True):
        assert ks_2samp(one, other).pvalue > 0.001
    rate = rectangles(20_000, 0.25, stream())[0][:, 0, 0].lt(2).float().mean()
    assert abs(float(rate) - 0.25) < 0.012  # four standard errors


def test_a_rectangle_that_fits_nowhere_erases_nothing_and_the_first_that_fits_counts():
    x = torch.full((3, 1, 4, 4), 9, dtype=torch.uint8)
    patches = torch.full((3, 3, 2), 2.0)
    patches[1, 1], patches[1, 2] = torch.tensor([0.5, 0.25]), torch.tensor([0.25, 0.25])
    patches[2, 0] = torch.tensor([0.9, 0.5])  # rounds to the whole height: does not fit
    patches[2, 2] = torch.tensor([0.75, 0.75])
    corners = torch.tensor([[0.5, 0.5], [0.0, 0.0], [1.0 - 2**-24, 0.4]])
    erased = (erase(x, patches, corners)[:, 0] == 0).int()
    assert erased[0].sum() == 0
    assert erased[1].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert erased[2].tolist() == [[0, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0]]


NONE = DataSpec(dataset="digits5", size=28)
ALL = Augmentation(crop=4, flip=True, rotate=30.0, erase=0.5)


@pytest.mark.parametrize("how", [ALL, Augmentation(flip=True, rotate=30.0), NONE])
def test_the_order_is_crop_flip_rotate_erase_and_what_is_off_draws_nothing(how):
    """Runs recorded before crop and erase came must train on the very same images."""
    x, generator, again = images(40, 16), stream(), stream()
    by = torch.randint(-4, 5, (40, 2), generator=generator) if how.crop else torch.zeros(40, 2)
    step = shift(x, by.long())
    if how.flip:
        flips = torch.rand(40, generator=generator) < 0.5
        degrees = (2 * torch.rand(40, generator=generator) - 1) * 30.0
        step = rotate(torch.where(flips[:, None, None, None], step.flip(-1), step).float(), degrees)
    if how.erase:
        step = erase(step, *rectangles(40, 0.5, generator))
    assert torch.equal(augment(x, how, again), step)
    assert torch.equal(again.get_state(), generator.get_state())
