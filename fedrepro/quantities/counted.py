"""Numbers for which nothing is trained: the data, distances between the sources, sizes of networks
and of messages; and arrays of figures, computed once and stored with the runs."""

import json
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from safetensors import safe_open
from scipy import linalg

from fedrepro.base import files
from fedrepro.base.errors import need
from fedrepro.base.protocol import Scale
from fedrepro.base.rng import numpy_stream
from fedrepro.data.domains import DomainArrays, load_dataset, write_signed
from fedrepro.data.embeddings import embedder, encode
from fedrepro.data.splits import make_split
from fedrepro.federated.rounds import Training
from fedrepro.methods import create
from fedrepro.methods.prototypes import class_means, plain_mean
from fedrepro.methods.server import Message, Network, count_bytes, payload_bytes
from fedrepro.models import discriminator, parameter_count
from fedrepro.quantities.base import Asked, Figure, Values, quantity
from fedrepro.records.record import compact, environment, short_hash, tsne
from fedrepro.records.store import FileCheckpoint

Array = npt.NDArray[np.float64]
# Encoder, and most images of a source, by scale.
IMAGENET = "mobilenetv2-imagenet"
MEASURED: Mapping[Scale, tuple[str, int | None]]
MEASURED = {"smoke": ("pixels", 300), "reduced": (IMAGENET, 1500), "paper": (IMAGENET, None)}
MILLION = 1e6
BYTES, LABEL_BYTES = 4, 8  # of a float32, of a label
Made = tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]
FOLDER = "figures"  # in the folder of runs
VERSION = 1  # raised whenever the arrays of the same data change
CLASSES, IMAGES = 5, 40  # shown by t-SNE: the first classes, images of each at each client


def sources(asked: Asked) -> dict[str, DomainArrays]:
    """The complete domains of the data set."""
    return load_dataset(asked.dataset, asked.protocol.data.size, asked.root)


def row(asked: Asked, domain: str | None = None) -> str:
    """The printed row of the data set, or of one of its domains, or our own name."""
    start = asked.experiment.rows.get(asked.dataset, asked.dataset)
    if domain is None:
        return start
    names = (f"{start} / {name}" for name in asked.paper.columns.get(domain, ()))
    return next((name for name in names if name in asked.table.rows), f"{start} / {domain}")


@quantity("counts", counted=True)
def images(asked: Asked) -> Values:
    """Training and test images of every source, before they are given to clients."""
    data = asked.protocol.data
    for name, arrays in sources(asked).items():
        split = make_split(arrays, data.split, data.split_seed, data.test_share)
        more = {"standin": arrays.standin, "subset": arrays.subset, "caveats": arrays.deviations}
        for column, part in (("train", split.train), ("test", split.test)):
            yield row(asked, name), column, float(len(part)), more


@quantity("clients", counted=True, given=True)
def clients(asked: Asked) -> Values:
    """Clients of each domain, in the one printed row."""
    federation = asked.federation
    owners = [client.domain for client in federation.clients]
    (printed,) = asked.table.rows
    for domain in federation.domains:
        caveats = list(federation.deviations.get(domain, ()))
        more = {"standin": domain in federation.standins, "caveats": caveats}
        yield printed, domain, float(owners.count(domain)), more


@quantity("shares")
def shares(asked: Asked) -> Values:
    """Percent of each client's training images in each class."""
    counts = asked.federation.counts()
    for client, rows in counts[counts.split == "train"].groupby("client", sort=False):
        for name, number in zip(rows["class"], rows.images, strict=True):
            yield str(client), str(name), 100 * float(number) / float(rows.images.sum())


