"""scikit-learn's scanned digits, and the same over photo patches in the manner of MNIST-M
(Ganin and Lempitsky, ICML 2015): the absolute difference of patch and digit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops
from sklearn.datasets import load_digits, load_sample_image

from drawn_digits.canvas import SIDE, Rng, chance

TEST_FRACTION = 0.2
_THRESHOLD = 140  # grey level of the edge of the ink: lower fills the 6, higher opens the 0
_INK = 24  # a scan's side on the canvas: the margin is then MNIST's, about an eighth
_GREY_LEVELS = 16  # scikit-learn's scans count the dark pixels of 4 x 4 blocks: 0..16


@dataclass(frozen=True)
class Scans:
    """images uint8 (n, 8, 8), 0..255, ink bright; labels int64 (n,); part int8 (n,), 0 train then
    1 test."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    part: npt.NDArray[np.int8]


@cache
def scans() -> Scans:
    """The 1,797 scans, train part first.

    The test part is the last fifth of each class in the file's order: writers follow each other
    in it, so the test digits are mostly by other hands than the training digits.
    """
    raw, labels = load_digits(return_X_y=True)
    grey = np.rint(raw.reshape(-1, 8, 8) * (255 / _GREY_LEVELS)).astype(np.uint8)
    part = np.zeros(len(labels), np.int8)
    for label in range(10):
        of_class = np.flatnonzero(labels == label)
        part[of_class[len(of_class) - round(TEST_FRACTION * len(of_class)) :]] = 1
    order = np.argsort(part, kind="stable")
    return Scans(grey[order], labels[order].astype(np.int64), part[order])


@cache
def photos() -> tuple[Image.Image, ...]:
    """The photos that scikit-learn carries: a temple in China and a flower."""
    return tuple(Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg"))


@cache
def scans_hash() -> str:
    """sha256 over scikit-learn's digits as read."""
    raw, labels = load_digits(return_X_y=True)
    return hashlib.sha256(
        np.ascontiguousarray(raw, "<f8").tobytes() + np.ascontiguousarray(labels, "<i8").tobytes()
    ).hexdigest()


@cache
def photos_hash() -> str:
    """sha256 over the decoded photos."""
    return hashlib.sha256(b"".join(photo.tobytes() for photo in photos())).hexdigest()


def scanned(index: int) -> Image.Image:
    """Scan ``index`` scaled up in the middle of a black canvas: "L", SIDE x SIDE."""
    page = Image.new("L", (SIDE, SIDE))
    ink = Image.fromarray(scans().images[index]).resize((_INK, _INK), Image.Resampling.BICUBIC)
    page.paste(ink, ((SIDE - _INK) // 2, (SIDE - _INK) // 2))
    return page


def photo_patch(rng: Rng) -> Image.Image:
    """A square of a photo, 32 to 160 pixels wide, perhaps mirrored or turned upside down; half of
    them with their colour channels shuffled, since two photos have to stand for a collection."""
    photo = photos()[int(rng.integers(len(photos())))]
    side = int(rng.integers(SIDE, 161))
    x = int(rng.integers(photo.width - side + 1))
    y = int(rng.integers(photo.height - side + 1))
    patch = photo.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=(x, y, x + side, y + side))
    for flip in (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM):
        if chance(rng, 0.5):
            patch = patch.transpose(flip)
    if chance(rng, 0.5):
        return patch
    channels = patch.split()
    return Image.merge("RGB", [channels[i] for i in rng.permutation(3)])


def over_photo(rng: Rng, index: int) -> Image.Image:
    """Scan ``index`` over a photo patch: |patch - ink|, ink on or off as in MNIST-M; RGB."""
    ink = scanned(index).point(lambda value: 255 if value > _THRESHOLD else 0)
    return ImageChops.difference(photo_patch(rng), ink.convert("RGB"))
