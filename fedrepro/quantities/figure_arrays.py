"""Arrays of figures for which nothing is trained: computed once and stored with the runs, so that a
figure can be drawn again. Among them how well prototypes represent embeddings."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import numpy_stream
from fedrepro.methods.prototypes import class_means, plain_mean
from fedrepro.quantities.base import Asked, Figure, Values, quantity
from fedrepro.records.checkpoint import FileCheckpoint
from fedrepro.records.environment import environment
from fedrepro.records.record import compact, short_hash, tsne

Made = tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]
FOLDER = "figures"  # in the folder of runs
VERSION = 1  # raised whenever the arrays of the same data change
CLASSES, IMAGES = 5, 40  # shown by t-SNE: the first classes, images of each at each client


def kept(asked: Asked, make: Callable[[FileCheckpoint], Made], **more: Any) -> Figure:
    """The arrays of an experiment on embeddings, read from the store or computed now.
    make: returns arrays by name and their facts, and may save unfinished work in the checkpoint.
    more: settings that may change the arrays, besides the data and the seed. FedReproError: a
    protocol without an encoder, missing or broken files."""
    experiment, data = asked.experiment, asked.protocol.data
    if data.encoder is None:
        raise FedReproError(f"{experiment.id} works on embeddings; set data.encoder")
    settings = {
        "kind": experiment.kind,
        "version": VERSION,
        "data": data.model_dump(mode="json"),
        "hashes": dict(sorted(asked.federation.hashes.items())),
        "seed": asked.seed,
        **more,
    }
    path = asked.runs / FOLDER / f"{experiment.id}-{short_hash(settings)}.safetensors"
    try:
        with safe_open(str(path), framework="np") as file:
            facts = json.loads(file.metadata()["fedrepro"])
            return Figure({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118
    except (OSError, SafetensorError):  # absent or incomplete: computed again
        pass
    begun = FileCheckpoint(path.with_suffix(""))  # a folder beside the file while it is made
    arrays, names = make(begun)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # as the encoder's
    facts = {**names, "settings": settings, "environment": environment(device)}
    note = {"fedrepro": json.dumps(facts)}
    files.write(path, lambda file: save_file(arrays, file, metadata=note))
    shutil.rmtree(begun.path.parent, ignore_errors=True)
    return Figure(arrays, facts)


def encoder_caveats(asked: Asked) -> list[str]:
    """What the data depart in, the encoder's among it."""
    clauses = asked.federation.deviations.values()
    return list(dict.fromkeys(clause for some in clauses for clause in some))


def likeness(found: npt.NDArray[np.uint8], truth: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """PSNR in dB (infinite for equal images) and SSIM of two images (3, H, W), scikit-image's."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    with np.errstate(divide="ignore"):
        ratio = peak_signal_noise_ratio(truth, found, data_range=255)
    alike = structural_similarity(truth, found, channel_axis=0, data_range=255)
    return float(ratio), float(alike)


def plane(asked: Asked) -> Figure:
    """Embeddings, every client's class means, and the means of those over clients. features (m,
    <=50), as records keep them; labels, domain and role (m,), indices into the facts ``classes``,
    ``domains`` (the clients, and last all of them) and ``roles``. distances (clients, 2): mean
    Euclidean distance of a client's embeddings from its mean of their class, and from all's."""
    return kept(asked, lambda _: _made(asked))


@quantity("prototypes", figure=plane)
def prototypes(asked: Asked) -> Values:
    """Distances of a client's embeddings from their class's prototype and its mean."""
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