@quantity("distances")
def distances(asked: Asked) -> Values:
    """Mean over the sources of the Frechet distance between each source and all together."""
    name, most = MEASURED[asked.protocol.scale]
    encoder = embedder(name, asked.root)
    caveats = [f"features of {encoder.name} in place of Inception v3's: distances of another scale"]
    features = {}
    for domain, arrays in sources(asked).items():
        images = arrays.images
        if most is not None and len(images) > most:
            order = numpy_stream(sum(domain.encode()), "figure").permutation(len(images))
            caveats.append(f"{domain}: {most:,} of {len(images):,} images, drawn at random")
            images = images[np.sort(order[:most])]
        features[domain] = encode(images, encoder, f"embedding {domain}").astype(np.float64)
        caveats += arrays.deviations
    together = np.concatenate(list(features.values()))
    found = {domain: frechet(own, together) for domain, own in features.items()}
    more = {"standin": True, "caveats": caveats}  # other features: no number of the paper's
    yield row(asked), "FID", float(np.mean(list(found.values()))), more
    for domain, value in found.items():
        yield f"{row(asked)} / {domain}", "FID", value, {**more, "alternative": True}


def frechet(first: Array, second: Array) -> float:
    """The Frechet distance of two sets of features (n, d) and (m, d), each taken as a normal
    distribution: |mean difference|^2 + tr(S + T - 2 (S T)^(1/2)). Heusel et al. 2017. The root's
    trace is that of (S^(1/2) T S^(1/2))^(1/2), so S may be singular: fewer images than features."""
    difference = first.mean(axis=0) - second.mean(axis=0)
    s, t = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (first, second))
    values, vectors = linalg.eigh(s)
    root = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    crossed = linalg.eigvalsh(root @ t @ root).clip(min=0)
    return float(difference @ difference + np.trace(s) + np.trace(t) - 2 * np.sqrt(crossed).sum())


@quantity("sizes", counted=True)
def sizes(asked: Asked) -> Values:
    """FedPall's networks and messages (its Section 4), rounded to the printed digits: parameters in
    millions, as the paper counts them, and shares in percent. The last two are all messages of a
    round, down with prototypes and BatchNorm, up with features, labels, prototypes and counts."""
    federation = asked.federation
    images = float(np.mean([len(client.train) for client in federation.clients]))
    training = Training(create("FedPall"), asked.protocol, federation, 0)
    server, network = training.server, training.engine.module
    encoder = parameter_count(network.encoder) + parameter_count(network.projection)
    classifier = parameter_count(server.modules["classifier"])
    amplifier = parameter_count(server.modules["amplifier"])
    whole = sum(tensor.bytes for tensor in training.layout.values() if not tensor.is_counter)
    message: Message = dict(training.method.download(server, 0))
    message["model"] = {name: server.model[name] for name in training.broadcast}
    down = sum(count_bytes([message]).values())
    up = images * (BYTES * network.feature_size + LABEL_BYTES)
    up += server.classes * BYTES * (network.feature_size + 1)
    share = (classifier + amplifier) / (encoder + classifier)
    of_images = asked.experiment.rows.get(asked.dataset, f"images per client, {asked.dataset}")
    upload = "bytes up in a round, relative to FedAvg (percent)"
    found = {
        "feature extractor parameters (millions)": encoder / MILLION,
        "classifier parameters (millions)": classifier / MILLION,
        "amplifier parameters (millions)": amplifier / MILLION,
        "classifier share (percent, as printed)": 100 * classifier / encoder,
        "amplifier share (percent, as printed)": 100 * amplifier / encoder,
        "embedding dimension": float(network.feature_size),
        of_images: images,
        "FedAvg parameters uploaded (millions)": (encoder + classifier) / MILLION,
        "download relative to FedAvg (percent)": 100 * share,
        "bytes down in a round, relative to FedAvg (percent)": 100 * down / whole,
        upload: 100 * up / whole,
    }
    lesser = {"standin": bool(federation.standins), "subset": bool(federation.subsets)}
    for row, value in found.items():
        more = {"alternative": row not in asked.table.rows}
        more |= lesser if row in (of_images, upload) else {}
        yield row, "value", round(value, asked.digits(row, "value")), more


