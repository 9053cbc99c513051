"""Stored uint8 images -> network input: augmentation and normalisation, a batch at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedrepro.protocol import DataSpec

# mean, std per channel on the [0, 1] scale
_NORMALISE: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


class Draws(NamedTuple):
    """What chance decides for each image of a batch; None where the settings leave it out.

    flips: bool (b,), whether it flips left-right. degrees: float32 (b,), the angle it turns by.
    """

    flips: Tensor | None
    degrees: Tensor | None


def draw(n: int, spec: DataSpec, generator: torch.Generator) -> Draws:
    """The draws of a batch of n images, on the generator's device (the CPU).

    They depend on the generator, n and the settings alone.
    """
    flips = torch.rand(n, generator=generator) < 0.5 if spec.flip else None
    degrees = (2 * torch.rand(n, generator=generator) - 1) * spec.rotate if spec.rotate else None
    return Draws(flips, degrees)


def together(draws: Sequence[Draws]) -> Draws:
    """The draws of several batches under the same settings as those of one, in their order."""
    flips = [d.flips for d in draws if d.flips is not None]
    degrees = [d.degrees for d in draws if d.degrees is not None]
    return Draws(torch.cat(flips) if flips else None, torch.cat(degrees) if degrees else None)


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Images (b, C, H, H) flipped, then turned as drawn; float32 once turned, else as they were."""
    x = images
    if draws.flips is not None:
        x = torch.where(draws.flips.to(x.device)[:, None, None, None], x.flip(-1), x)
    if draws.degrees is not None:
        x = rotate(x.float(), draws.degrees.to(x.device))
    return x


def prepare_batch(
    images: Tensor,
    spec: DataSpec,
    generator: torch.Generator | None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """uint8 images (b, 3, H, W), H = W -> ``dtype`` (b, 3, H, W) on the same device.

    With a (CPU) generator, as in training: every image flips left-right with probability 1/2 if
    ``spec.flip``, then turns by an angle uniform in +-``spec.rotate`` degrees (nearest pixel, black
    outside, as torchvision's RandomRotation). Without one, as in evaluation: neither. Then pixel
    values go to [0, 1] and are normalised by ``spec.normalise``.

    The draws depend on the generator, b and the settings alone, not on device or dtype; the pixels
    chosen are the same for every dtype.
    """
    if generator is not None:
        images = augment(images, draw(len(images), spec, generator))
    return normalise(images, spec.normalise, dtype)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn square float32 images (b, C, H, H) counter-clockwise by their own angle (b,), degrees.

    Each output pixel takes the nearest input pixel about the image's centre; 0 outside.
    """
    a = degrees * (math.pi / 180)
    zero = torch.zeros_like(a)
    # rows of the matrix that leads from an output position back to its input position; y points
    # down in an image, so that this is the turn by +a
    top = torch.stack([a.cos(), -a.sin(), zero], dim=1)
    low = torch.stack([a.sin(), a.cos(), zero], dim=1)
    theta = torch.stack([top, low], dim=1)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(
        images, grid, mode="nearest", padding_mode="zeros", align_corners=False
    )


def normalise(images: Tensor, how: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixel values 0..255 (b, 3, H, W) -> (value / 255 - mean) / std, in ``dtype``."""
    wide = torch.promote_types(dtype, torch.float32)  # bf16 would round 1/255 steps away
    mean, std = _constants(how, wide, images.device)
    return ((images.to(wide) / 255 - mean) / std).to(dtype)


@lru_cache
def _constants(how: str, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (3, 1, 1). Kept, because the host waits for the device when it
    sends them there."""
    mean, std = (torch.tensor(v, dtype=dtype, device=device) for v in _NORMALISE[how])
    return mean[:, None, None], std[:, None, None]
