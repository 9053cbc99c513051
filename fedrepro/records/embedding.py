"""Representations in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.manifold import TSNE

from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import stream_seed
from fedrepro.quantities.figure_arrays import Figure

PERPLEXITY = 30.0  # t-SNE's usual value; fewer points take a third of their number
LEAST = 5


def tsne(
    features: Mapping[str, npt.NDArray[Any]],
    domains: Sequence[str],
    classes: Sequence[str],
    seed: int = 0,
) -> pd.DataFrame:
    """t-SNE of a record's test features: columns x, y, domain, cls, a row a picture.

    features: ``features`` (m, d), ``labels`` (m,) and ``domain`` (m,), an index into ``domains``,
    as `Record.features` gives them. Equal input and seed give equal points on one machine.
    FedReproError: fewer than 5 points, or lengths that disagree.
    """
    points = np.asarray(features["features"], dtype=np.float32)
    labels, owners = features["labels"], features["domain"]
    if not len(points) == len(labels) == len(owners):
        raise FedReproError(
            f"{len(points)} features for {len(labels)} labels; delete the run and train it again"
        )
    if len(points) < LEAST:
        raise FedReproError(
            f"t-SNE needs at least {LEAST} points, got {len(points)}; test on more images"
        )
    model = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        init="pca" if points.shape[1] > 1 else "random",
        random_state=stream_seed(seed, "figure") % 2**32,
    )
    plane = model.fit_transform(points)
    return pd.DataFrame(
        {
            "x": plane[:, 0],
            "y": plane[:, 1],
            "domain": [domains[int(i)] for i in owners],
            "cls": [classes[int(i)] for i in labels],
        }
    )


def with_prototypes(figure: Figure, seed: int = 0) -> pd.DataFrame:
    """t-SNE of embeddings together with prototypes: columns x, y, domain, cls, role.

    figure: the arrays of an experiment of kind ``prototypes`` (`Study.figure`).
    """
    names = figure.facts
    points = tsne(figure.arrays, names["domains"], names["classes"], seed)
    return points.assign(role=[names["roles"][int(i)] for i in figure.arrays["role"]])