@quantity("example", counted=True)
def example(asked: Asked) -> Values:
    """ADCOL's example (Sec. 4.2): 60,000 images of 784 values at 100 clients, an MLP with two
    hidden layers of 200 units, representations of 128 values, a discriminator with one hidden
    layer of 128. The printed 68,628 bytes are for 5 outputs; 100 clients need 100."""
    images, clients, d = 60_000, 100, 128
    network = discriminator(784, 10, (200, 200))
    yield "MLP parameters", "value", float(parameter_count(network))
    yield "FedAvg MB per round", "value", 2 * clients * payload_bytes(Network(network)) / MILLION
    for outputs, end in ((clients, ""), (5, ", 5 outputs")):
        size = payload_bytes(Network(discriminator(d, outputs, (d,))))
        sent = (BYTES * images * d + clients * size) / MILLION
        more = {"alternative": bool(end)}
        yield f"discriminator bytes{end}", "value", float(size), more
        yield f"ADCOL MB per round{end}", "value", sent, more


# Arrays of figures.


def kept(asked: Asked, make: Callable[[FileCheckpoint], Made], **more: Any) -> Figure:
    """The arrays of an experiment on embeddings, read from the store or computed now.
    make: returns arrays by name and their facts, and may save unfinished work in the checkpoint.
    more: settings that may change the arrays. FedReproError: a protocol without an encoder."""
    experiment, data = asked.experiment, asked.protocol.data
    need(data.encoder is not None, f"{experiment.id} works on embeddings; set data.encoder")
    settings = {
        "kind": experiment.kind,
        "version": VERSION,
        "data": data.model_dump(mode="json"),
        "hashes": dict(sorted(asked.federation.hashes.items())),
        "seed": asked.seed,
        **more,
    }
    path = asked.runs / FOLDER / f"{experiment.id}-{short_hash(settings)}.safetensors"
    if files.is_whole(path):  # else absent or changed: computed again
        with safe_open(str(path), framework="np") as file:
            facts = json.loads(file.metadata()["fedrepro"])
            return Figure({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118
    begun = FileCheckpoint(path.with_suffix(""))  # a folder beside the file while it is made
    arrays, names = make(begun)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # as the encoder's
    facts = {**names, "settings": settings, "environment": environment(device)}
    write_signed(path, arrays, files.RUN_AGAIN, fedrepro=json.dumps(facts))
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
    """Embeddings, every client's class means, and the means of those. features (m, <=50), as
    records keep them; labels, domain and role (m,), indices into the facts ``classes``, ``domains``
    (the clients, and last all of them) and ``roles``. distances (clients, 2): mean Euclidean
    distance of a client's embeddings from its mean of their class, and from all's."""
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
    stack, counts = (torch.stack(one)[:, :k] for one in zip(*means, strict=True))
    middle, present = plain_mean(stack, counts)
    parts, distances = [], []
    for index, client in enumerate(clients):
        shown = client.train.labels < k
        z, labels = client.train.images[shown], client.train.labels[shown]
        distances.append(
            [float((z - of[labels]).norm(dim=1).mean()) for of in (stack[index], middle)]
        )
        generator = numpy_stream(asked.seed, "figure", client=index)
        every = [np.flatnonzero(labels.numpy() == label) for label in range(k)]
        drawn = np.concatenate([generator.permutation(images)[:IMAGES] for images in every])
        own = counts[index].nonzero()[:, 0]
        parts += [(z[drawn], labels[drawn], index, 0), (stack[index][own], own, index, 1)]
    seen = present.nonzero()[:, 0]
    parts.append((middle[seen], seen, len(clients), 2))
    features, classes, of, roles = zip(*parts, strict=True)
    sizes = [len(rows) for rows in features]
    arrays = {
        "features": compact(torch.cat(features).numpy()),
        "labels": torch.cat(classes).numpy(),
        "domain": np.repeat(of, sizes),
        "role": np.repeat(roles, sizes),
        "distances": np.array(distances),
    }
    return arrays, {
        "domains": [*(client.name for client in clients), "all clients"],
        "classes": list(federation.classes[:k]),
        "roles": ["image", "prototype", "mean of prototypes"],
    }


def with_prototypes(figure: Figure, seed: int = 0) -> pd.DataFrame:
    """t-SNE of `plane`: columns x, y, domain, cls, role."""
    names = figure.facts
    points = tsne(figure.arrays, names["domains"], names["classes"], seed)
    return points.assign(role=[names["roles"][i] for i in figure.arrays["role"]])
