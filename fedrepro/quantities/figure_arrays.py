"""Arrays behind the figures for which nothing is trained: computed once and kept beside the runs,
so that a figure can be drawn again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import numpy_stream, torch_stream
from fedrepro.data.embeddings import embedder, enlarged
from fedrepro.data.federation import Federation, Samples
from fedrepro.extras.inversion import LEARNING_RATE, invert, misses, start, to_uint8
from fedrepro.methods.mpft import MPFT
from fedrepro.methods.prototypes import class_means, plain_mean
from fedrepro.papers import Experiment
from fedrepro.records import federation_of
from fedrepro.records.checkpoint import FileCheckpoint
from fedrepro.records.environment import environment
from fedrepro.records.store import compact

Arrays = dict[str, npt.NDArray[Any]]
FOLDER = "figures"  # in the folder of runs
VERSION = 1  # raised whenever the arrays of the same data change
CLASSES, IMAGES = 5, 40  # shown in the plane: the first classes, images of each at each client
RATE = 0.3  # of a class's images, its k-means centres: the higher one of MPFT's Table 1


@dataclass(frozen=True)
class Figure:
    """Arrays by name, and what they are of: names, settings, environment."""

    arrays: Arrays
    facts: dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What the arrays are computed from."""

    experiment: Experiment
    protocol: Protocol
    seed: int
    root: Path | None

    @property
    def federation(self) -> Federation:
        return federation_of(self.protocol.data, self.root)

    @property
    def steps(self) -> int | None:
        """Gradient steps of the attack; None where there is none."""
        if self.experiment.kind != "inversion":
            return None
        if self.protocol.scale not in self.experiment.steps:
            raise FedReproError(
                f"{self.experiment.id} has no steps at scale {self.protocol.scale}; add them"
            )
        return self.experiment.steps[self.protocol.scale]

    def settings(self) -> dict[str, Any]:
        """Everything that may change the arrays."""
        return {
            "kind": self.experiment.kind,
            "version": VERSION,
            "data": self.protocol.data.model_dump(mode="json"),
            "hashes": dict(sorted(self.federation.hashes.items())),
            "seed": self.seed,
            **({} if self.steps is None else {"steps": self.steps, "lr": LEARNING_RATE}),
        }


def obtain(
    experiment: Experiment, protocol: Protocol, seed: int, runs: Path, root: Path | None = None
) -> Figure:
    """The arrays of an experiment of kind ``prototypes`` or ``inversion``, found or computed now.

    Raises:
        FedReproError: another kind, a protocol without an encoder, missing or broken files.
    """
    if experiment.kind not in _KINDS:
        raise FedReproError(f"{experiment.id} keeps no arrays; choose a figure that trains nothing")
    if protocol.data.encoder is None:
        raise FedReproError(f"{experiment.id} works on embeddings; set data.encoder")
    task = Task(experiment, protocol, seed, root)
    settings = task.settings()
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    path = runs / FOLDER / f"{experiment.id}-{digest}.safetensors"
    found = _read(path)
    if found is None:
        begun = FileCheckpoint(path.with_suffix(""))  # a folder beside the file while it is made
        arrays, names = _KINDS[experiment.kind](task, begun)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # as the encoder's
        facts = {**names, "settings": settings, "environment": environment(device)}
        note = {"fedrepro": json.dumps(facts)}
        files.write(path, lambda file: save_file(arrays, file, metadata=note))
        shutil.rmtree(begun.path.parent, ignore_errors=True)
        found = Figure(arrays, facts)
    return found


