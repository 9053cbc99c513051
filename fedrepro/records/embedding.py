"""Representations: their stored form, and their t-SNE points."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import stream_seed

DIMENSIONS = 50
PERPLEXITY = 30.0  # t-SNE's usual value; fewer points take a third of their number
LEAST = 5


def compact(features: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Features (m, d) as float16 (m, <=50): their first principal components, the usual step
    before t-SNE, keep a record small. Values beyond float16 are limited to its largest number."""
    dimensions = min(DIMENSIONS, *features.shape)
    if features.shape[1] > dimensions:
        from sklearn.decomposition import PCA  # takes a second

        features = PCA(dimensions, svd_solver="full").fit_transform(features)
    most = np.finfo(np.float16).max
    # Row by row in memory: safetensors writes bytes in memory order, and PCA returns columns.
    return np.ascontiguousarray(features.clip(-most, most), dtype=np.float16)


def tsne(
    features: Mapping[str, npt.NDArray[Any]],
    domains: Sequence[str],
    classes: Sequence[str],
    seed: int = 0,
) -> pd.DataFrame:
    """t-SNE of a record's test features: columns x, y, domain, cls, one row per image.

    features: ``features`` (m, d), ``labels`` (m,) and ``domain`` (m,), an index into ``domains``,
    as `Record.features` gives them. Equal input and seed give equal points on one machine.
    FedReproError: fewer than 5 points.
    """
    from sklearn.manifold import TSNE

    points = np.asarray(features["features"], dtype=np.float32)
    if len(points) < LEAST:
        raise FedReproError(
            f"t-SNE needs at least {LEAST} points, got {len(points)}; test on more images"
        )
    model = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        init="pca" if points.shape[1] > 1 else "random",
        random_state=stream_seed(seed, "figure") % 2**32,
    )
    plane = pd.DataFrame(model.fit_transform(points), columns=["x", "y"])
    return plane.assign(
        domain=[domains[i] for i in features["domain"]],
        cls=[classes[i] for i in features["labels"]],
    )
