"""Digits from the fonts that matplotlib carries, as masks.

Only faces with ten well-formed digits are named: the symbol fonts of the same folder hold other
glyphs at the digits' code points.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Mask = npt.NDArray[np.uint8]

CELL = 40  # height of a glyph's cell in pixels
BASELINE = 30  # row of the baseline in the cell
EM = 29  # font size in pixels; a digit is then about 21 pixels tall
STRIP = 120  # width of a strip of digits: the middle one and up to two on each side
_OVERSAMPLING = 2  # glyphs are drawn larger and reduced, so that half-pixel weights exist


@dataclass(frozen=True)
class Face:
    """One design of the ten digits: a font file and the code point of its zero."""

    file: str
    zero: int = ord("0")


_DOUBLE, _SANS, _SANS_BOLD, _MONO = 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6  # mathematical digits

# Plain designs, enough for a small domain; DECORATED adds what is rarer on a page.
PLAIN = (
    Face("DejaVuSans.ttf"),
    Face("DejaVuSans-Bold.ttf"),
    Face("DejaVuSans-Oblique.ttf"),
    Face("DejaVuSans-BoldOblique.ttf"),
    Face("DejaVuSerif.ttf"),
    Face("DejaVuSerif-Bold.ttf"),
    Face("DejaVuSerif-Italic.ttf"),
    Face("DejaVuSerif-BoldItalic.ttf"),
    Face("STIXGeneral.ttf"),
    Face("STIXGeneralBol.ttf"),
    Face("STIXGeneral.ttf", _SANS),
    Face("STIXGeneral.ttf", _SANS_BOLD),
    Face("cmr10.ttf"),
    Face("cmb10.ttf"),
    Face("cmss10.ttf"),
    Face("cmtt10.ttf"),
)
DECORATED = (
    Face("DejaVuSansMono.ttf"),
    Face("DejaVuSansMono-Bold.ttf"),
    Face("DejaVuSansMono-Oblique.ttf"),
    Face("DejaVuSansMono-BoldOblique.ttf"),
    Face("STIXGeneralItalic.ttf"),
    Face("STIXGeneralBolIta.ttf"),
    Face("STIXGeneral.ttf", _MONO),
    Face("cmti10.ttf"),
    Face("cmmi10.ttf"),  # old-style figures
    Face("DejaVuSans.ttf", _DOUBLE),
    Face("DejaVuSerif.ttf", _DOUBLE),
    Face("STIXGeneral.ttf", _DOUBLE),
)
# What numbers on houses look like: upright, sans or sturdy serifs.
SIGNS = tuple(
    face
    for face in PLAIN
    if not any(word in face.file for word in ("Oblique", "Italic", "cmr10", "cmtt10"))
)


def font_path(face: Face) -> Path:
    """The face's file inside the installed matplotlib."""
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face.file


@cache
def fonts_hash() -> str:
    """sha256 over the bytes of every font file used, in the order of their names."""
    digest = hashlib.sha256()
    for face in sorted({f.file: f for f in PLAIN + DECORATED}.values(), key=lambda f: f.file):
        digest.update(face.file.encode() + b"\0" + font_path(face).read_bytes())
    return digest.hexdigest()


@cache
def _font(face: Face) -> ImageFont.FreeTypeFont:
    # the basic layout engine is in every Pillow; the other one is optional and spaces differently
    return ImageFont.truetype(
        str(font_path(face)), EM * _OVERSAMPLING, layout_engine=ImageFont.Layout.BASIC
    )


@cache
def glyph(face: Face, digit: int, weight: int = 0) -> Mask:
    """One digit, uint8 (CELL, width): 255 is ink; no empty columns at its sides.

    weight: half-pixels by which the outline is grown (0: as the font has it).
    """
    side = 2 * CELL * _OVERSAMPLING
    canvas = Image.new("L", (side, CELL * _OVERSAMPLING))
    ImageDraw.Draw(canvas).text(
        (CELL * _OVERSAMPLING // 2, BASELINE * _OVERSAMPLING),
        chr(face.zero + digit),
        font=_font(face),
        fill=255,
        anchor="ls",
        stroke_width=weight,
    )
    mask = np.asarray(canvas.reduce(_OVERSAMPLING))
    columns = np.flatnonzero(mask.any(axis=0))
    cut: Mask = mask[:, columns[0] : columns[-1] + 1].copy()
    cut.flags.writeable = False  # shared by every picture that uses the glyph
    return cut


@cache
def middle_row(face: Face) -> float:
    """The row halfway up the face's digits: the mean over the ten, so old-style figures keep
    standing on or hanging below their line."""
    spans = [np.flatnonzero(glyph(face, d).any(axis=1)) for d in range(10)]
    return float(np.mean([(rows[0] + rows[-1] + 1) / 2 for rows in spans]))


def strip(
    face: Face,
    digit: int,
    left: tuple[int, ...] = (),
    right: tuple[int, ...] = (),
    weight: int = 0,
    gap: int = 3,
) -> Mask:
    """A number on one line, uint8 (CELL, STRIP), ``digit`` exactly in the middle.

    left, right: the neighbours' digits, nearest first; gap: empty pixels between digits.
    What does not fit is cut off at the ends.
    """
    line = np.zeros((CELL, STRIP), np.uint8)
    centre = glyph(face, digit, weight)
    start = (STRIP - centre.shape[1]) // 2
    end = start + centre.shape[1]
    line[:, start:end] = centre
    for neighbour in right:
        mask = glyph(face, neighbour, weight)[:, : max(0, STRIP - end - gap)]
        line[:, end + gap : end + gap + mask.shape[1]] = mask
        end += gap + mask.shape[1]
    for neighbour in left:
        mask = glyph(face, neighbour, weight)
        mask = mask[:, max(0, mask.shape[1] - max(0, start - gap)) :]
        line[:, start - gap - mask.shape[1] : start - gap] = mask
        start -= gap + mask.shape[1]
    return line
