"""Generated domains: ``minidigits``, ``synthdigits-standin`` and ``syn-standin``.

Picture j of a part of a domain depends only on (domain, part, j), and labels run 0..9 in turn, so
that a larger count extends a smaller one and no order of generation matters.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from PIL import Image
from tqdm import tqdm

from drawn_digits import scans
from drawn_digits.canvas import Rng
from drawn_digits.fonts import fonts_hash
from drawn_digits.printed import ON_PHOTO, TAME, VARIED, printed
from drawn_digits.street import street
from fedrepro.base.errors import FedReproError, one_of
from fedrepro.base.rng import numpy_stream

GENERATOR_VERSION = 1  # raised whenever any picture changes
SEED = 0

# Drawn domains of minidigits: as many pictures as scikit-learn has scans, near enough.
MINI_COUNTS = (1_440, 360)
# (train, test) of the stand-ins: the releases' own part sizes (SYN's are published as about so
# many), so that protocols that pool, split or take a share of the whole domain find the counts
# they would find in the release.
STANDIN_COUNTS = (479_400, 9_553)
SYN_STANDIN_COUNTS = (10_000, 2_000)

CHUNK = 2_000  # pictures held as a Python list at a time
PARALLEL_FROM = 10 * CHUNK  # fewer pictures are drawn sooner than worker processes start

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Parts = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Recipe:
    """How a domain is drawn.

    stream: the domain's number in the "generation" streams; never changed, never used twice.
    draw: (stream, index of the scan or label of the digit) -> picture.
    counts: (train, test), or None where the pictures are scikit-learn's scans, one each.
    """

    stream: int
    channels: int
    draw: Callable[[Rng, int], Image.Image]
    counts: tuple[int, int] | None
    sources: tuple[Callable[[], str], ...]


RECIPES: dict[str, Recipe] = {
    "mini-scanned": Recipe(0, 1, lambda _, i: scans.scanned(i), None, (scans.scans_hash,)),
    "mini-font": Recipe(1, 3, lambda r, y: printed(r, y, TAME), MINI_COUNTS, (fonts_hash,)),
    "mini-photo": Recipe(2, 3, scans.over_photo, None, (scans.scans_hash, scans.photos_hash)),
    "mini-street": Recipe(3, 3, street, MINI_COUNTS, (fonts_hash,)),
    "synthdigits-standin": Recipe(
        4, 3, lambda r, y: printed(r, y, VARIED), STANDIN_COUNTS, (fonts_hash,)
    ),
    "syn-standin": Recipe(
        5,
        3,
        lambda r, y: printed(r, y, ON_PHOTO),
        SYN_STANDIN_COUNTS,
        (fonts_hash, scans.photos_hash),
    ),
}
GENERATED = tuple(RECIPES)


def _recipe(name: str) -> Recipe:
    return RECIPES[one_of(name, RECIPES, "generated domain")]


def _counts(name: str) -> tuple[int, int]:
    """(train, test) of a domain."""
    if (counts := _recipe(name).counts) is not None:
        return counts
    part = scans.scans().part
    return int(np.sum(part == 0)), int(np.sum(part == 1))


def labels_and_parts(name: str) -> tuple[Labels, Parts]:
    """Labels (n,) and parts (n,), 0 train then 1 test, without drawing anything."""
    train, test = _counts(name)
    if _recipe(name).counts is None:
        return scans.scans().labels.copy(), scans.scans().part.copy()
    within = np.concatenate([np.arange(train), np.arange(test)])
    return (within % 10).astype(np.int64), np.repeat(np.array([0, 1], np.int8), [train, test])


def _pictures(name: str, indices: range, size: int) -> Images:
    recipe, train = _recipe(name), _counts(name)[0]
    return np.stack([_picture(recipe, index, train, size) for index in indices])


def _picture(recipe: Recipe, index: int, train: int, size: int) -> Images:
    part, within = (0, index) if index < train else (1, index - train)
    # parts use the even and odd streams, so that neither's count moves the other's pictures
    rng = numpy_stream(SEED, "generation", client=recipe.stream, round=2 * within + part)
    image = recipe.draw(rng, index if recipe.counts is None else within % 10)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if recipe.channels == 1 else pixels.transpose(2, 0, 1)


def generate(name: str, size: int) -> tuple[Images, Labels, Parts]:
    """All pictures of a generated domain, with a side in pixels.

    Returns images uint8 (n, C, size, size), C 1 for grey and 3 for colour; labels int64 (n,) in
    0..9; part int8 (n,), 0 train then 1 test.
    Raises FedReproError for an unknown name, or a size that makes no pictures.
    """
    if not 8 <= size <= 1024:
        raise FedReproError(f"size {size} of {name}: give a side between 8 and 1024 pixels")
    labels, part = labels_and_parts(name)
    total = len(labels)
    images = np.empty((total, _recipe(name).channels, size, size), np.uint8)
    runs = [range(start, min(start + CHUNK, total)) for start in range(0, total, CHUNK)]
    jobs = -1 if total >= PARALLEL_FROM else 1
    drawn = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(_pictures)(name, run, size) for run in runs
    )
    # no bar for seconds of work, nor where nobody watches a terminal
    quiet = jobs == 1 or not sys.stderr.isatty()
    bar = tqdm(drawn, total=len(runs), desc=f"drawing {name}", unit="chunk", disable=quiet)
    for run, pictures in zip(runs, bar, strict=True):
        images[run.start : run.stop] = pictures
    return images, labels, part


def generation_hash(name: str, size: int) -> str:
    """sha256 hex over all that decides the pixels: the generator's version, size, counts, seed,
    the bytes of fonts, scans and photos used, and the major versions of Pillow and numpy, whose
    resampling, font drawing and random streams may change with them."""
    facts = {
        "generator": GENERATOR_VERSION,
        "name": name,
        "size": size,
        "counts": list(_counts(name)),
        "seed": SEED,
        "sources": [source() for source in _recipe(name).sources],
        "pillow": version("pillow").split(".")[0],
        "numpy": version("numpy").split(".")[0],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
