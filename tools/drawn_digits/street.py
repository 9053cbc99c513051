"""House numbers in the manner of SVHN: digits of one number side by side, cut so that one is in
the middle; walls and plates, uneven light, little contrast, much blur."""

from __future__ import annotations

import colorsys

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from drawn_digits import canvas, fonts
from drawn_digits.canvas import SIDE, Colour, Rng
from drawn_digits.printed import neighbours

# Walls and plates: (share, hue from-to, saturation from-to, value from-to), each 0..1
_WALLS = (
    (0.32, (0.55, 0.75), (0.02, 0.15), (0.50, 0.95)),  # light greys of a cold light
    (0.20, (0.05, 0.15), (0.05, 0.35), (0.45, 0.95)),  # cream, sand, plaster
    (0.18, (0.02, 0.10), (0.25, 0.65), (0.25, 0.65)),  # brick and wood
    (0.16, (0.50, 0.75), (0.05, 0.35), (0.08, 0.35)),  # dark metal
    (0.10, (0.55, 0.67), (0.45, 0.90), (0.35, 0.75)),  # blue enamel
    (0.04, (0.25, 0.45), (0.25, 0.65), (0.20, 0.50)),  # green plates
)
_SHARES = np.cumsum([wall[0] for wall in _WALLS])


def wall_colour(rng: Rng) -> Colour:
    """A colour that fronts of houses and number plates have."""
    _, hue, saturation, value = _WALLS[int(np.searchsorted(_SHARES, rng.random() * _SHARES[-1]))]
    drawn = colorsys.hsv_to_rgb(rng.uniform(*hue), rng.uniform(*saturation), rng.uniform(*value))
    return canvas.clip(np.multiply(drawn, 255))


def digit_colour(rng: Rng, wall: Colour) -> Colour:
    """Paint or metal on ``wall``: lighter or darker by 30 to 150 grey levels, tinted a little;
    now and then a strong colour (gold, red, blue)."""
    here = canvas.luminance(wall)
    step = float(rng.uniform(30, 150))
    # towards the side that has room; on a middling wall either
    sign = 1.0 if rng.uniform(30, 225) > here else -1.0
    if not 0 <= here + sign * step <= 255:
        step = max(30.0, (255 - here) if sign > 0 else here)
    paint = np.full(3, here + sign * step) + rng.normal(0, 10, 3)
    if canvas.chance(rng, 0.15):
        paint = paint + np.array(((60, 25, -50), (70, -40, -40), (-50, -30, 60))[rng.integers(3)])
    return canvas.clip(paint)


def _texture(image: Image.Image, rng: Rng, wall: Colour) -> None:
    """Boards, or a course of bricks: thin lines a little darker than the wall."""
    draw = ImageDraw.Draw(image)
    line = canvas.clip(np.asarray(wall) * rng.uniform(0.6, 0.9))
    pitch = int(rng.integers(6, 14))
    first = int(rng.integers(pitch))
    bricks = canvas.chance(rng, 0.4)
    for course, y in enumerate(range(first, SIDE, pitch)):
        draw.line((0, y, SIDE, y), fill=line)
        if bricks:
            for x in range(first + (course % 2) * pitch, SIDE, 2 * pitch):
                draw.line((x, y, x, y + pitch), fill=line)


def _frame(image: Image.Image, rng: Rng) -> None:
    """The end of the plate: another surface along one or two sides of the picture."""
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(1, 3))):
        depth, other = float(rng.uniform(1, 6)), float(rng.uniform(1, 6))
        beside = wall_colour(rng)
        far = SIDE
        quads = (
            ((0, 0), (depth, 0), (other, far), (0, far)),
            ((far, 0), (far - depth, 0), (far - other, far), (far, far)),
            ((0, 0), (0, depth), (far, other), (far, 0)),
            ((0, far), (0, far - depth), (far, far - other), (far, far)),
        )
        draw.polygon([xy for corner in quads[rng.integers(4)] for xy in corner], fill=beside)


def _number(rng: Rng, label: int) -> Image.Image:
    """The ink of the number, an "L" image: tall, narrow digits that nearly fill the height."""
    face = fonts.SIGNS[int(rng.integers(len(fonts.SIGNS)))]
    line = fonts.strip(
        face,
        label,
        neighbours(rng, 0.5),
        neighbours(rng, 0.5),
        weight=int(rng.integers(5)),
        gap=int(rng.integers(2, 7)),
    )
    height = float(rng.uniform(0.95, 1.4))
    return canvas.place(
        line,
        fonts.middle_row(face),
        scale=(height * float(rng.uniform(0.65, 1.0)), height),
        degrees=float(rng.normal(0, 5)),
        shear=float(rng.normal(0, 0.08)),
        shift=(float(rng.normal(0, 1)), float(rng.normal(0, 1))),
    )


def street(rng: Rng, label: int) -> Image.Image:
    """One picture of ``label``: RGB, SIDE x SIDE."""
    wall = wall_colour(rng)
    image = Image.new("RGB", (SIDE, SIDE), wall)
    if canvas.chance(rng, 0.3):
        _texture(image, rng, wall)
    if canvas.chance(rng, 0.4):
        _frame(image, rng)
    ink = _number(rng, label)
    if canvas.chance(rng, 0.25):  # raised digits throw a shadow
        dx, dy = (int(v) for v in rng.integers(-2, 3, 2))
        shadow = canvas.clip(np.asarray(wall) * rng.uniform(0.4, 0.8))
        image.paste(shadow, (0, 0), ImageChops.offset(ink, dx, dy))
    image.paste(digit_colour(rng, wall), (0, 0), ink)
    image = canvas.shade(image, rng, slope=70, patches=7)
    if canvas.chance(rng, 0.6):
        image = canvas.coarsen(image, int(rng.integers(8, 20)))
    image = canvas.blur(image, float(rng.uniform(0.2, 1.3)))
    return canvas.grain(image, rng, float(rng.uniform(0, 5)))