def _read(path: Path) -> Figure | None:
    """None where it is absent or cut, which means: compute again."""
    try:
        with safe_open(str(path), framework="np") as file:
            facts = json.loads(file.metadata()["fedrepro"])
            return Figure({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


Made = tuple[Arrays, dict[str, Any]]


def _plane(task: Task, _: FileCheckpoint) -> Made:
    """Embeddings, every client's class means, and the means of those over clients.

    features (m, <=50), as records keep them; labels, domain and role (m,), indices into the facts
    ``classes``, ``domains`` (the clients, and last all of them) and ``roles``. distances
    (clients, 2): mean Euclidean distance of a client's embeddings from their class's mean there,
    and from the mean over clients.
    """
    federation = task.federation
    clients, k = federation.clients, min(CLASSES, len(federation.classes))
    means = [class_means(c.train.images, c.train.labels, len(federation.classes)) for c in clients]
    stack = torch.stack([mean[:k] for mean, _ in means])
    counts = torch.stack([count[:k] for _, count in means])
    middle, present = plain_mean(stack, counts)
    parts, distances = [], []
    for index, client in enumerate(clients):
        kept = client.train.labels < k
        z, labels = client.train.images[kept], client.train.labels[kept]
        distances.append(
            [float((z - of[labels]).norm(dim=1).mean()) for of in (stack[index], middle)]
        )
        shown = _drawn(labels, k, task.seed, index)
        parts.append((z[shown], labels[shown], index, 0))
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


@dataclass(frozen=True)
class Target:
    """A prototype (d,) to attack, an image behind it and another of the same class and client."""

    name: str
    prototype: Tensor
    behind: Tensor
    another: Tensor


def _attacked(task: Task, checkpoint: FileCheckpoint) -> Made:
    """The attack on what clients of MPFT send.

    prototypes (m, d); start, found, behind and another, uint8 (m, 3, H, H) of the size the encoder
    works on; mse (m, 2), of the embedding before and after. The facts name the ``rows``.
    """
    data, targets = task.protocol.data, _targets(task)
    encoder, steps = embedder(data.encoder or "", task.root), task.steps or 0
    size = encoder.side or data.size
    prototypes = torch.stack([target.prototype for target in targets])
    first = start(len(targets), size, torch_stream(task.seed, "figure"))
    stream = torch_stream(task.seed, "figure")
    found = invert(encoder, prototypes, size, steps, LEARNING_RATE, stream, checkpoint)
    ends = [misses(encoder, images, prototypes).double().numpy() for images in (first, found)]
    arrays = {
        "prototypes": prototypes.numpy(),
        "start": to_uint8(first),
        "found": to_uint8(found),
        "behind": _as_seen([target.behind for target in targets], size),
        "another": _as_seen([target.another for target in targets], size),
        "mse": np.stack(ends, axis=1),
    }
    return arrays, {"rows": [target.name for target in targets]}


def _as_seen(images: list[Tensor], size: int) -> npt.NDArray[np.uint8]:
    """Images uint8 (3, H, H) at the size the encoder works on."""
    return to_uint8(enlarged(torch.stack(images).float() / 255, size))


def _targets(task: Task) -> list[Target]:
    """The embedding of one image of every client, as the paper attacks; and of the first client's
    class of it a k-means centre and the mean, each with the image nearest to it."""
    pictures = federation_of(
        task.protocol.data.model_copy(update={"encoder": None}), task.root
    ).clients
    targets = []
    for index, client in enumerate(task.federation.clients):
        images, labels = pictures[index].train.images, client.train.labels
        generator = numpy_stream(task.seed, "figure", client=index)
        one, other = _pair(client.train, generator, client.name)
        z = client.train.images
        targets.append(Target(f"{client.name}, one image", z[one], images[one], images[other]))
        if index:
            continue
        own = (labels == labels[one]).nonzero()[:, 0]
        stream = torch_stream(task.seed, "figure", client=index)
        centres = MPFT(prototypes="cluster", rate=RATE)
        for method, name in ((centres, "a k-means centre"), (MPFT(), "the class mean")):
            sent = method.chosen(z[own], stream)[0]
            near = own[(z[own] - sent).norm(dim=1).argsort(stable=True)]
            pair = images[near[0]], images[near[int(generator.integers(1, len(near)))]]
            targets.append(Target(f"{client.name}, {name}", sent, *pair))
    return targets


def _pair(samples: Samples, generator: np.random.Generator, name: str) -> tuple[int, int]:
    """An image drawn at random, and another of its class; FedReproError where none has a fellow."""
    labels = samples.labels.numpy()
    for one in generator.permutation(len(labels)):
        fellows = np.flatnonzero(labels == labels[one])
        if len(fellows) > 1:
            return int(one), int(generator.choice(fellows[fellows != one]))
    raise FedReproError(f"{name} has no two images of one class to compare; give it more")


_KINDS: dict[str, Callable[[Task, FileCheckpoint], Made]] = {
    "prototypes": _plane,
    "inversion": _attacked,
}
