"""Batches: the order of samples; augmentation and normalisation of stored uint8 images."""

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from fedrepro.base.errors import need
from fedrepro.base.protocol import Augmentation

# mean, std per channel on the [0, 1] scale
_NORMALISE: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}


def epoch_batches(
    n: int, batch_size: int, generator: torch.Generator, steps: int | None = None
) -> list[Tensor]:
    """Index batches of one shuffled epoch: int64 (batch_size,); see `slices` for the last. steps:
    this many full batches (of all samples if fewer) instead, from as many shuffles as needed."""
    if steps is None:
        order = torch.randperm(n, generator=generator)
        return [order[part] for part in slices(n, batch_size)]
    size = min(n, batch_size)
    shuffles = [torch.randperm(n, generator=generator) for _ in range(-(-steps * size // n))]
    return list(torch.cat(shuffles)[: steps * size].split(size))


def slices(n: int, size: int) -> list[slice]:
    """0..n in slices of `size`; a last one of 1 joins the one before: BatchNorm needs two."""
    starts = list(range(0, n, size))
    if len(starts) > 1 and n - starts[-1] == 1:
        starts.pop()
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], n], strict=True)]


def augment(images: Tensor, how: Augmentation, generator: torch.Generator) -> Tensor:
    """Images (b, C, H, H) after torchvision's RandomCrop (with padding), RandomHorizontalFlip,
    RandomRotation (nearest pixel) and RandomErasing, in this order; float32 if rotated, else with
    unchanged type. Each image has its own draws; empty pixels are black. The draws are made on the
    CPU and depend only on the generator, b and the settings, not on the images' size."""
    x, n = images, len(images)

    def sent(drawn: Tensor) -> Tensor:
        return drawn.to(images.device, non_blocking=True)  # a GPU's host does not wait

    changes = x.ndim == 2 and how.changes_images
    need(not changes, "embeddings cannot be augmented; use a protocol without an encoder")
    if how.crop:
        by = torch.randint(-how.crop, how.crop + 1, (n, 2), generator=generator)
        x = shift(x, sent(by))
    if how.flip:
        flips = torch.rand(n, generator=generator) < 0.5
        x = torch.where(sent(flips)[:, None, None, None], x.flip(-1), x)
    if how.rotate:
        degrees = (2 * torch.rand(n, generator=generator) - 1) * how.rotate
        x = rotate(x.float(), sent(degrees))
    if how.erase:
        x = erase(x, *(sent(drawn) for drawn in rectangles(n, how.erase, generator)))
    return x


def shift(images: Tensor, by: Tensor) -> Tensor:
    """Move images (b, C, H, H) up and left by their own (b, 2) pixels; empty pixels are 0."""
    size = images.shape[-1]
    places = torch.arange(size, device=images.device)[:, None] + by[:, None, :]  # (b, H, 2)
    rows, columns = places.clamp(0, size - 1).unbind(2)
    x = images.gather(2, rows[:, None, :, None].expand_as(images))
    x = x.gather(3, columns[:, None, None, :].expand_as(images))
    return x.masked_fill(~_box(size, -by, size - by), 0)


def _box(size: int, start: Tensor, end: Tensor) -> Tensor:
    """Whether each pixel is from the corner `start` (b, 2) to before `end`: (b, 1, size, size)."""
    places = torch.arange(size, device=start.device)[:, None]
    within = (places >= start[:, None]) & (places < end[:, None])  # (b, H, 2)
    return within[:, None, :, None, 0] & within[:, None, None, :, 1]


def rectangles(n: int, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What to erase of a share of n images, as torchvision's RandomErasing. patches: float32 (n, 10
    tries, 2), heights and widths as fractions of an image's side; the first that fits is used.
    corners: float32 (n, 2), its place between the top left (0) and the bottom right (1)."""
    spared, tries = torch.rand(n, generator=generator) >= share, (n, 10)
    area = torch.empty(tries).uniform_(0.02, 0.33, generator=generator)
    logarithm = torch.empty(tries).uniform_(math.log(0.3), math.log(3.3), generator=generator)
    aspect = logarithm.exp()  # height to width
    patches = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()], dim=2)
    patches[spared] = 2.0  # never fits
    return patches, torch.rand(n, 2, generator=generator)


def erase(images: Tensor, patches: Tensor, corners: Tensor) -> Tensor:
    """Blacken one rectangle of each image (b, C, H, H); see `rectangles`. A patch fits if both its
    sides, in whole pixels, are smaller than the image's."""
    size = images.shape[-1]
    sides = (patches * size).round()
    fits = (sides < size).all(2)
    first = fits.int().argmax(1)  # the first of several, as documented
    chosen = torch.take_along_dim(sides, first[:, None, None], 1)[:, 0] * fits.any(1)[:, None]
    start = (corners * (size - chosen + 1)).floor()  # (b, 2); a corner is less than 1
    return images.masked_fill(_box(size, start, start + chosen), 0)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate square float32 images (b, C, H, H) counter-clockwise by their own angle (b,), degrees.
    Each output pixel takes the nearest input pixel about the image's centre; 0 outside."""
    a = degrees * (math.pi / 180)
    cos, sin, zero = a.cos(), a.sin(), torch.zeros_like(a)
    # from an output position back to its input's; y points down, so this is the rotation by +a
    theta = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).view(-1, 2, 3)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(
        images, grid, mode="nearest", padding_mode="zeros", align_corners=False
    )


def normalise(images: Tensor, how: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixels 0..255 (b, 3, H, W) -> (value / 255 - mean) / std, in ``dtype``; embeddings stay."""
    if images.ndim == 2:
        return images.to(dtype)
    wide = torch.promote_types(dtype, torch.float32)  # bf16 would round 1/255 steps away
    mean, std = _constants(how, wide, images.device)
    return ((images.to(wide) / 255 - mean) / std).to(dtype)


@lru_cache
def _constants(how: str, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation (3, 1, 1), cached, because the host waits when it sends them."""
    mean, std = (torch.tensor(v, dtype=dtype, device=device) for v in _NORMALISE[how])
    return mean[:, None, None], std[:, None, None]
