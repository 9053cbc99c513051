"""Stored uint8 images -> network input: augmentation and normalisation, a batch at a time."""

from __future__ import annotations

import math

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
    x = images
    if generator is not None and spec.flip:
        flips = torch.rand(len(x), generator=generator) < 0.5
        x = torch.where(flips.to(x.device)[:, None, None, None], x.flip(-1), x)
    if generator is not None and spec.rotate:
        degrees = (2 * torch.rand(len(x), generator=generator) - 1) * spec.rotate
        x = rotate(x.float(), degrees.to(x.device))
    return normalise(x, spec.normalise, dtype)


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
    mean, std = (
        torch.tensor(v, dtype=wide, device=images.device)[:, None, None] for v in _NORMALISE[how]
    )
    return ((images.to(wide) / 255 - mean) / std).to(dtype)
