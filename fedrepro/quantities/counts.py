"""The data: images, clients, the classes they hold, and how far the sources lie apart (FID)."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from scipy import linalg

from fedrepro.base.protocol import Scale
from fedrepro.base.rng import numpy_stream
from fedrepro.data.domains import DomainArrays, load_dataset
from fedrepro.data.embeddings import embedder, encode
from fedrepro.data.splits import make_split
from fedrepro.quantities.base import Asked, Values, quantity


def sources(asked: Asked) -> dict[str, DomainArrays]:
    """The domains of the data set, whole."""
    return load_dataset(asked.dataset, asked.protocol.data.size, asked.root)


def row(asked: Asked, domain: str | None = None) -> str:
    """The printed row of the data set, or of one of its domains; our own names where the paper has
    none."""
    start = asked.experiment.rows.get(asked.dataset, asked.dataset)
    if domain is None:
        return start
    names = (f"{start} / {name}" for name in asked.paper.columns.get(domain, ()))
    return next((name for name in names if name in asked.table.methods), f"{start} / {domain}")


@quantity("counts", counted=True)
def images(asked: Asked) -> Values:
    """Training and test images of every source, before clients get theirs."""
    data = asked.protocol.data
    for name, arrays in sources(asked).items():
        split = make_split(arrays, data.split, data.split_seed, data.test_share)
        more = {"standin": arrays.standin, "caveats": list(arrays.deviations)}
        for column, part in (("train", split.train), ("test", split.test)):
            yield row(asked, name), column, float(len(part)), more


@quantity("clients", counted=True, given=True)
def clients(asked: Asked) -> Values:
    """Clients of each domain, in the one printed row."""
    federation = asked.federation
    owners = [client.domain for client in federation.clients]
    for domain in federation.domains:
        caveats = list(federation.deviations.get(domain, ()))
        more = {"standin": domain in federation.standins, "caveats": caveats}
        yield asked.table.methods[0], domain, float(owners.count(domain)), more


@quantity("shares")
def shares(asked: Asked) -> Values:
    """Percent of each client's training images that are of a class."""
    counts = asked.federation.counts()
    for client, rows in counts[counts.split == "train"].groupby("client", sort=False):
        for name, number in zip(rows["class"], rows.images, strict=True):
            yield str(client), str(name), 100 * float(number) / float(rows.images.sum())


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
    caveats = [f"features of {encoder.name} in place of Inception v3's: distances of another scale"]
    features = {}
    for domain, arrays in sources(asked).items():
        count = len(arrays.labels)
        chosen = _drawn(domain, count, most)
        images = arrays.images[chosen]
        features[domain] = encode(images, encoder, f"embedding {domain}").astype(np.float64)
        if len(chosen) < count:
            caveats.append(f"{domain}: {len(chosen):,} of {count:,} images, drawn at random")
        caveats += arrays.deviations
    together = np.concatenate(list(features.values()))
    found = {domain: frechet(own, together) for domain, own in features.items()}
    more = {"standin": True, "caveats": caveats}  # other features: no number of the paper's
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
