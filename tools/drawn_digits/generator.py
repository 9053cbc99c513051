"""Generated domains: ``minidigits``, ``synthdigits-standin`` and ``syn-standin``.

Picture j of a part of a domain depends only on (seed, domain, part, j), and labels run 0..9 in
turn, so that a larger count extends a smaller one and no order of generation matters.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
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
from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import numpy_stream

GENERATOR_VERSION = 1  # raised whenever any picture changes

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
    if name not in RECIPES:
        raise FedReproError(
            f"no generated domain is called {name!r}; choose one of {', '.join(RECIPES)}"
        )
    return RECIPES[name]


def _counts(name: str, counts: tuple[int, int] | None) -> tuple[int, int]:
    """(train, test) of a domain; ``counts`` overrides where the pictures are drawn freely."""
    recipe = _recipe(name)
    if recipe.counts is None:
        if counts is not None:
            raise FedReproError(f"{name} has one picture per scan; its counts cannot be changed")
        part = scans.scans().part
        return int(np.sum(part == 0)), int(np.sum(part == 1))
    chosen = recipe.counts if counts is None else counts
    if min(chosen) < 0 or sum(chosen) == 0:
        raise FedReproError(f"counts {chosen} of {name} make no pictures; give (train, test)")
    return chosen


def labels_and_parts(name: str, counts: tuple[int, int] | None = None) -> tuple[Labels, Parts]:
    """Labels (n,) and parts (n,), 0 train then 1 test, without drawing anything."""
    train, test = _counts(name, counts)
    if _recipe(name).counts is None:
        return scans.scans().labels.copy(), scans.scans().part.copy()
    within = np.concatenate([np.arange(train), np.arange(test)])
    return (within % 10).astype(np.int64), np.repeat(np.array([0, 1], np.int8), [train, test])


def chunks(
    name: str, size: int, counts: tuple[int, int] | None = None, seed: int = 0
) -> Iterator[Images]:
    """The domain's pictures in order, uint8 (at most CHUNK, C, size, size) at a time."""
    if not 8 <= size <= 1024:
        raise FedReproError(f"size {size} of {name}: give a side between 8 and 1024 pixels")
    train, test = _counts(name, counts)
    runs = [range(a, min(a + CHUNK, train + test)) for a in range(0, train + test, CHUNK)]
    jobs = -1 if train + test >= PARALLEL_FROM else 1
    drawn = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(_pictures)(name, run, train, size, seed) for run in runs
    )
    bar = tqdm(drawn, total=len(runs), desc=f"drawing {name}", unit="chunk", disable=_quiet(jobs))
    yield from bar


def _quiet(jobs: int) -> bool:
    """No bar for seconds of work, nor where nobody watches a terminal."""
    return jobs == 1 or not sys.stderr.isatty()


def _pictures(name: str, indices: range, train: int, size: int, seed: int) -> Images:
    recipe = _recipe(name)
    return np.stack([_picture(recipe, index, train, size, seed) for index in indices])


def _picture(recipe: Recipe, index: int, train: int, size: int, seed: int) -> Images:
    part, within = (0, index) if index < train else (1, index - train)
    # parts use the even and odd streams, so that neither's count moves the other's pictures
    rng = numpy_stream(seed, "generation", client=recipe.stream, round=2 * within + part)
    image = recipe.draw(rng, index if recipe.counts is None else within % 10)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if recipe.channels == 1 else pixels.transpose(2, 0, 1)


def generate(
    name: str, size: int, counts: tuple[int, int] | None = None, seed: int = 0
) -> tuple[Images, Labels, Parts]:
    """All pictures of a generated domain.

    size: side in pixels. counts: (train, test) instead of the domain's own, where it may vary.
    Returns images uint8 (n, C, size, size), C 1 for grey and 3 for colour; labels int64 (n,) in
    0..9; part int8 (n,), 0 train then 1 test.
    Raises FedReproError for an unknown name, or a size or counts that make no pictures.
    """
    labels, part = labels_and_parts(name, counts)
    images = np.empty((len(labels), _recipe(name).channels, size, size), np.uint8)
    done = 0
    for chunk in chunks(name, size, counts, seed):
        images[done : done + len(chunk)] = chunk
        done += len(chunk)
    return images, labels, part


def generation_hash(
    name: str, size: int, counts: tuple[int, int] | None = None, seed: int = 0
) -> str:
    """sha256 hex over all that decides the pixels: the generator's version, size, counts, seed,
    the bytes of fonts, scans and photos used, and the major versions of Pillow and numpy, whose
    resampling, font drawing and random streams may change with them."""
    facts = {
        "generator": GENERATOR_VERSION,
        "name": name,
        "size": size,
        "counts": list(_counts(name, counts)),
        "seed": seed,
        "sources": [source() for source in _recipe(name).sources],
        "pillow": version("pillow").split(".")[0],
        "numpy": version("numpy").split(".")[0],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
