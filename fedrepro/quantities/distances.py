"""FID: how far the sources of a data set lie apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy import linalg

from fedrepro.base.protocol import Scale
from fedrepro.base.rng import numpy_stream
from fedrepro.data.embeddings import embedder, encode
from fedrepro.quantities.base import Asked, Values, quantity
from fedrepro.quantities.counts import row, sources

Array = npt.NDArray[np.float64]
# Encoder, and most images of a source, by scale.
MEASURED: Mapping[Scale, tuple[str, int | None]] = {
    "smoke": ("pixels", 300),
    "reduced": ("mobilenetv2-imagenet", 1500),
    "paper": ("mobilenetv2-imagenet", None),
}


@quantity("distances")
def distances(asked: Asked) -> Values:
    """Mean over the sources of the Frechet distance of each to all of them together."""
    name, most = MEASURED[asked.protocol.scale]
    encoder = embedder(name, asked.root)
    marks = [f"features of {encoder.name} in place of Inception v3's: distances of another scale"]
    features = {}
    for domain, arrays in sources(asked).items():
        count = len(arrays.labels)
        chosen = _drawn(domain, count, most)
        images = arrays.images[chosen]
        features[domain] = encode(images, encoder, f"embedding {domain}").astype(np.float64)
        if len(chosen) < count:
            marks.append(f"{domain}: {len(chosen):,} of {count:,} images, drawn at random")
        marks += arrays.deviations
    together = np.concatenate(list(features.values()))
    found = {domain: frechet(own, together) for domain, own in features.items()}
    more = {"standin": True, "marks": marks}  # other features: no number of the paper's
    yield row(asked), "FID", float(np.mean(list(found.values()))), more
    for domain, value in found.items():
        yield f"{row(asked)} / {domain}", "FID", value, {**more, "alternative": True}


def _drawn(domain: str, n: int, most: int | None) -> npt.NDArray[np.int64]:
    """Indices of the images that are measured."""
    if most is None or n <= most:
        return np.arange(n)
    order = numpy_stream(sum(domain.encode()), "figure").permutation(n)
    return np.sort(order[:most])


def frechet(first: Array, second: Array) -> float:
    """The Frechet distance of two sets of features (n, d) and (m, d), each read as a normal
    distribution: |mean difference|^2 + tr(S + T - 2 (S T)^(1/2)). Heusel et al. 2017.

    The root's trace is that of the symmetric (S^(1/2) T S^(1/2))^(1/2), so that a singular S (fewer
    images than features) does no harm.
    """
    difference = first.mean(axis=0) - second.mean(axis=0)
    s, t = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (first, second))
    values, vectors = linalg.eigh(s)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    crossed = linalg.eigvalsh(root @ t @ root).clip(min=0)
    return float(difference @ difference + np.trace(s) + np.trace(t) - 2 * np.sqrt(crossed).sum())
