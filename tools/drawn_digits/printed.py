"""Coloured font digits in the manner of SynthDigits (Ganin and Lempitsky, ICML 2015): varied
fonts, positions, orientations, stroke and background colours, blur, neighbours. And in the manner
of Synthetic Digits (Roy et al., 2018): one digit over a piece of a photo."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from drawn_digits import canvas, fonts, scans
from drawn_digits.canvas import SIDE, Colour, Rng


@dataclass(frozen=True)
class PrintedStyle:
    """How varied a printed domain is. Angles in degrees, lengths in pixels of the 32 x 32 canvas,
    the rest probabilities or grey levels."""

    faces: tuple[fonts.Face, ...]
    turn: float  # greatest rotation either way
    slant: float  # greatest shear either way
    shift: float  # greatest displacement either way, each axis
    height: tuple[float, float]  # scale range; 1 is a digit about 21 pixels tall
    width: tuple[float, float]  # further horizontal scale
    weight: int  # greatest growth of the strokes, half-pixels
    contrast: float  # least luminance difference of ink and ground
    neighbours: float  # chance of a neighbour, each side
    outline: float  # chance of a rim in a third colour
    clutter: float  # chance of lines and spots behind the digit
    ramp: float  # greatest change of light across the canvas
    blur: float  # greatest radius
    noise: float  # greatest standard deviation
    photo: bool = False  # a piece of a photo as ground, not one colour


TAME = PrintedStyle(
    faces=fonts.PLAIN,
    turn=12,
    slant=0.1,
    shift=2,
    height=(0.85, 1.15),
    width=(0.85, 1.15),
    weight=2,
    contrast=70,
    neighbours=0.3,
    outline=0.0,
    clutter=0.0,
    ramp=0,
    blur=0.7,
    noise=0,
)
VARIED = PrintedStyle(
    faces=fonts.PLAIN + fonts.DECORATED,
    turn=25,
    slant=0.25,
    shift=3,
    height=(0.7, 1.25),
    width=(0.7, 1.25),
    weight=4,
    contrast=40,
    neighbours=0.5,
    outline=0.3,
    clutter=0.25,
    ramp=60,
    blur=1.4,
    noise=10,
)
ON_PHOTO = PrintedStyle(
    faces=fonts.PLAIN + fonts.DECORATED,
    turn=30,
    slant=0.0,
    shift=4,
    height=(0.55, 1.25),
    width=(1.0, 1.0),
    weight=3,
    contrast=40,
    neighbours=0.0,
    outline=0.0,
    clutter=0.0,
    ramp=0,
    blur=0.6,
    noise=0,
    photo=True,
)


def neighbours(rng: Rng, probability: float) -> tuple[int, ...]:
    """The digits on one side, nearest first: none, one, or (a third of the cases) two."""
    if not canvas.chance(rng, probability):
        return ()
    count = 2 if canvas.chance(rng, 1 / 3) else 1
    return tuple(int(d) for d in rng.integers(0, 10, count))


def _clutter(image: Image.Image, rng: Rng) -> None:
    """Up to three thin lines or discs anywhere on the ground."""
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(1, 4))):
        ends = [float(v) for v in rng.uniform(-4, SIDE + 4, 4)]
        if canvas.chance(rng, 0.6):
            draw.line(ends, fill=canvas.any_colour(rng), width=int(rng.integers(1, 3)))
        else:
            radius = float(rng.uniform(1.5, 5))
            box = (ends[0] - radius, ends[1] - radius, ends[0] + radius, ends[1] + radius)
            draw.ellipse(box, fill=canvas.any_colour(rng))


def ground(rng: Rng, style: PrintedStyle) -> tuple[Image.Image, Colour]:
    """What lies behind the digit, and the colour that ink has to stand out from."""
    if style.photo:
        patch = scans.photo_patch(rng)
        return patch, canvas.clip(np.asarray(patch).mean((0, 1)))
    colour = canvas.any_colour(rng)
    return Image.new("RGB", (SIDE, SIDE), colour), colour


def printed(rng: Rng, label: int, style: PrintedStyle) -> Image.Image:
    """One picture of ``label``: RGB, SIDE x SIDE."""
    face = style.faces[int(rng.integers(len(style.faces)))]
    line = fonts.strip(
        face,
        label,
        neighbours(rng, style.neighbours),
        neighbours(rng, style.neighbours),
        weight=int(rng.integers(style.weight + 1)),
        gap=int(rng.integers(2, 6)),
    )
    height = float(rng.uniform(*style.height))
    ink = canvas.place(
        line,
        fonts.middle_row(face),
        scale=(height * float(rng.uniform(*style.width)), height),
        degrees=float(rng.uniform(-style.turn, style.turn)),
        shear=float(rng.uniform(-style.slant, style.slant)),
        shift=(
            float(rng.uniform(-style.shift, style.shift)),
            float(rng.uniform(-style.shift, style.shift)),
        ),
    )
    image, behind = ground(rng, style)
    if canvas.chance(rng, style.clutter):
        _clutter(image, rng)
    colour = canvas.contrasting(rng, behind, style.contrast)
    if canvas.chance(rng, style.outline):
        rim = canvas.contrasting(rng, colour, style.contrast)
        image.paste(rim, (0, 0), ink.filter(ImageFilter.MaxFilter(3)))
    image.paste(colour, (0, 0), ink)
    if style.ramp > 0:
        image = canvas.shade(image, rng, style.ramp, patches=0)
    image = canvas.blur(image, float(rng.uniform(0, style.blur)))
    return canvas.grain(image, rng, float(rng.uniform(0, style.noise))) if style.noise else image
