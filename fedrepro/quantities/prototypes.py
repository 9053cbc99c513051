"""How well prototypes represent embeddings: distances, and t-SNE points of both."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedrepro.base.rng import numpy_stream
from fedrepro.methods.prototypes import class_means, plain_mean
from fedrepro.quantities.base import Asked, Figure, Values, quantity
from fedrepro.quantities.figure_arrays import Made, encoder_caveats, kept
from fedrepro.records.record import compact, tsne

CLASSES, IMAGES = 5, 40  # shown by t-SNE: the first classes, images of each at each client


def plane(asked: Asked) -> Figure:
    """Embeddings, every client's class means, and the means of those over clients.

    features (m, <=50), as records keep them; labels, domain and role (m,), indices into the facts
    ``classes``, ``domains`` (the clients, and last all of them) and ``roles``. distances
    (clients, 2): mean Euclidean distance of a client's embeddings from the client's mean of their
    class, and from the mean over clients.
    """
    return kept(asked, lambda _: _made(asked))


@quantity("prototypes", figure=plane)
def prototypes(asked: Asked) -> Values:
    """Distances of a client's embeddings from their class's prototype, and from its mean over
    clients."""
    figure, more = plane(asked), {"caveats": encoder_caveats(asked)}
    columns = ("to own prototype", "to mean of prototypes")
    for client, values in zip(figure.facts["domains"], figure.arrays["distances"], strict=False):
        for column, value in zip(columns, values, strict=True):
            yield client, column, float(value), more


def _made(asked: Asked) -> Made:
    federation = asked.federation
    clients, k = federation.clients, min(CLASSES, len(federation.classes))
    means = [class_means(c.train.images, c.train.labels, len(federation.classes)) for c in clients]
    stack = torch.stack([mean[:k] for mean, _ in means])
    counts = torch.stack([count[:k] for _, count in means])
    middle, present = plain_mean(stack, counts)
    parts, distances = [], []
    for index, client in enumerate(clients):
        shown = client.train.labels < k
        z, labels = client.train.images[shown], client.train.labels[shown]
        distances.append(
            [float((z - of[labels]).norm(dim=1).mean()) for of in (stack[index], middle)]
        )
        drawn = _drawn(labels, k, asked.seed, index)
        parts.append((z[drawn], labels[drawn], index, 0))
        own = counts[index].nonzero()[:, 0]
        parts.append((stack[index][own], own, index, 1))
    every = present.nonzero()[:, 0]
    parts.append((middle[every], every, len(clients), 2))
    arrays = {
        "features": compact(torch.cat([part[0] for part in parts]).numpy()),
        "labels": torch.cat([part[1] for part in parts]).numpy(),
        "domain": np.repeat([part[2] for part in parts], [len(part[0]) for part in parts]),
        "role": np.repeat([part[3] for part in parts], [len(part[0]) for part in parts]),
        "distances": np.array(distances),
    }
    return arrays, {
        "domains": [*(client.name for client in clients), "all clients"],
        "classes": list(federation.classes[:k]),
        "roles": ["image", "prototype", "mean of prototypes"],
    }


def _drawn(labels: Tensor, k: int, seed: int, client: int) -> Tensor:
    """Indices of at most `IMAGES` images of each of k classes."""
    generator = numpy_stream(seed, "figure", client=client)
    own = labels.numpy()
    drawn = [generator.permutation(np.flatnonzero(own == label))[:IMAGES] for label in range(k)]
    return torch.from_numpy(np.concatenate(drawn))


def with_prototypes(figure: Figure, seed: int = 0) -> pd.DataFrame:
    """t-SNE of `plane`: columns x, y, domain, cls, role."""
    names = figure.facts
    points = tsne(figure.arrays, names["domains"], names["classes"], seed)
    return points.assign(role=[names["roles"][i] for i in figure.arrays["role"]])
