"""What all renderers share: the square canvas, colours, placement, light, blur and noise."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from drawn_digits.fonts import STRIP, Mask

SIDE = 32  # every domain is drawn at 32 x 32 pixels, as SVHN and SynthDigits are, then resized

Colour = tuple[int, int, int]
Rng = np.random.Generator


def luminance(colour: Colour) -> float:
    """Brightness of an RGB colour, 0..255 (ITU-R BT.601 weights)."""
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def clip(values: npt.ArrayLike) -> Colour:
    """Three numbers as a colour."""
    red, green, blue = (int(v) for v in np.clip(np.asarray(values), 0, 255))
    return red, green, blue


def any_colour(rng: Rng) -> Colour:
    """Uniform over the RGB cube."""
    return clip(rng.integers(0, 256, 3))


def contrasting(rng: Rng, other: Colour, least: float) -> Colour:
    """A uniform colour whose luminance differs from ``other``'s by ``least`` (at most 120)."""
    while True:
        colour = any_colour(rng)
        if abs(luminance(colour) - luminance(other)) >= least:
            return colour


def chance(rng: Rng, probability: float) -> bool:
    """True with the given probability."""
    return bool(rng.random() < probability)


def place(
    line: Mask,
    row: float,
    scale: tuple[float, float] = (1.0, 1.0),
    degrees: float = 0.0,
    shear: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
) -> Image.Image:
    """A strip of digits laid on the canvas: its middle digit's centre (at ``row`` of the strip)
    comes to the canvas' centre plus ``shift`` pixels, scaled, slanted and turned.

    Returns an "L" image of SIDE x SIDE, 255 where there is ink.
    """
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = np.array([[cos, -sin], [sin, cos]])
    forward = turn @ np.array([[scale[0], shear * scale[1]], [0.0, scale[1]]])
    back = np.linalg.inv(forward)
    target = np.array([SIDE / 2 + shift[0], SIDE / 2 + shift[1]])
    offset = np.array([STRIP / 2, row]) - back @ target
    # Image.transform asks, for each output pixel, where in the input it comes from
    data = (back[0, 0], back[0, 1], offset[0], back[1, 0], back[1, 1], offset[1])
    return Image.fromarray(line).transform(
        (SIDE, SIDE),
        Image.Transform.AFFINE,
        tuple(float(v) for v in data),
        Image.Resampling.BILINEAR,
    )


def shade(image: Image.Image, rng: Rng, slope: float, patches: float) -> Image.Image:
    """Uneven light: a linear ramp of up to ``slope`` grey levels from edge to edge in a random
    direction, and soft patches of standard deviation ``patches`` grey levels."""
    angle = rng.uniform(0, 2 * math.pi)
    axis = np.linspace(-0.5, 0.5, SIDE)
    light = rng.uniform(0, slope) * (
        math.cos(angle) * axis[None, :] + math.sin(angle) * axis[:, None]
    )
    if patches > 0:
        coarse = Image.fromarray(rng.normal(0, patches, (4, 4)).astype(np.float32))
        light = light + np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return _from_floats(np.asarray(image, np.float32) + light[:, :, None])


def blur(image: Image.Image, radius: float) -> Image.Image:
    """Gaussian blur; a radius in pixels, 0 leaves the image as it is."""
    return image.filter(ImageFilter.GaussianBlur(radius)) if radius > 0 else image


def coarsen(image: Image.Image, side: int) -> Image.Image:
    """The look of a digit cut from a small region of a photo: down to ``side`` pixels, up again."""
    small = image.resize((side, side), Image.Resampling.BILINEAR)
    return small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def grain(image: Image.Image, rng: Rng, sigma: float) -> Image.Image:
    """Independent noise of ``sigma`` grey levels on every pixel and channel."""
    noise = rng.standard_normal((SIDE, SIDE, 3), np.float32) * sigma
    return _from_floats(np.asarray(image, np.float32) + noise)


def _from_floats(values: npt.NDArray[np.floating]) -> Image.Image:
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))
