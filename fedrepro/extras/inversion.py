"""The feature space hijacking attack, which searches an image whose embedding is a given prototype,
and its results on MPFT's messages (its App. G)."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import counted
from fedrepro.base.rng import numpy_stream, torch_stream
from fedrepro.data.embeddings import Embedder, embedder, enlarged
from fedrepro.data.federation import Samples
from fedrepro.federated.clients import Checkpoint
from fedrepro.methods.mpft import MPFT
from fedrepro.quantities.base import Asked, Figure, Values, quantity
from fedrepro.quantities.counted import Made, encoder_caveats, kept, likeness
from fedrepro.records import federation_of

LEARNING_RATE = 0.01  # of Adam, on the [0, 1] scale of pixels; the paper gives neither
NOISE = 0.05  # around grey: pixels the encoder ignores do not change, and would affect the PSNR
RATE = 0.3  # k-means centres as a share of a class's images: the higher one of MPFT's Table 1


def start(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Start images (count, 3, size, size) of the search: grey with a little noise."""
    return 0.5 + NOISE * (2 * torch.rand(count, 3, size, size, generator=generator) - 1)


def misses(encoder: Embedder, images: Tensor, prototypes: Tensor) -> Tensor:
    """Mean squared error (m,) between each image's embedding and its prototype."""
    return (encoder.images(images) - prototypes).square().mean(dim=1)


def invert(
    encoder: Embedder,
    prototypes: Tensor,
    size: int,
    steps: int,
    lr: float,
    generator: torch.Generator,
    checkpoint: Checkpoint | None = None,
) -> Tensor:
    """Images (m, 3, size, size) in [0, 1] whose embeddings are near prototypes (m, d).

    Minimises the mean squared error with Adam from `start`, limited to [0, 1] after every step,
    each image separately. Zhang et al. 2025 (MPFT), App. G, does not give start, optimiser and
    rate. Equal arguments give equal bits on one CPU, also from a checkpoint.
    """
    images = start(len(prototypes), size, generator).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=lr)
    done = 0
    if checkpoint is not None and (held := checkpoint.load()) is not None:
        done = held[1]["steps"]
        moments = {name: value.clone() for name, value in held[0].items()}
        with torch.no_grad():
            images.copy_(moments.pop("images"))
        optimizer.state[images].update(moments)
    for step in counted("searching images", steps, done):
        error = misses(encoder, images, prototypes).sum()
        (images.grad,) = torch.autograd.grad(error, [images])
        optimizer.step()
        with torch.no_grad():
            images.clamp_(0, 1)
        if checkpoint is not None and checkpoint.due():
            tensors = {"images": images, **optimizer.state[images]}
            checkpoint.save(tensors, {"steps": step + 1})
    return images.detach()


def to_uint8(images: Tensor) -> npt.NDArray[np.uint8]:
    return (255 * images).round().to(torch.uint8).numpy()


# Of an experiment.


def attack(asked: Asked) -> Figure:
    """The attack on the messages of MPFT's clients.

    prototypes (m, d); start, found, behind and another, uint8 (m, 3, H, H) of the size the encoder
    works on; mse (m, 2), of the embedding before and after. The facts name the ``rows``.
    """
    steps = asked.experiment.steps[asked.protocol.scale]
    return kept(asked, lambda begun: _made(asked, steps, begun), steps=steps, lr=LEARNING_RATE)


@quantity("inversion", figure=attack)
def inversion(asked: Asked) -> Values:
    """Squared error of the embedding, and similarity to the image behind a prototype: of the start
    image, of the found image, and of another image of the class."""
    figure = attack(asked)
    arrays, settings = figure.arrays, figure.facts["settings"]
    searched = f"{settings['steps']:,} steps of Adam at rate {settings['lr']:g}"
    more = {"caveats": [searched, *encoder_caveats(asked)]}
    for index, name in enumerate(figure.facts["rows"]):
        for when, value in zip(("before", "after"), arrays["mse"][index], strict=True):
            yield name, f"MSE {when}", float(value), more
        for images, what in (("start", "before"), ("found", "after"), ("another", "of another")):
            ratio, alike = likeness(arrays[images][index], arrays["behind"][index])
            yield name, f"PSNR {what}", ratio if np.isfinite(ratio) else None, more
            yield name, f"SSIM {what}", alike, more


def _made(asked: Asked, steps: int, checkpoint: Checkpoint) -> Made:
    data = asked.protocol.data
    names, targets, behind, another = zip(*_targets(asked), strict=True)
    encoder = embedder(data.encoder or "", asked.root)
    size = encoder.side or data.size
    prototypes = torch.stack(targets)
    first = start(len(targets), size, torch_stream(asked.seed, "figure"))
    stream = torch_stream(asked.seed, "figure")
    found = invert(encoder, prototypes, size, steps, LEARNING_RATE, stream, checkpoint)
    ends = [misses(encoder, images, prototypes).double().numpy() for images in (first, found)]
    arrays = {
        "prototypes": prototypes.numpy(),
        "start": to_uint8(first),
        "found": to_uint8(found),
        "behind": _as_seen(behind, size),
        "another": _as_seen(another, size),
        "mse": np.stack(ends, axis=1),
    }
    return arrays, {"rows": list(names)}


def _as_seen(images: tuple[Tensor, ...], size: int) -> npt.NDArray[np.uint8]:
    return to_uint8(enlarged(torch.stack(images).float() / 255, size))


def _targets(asked: Asked) -> list[tuple[str, Tensor, Tensor, Tensor]]:
    """Names, prototypes (d,) to attack, an image behind each and another of the same class and
    client. The embedding of one image of every client, as in the paper; and, for the first client's
    class of it, a k-means centre and the mean, each with the nearest image."""
    plain = asked.protocol.data.model_copy(update={"encoder": None})
    pictures = federation_of(plain, asked.root).clients
    targets = []
    for index, client in enumerate(asked.federation.clients):
        images, labels = pictures[index].train.images, client.train.labels
        generator = numpy_stream(asked.seed, "figure", client=index)
        one, other = _pair(client.train, generator, client.name)
        z = client.train.images
        targets.append((f"{client.name}, one image", z[one], images[one], images[other]))
        if index:
            continue
        own = (labels == labels[one]).nonzero()[:, 0]
        stream = torch_stream(asked.seed, "figure", client=index)
        centres = MPFT(prototypes="cluster", rate=RATE)
        for method, name in ((centres, "a k-means centre"), (MPFT(), "the class mean")):
            sent = method.chosen(z[own], stream)[0]
            near = own[(z[own] - sent).norm(dim=1).argsort(stable=True)]
            pair = images[near[0]], images[near[int(generator.integers(1, len(near)))]]
            targets.append((f"{client.name}, {name}", sent, *pair))
    return targets


def _pair(samples: Samples, generator: np.random.Generator, name: str) -> tuple[int, int]:
    """A random image, and another of its class. FedReproError: no class has two images."""
    labels = samples.labels.numpy()
    for one in generator.permutation(len(labels)):
        fellows = np.flatnonzero(labels == labels[one])
        if len(fellows) > 1:
            return int(one), int(generator.choice(fellows[fellows != one]))
    raise FedReproError(f"{name} has no two images of one class to compare; add images")
