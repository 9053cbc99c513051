"""What uploads give away: their mutual information with the images, and an attack on prototypes.

A network T scores pairs. With joint pairs p and shuffled ones q, Donsker and Varadhan's
E_p[T] - log E_q[exp T] is a lower bound of the mutual information for every T (Belghazi et al.
2018, MINE). As in DEMINE (Lin et al. 2019) T is tested on other pairs than it was trained on, so
the bound also holds for few. The feature space hijacking attack (MPFT's App. G) searches an image
whose embedding is a given prototype.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedrepro.base.errors import FedReproError, need
from fedrepro.base.progress import counted
from fedrepro.base.rng import numpy_stream, seeded_modules, stream_seed, torch_stream
from fedrepro.data.embeddings import Embedder, embedder, enlarged
from fedrepro.data.federation import Samples
from fedrepro.data.transforms import epoch_batches
from fedrepro.federated.clients import Checkpoint
from fedrepro.federated.rounds import Training
from fedrepro.methods.mpft import MPFT
from fedrepro.quantities.base import Asked, Figure, Values, quantity
from fedrepro.quantities.counted import Made, encoder_caveats, kept, likeness
from fedrepro.records import Probe, federation_of

Array = npt.NDArray[Any]
PER_SAMPLE = ("features", "representations")  # kinds of payload with one row per image
COMPONENTS = 32  # principal components; more are noise with a few thousand pairs
FOLDS, LEAST = 4, 40  # pairs: ten per fold
HIDDEN, WIDTH, BATCH, EPOCHS, PATIENCE = 128, 32, 256, 150, 15


class Tower(nn.Module):
    """One hidden layer and a parallel linear map, for which few pairs are enough."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bent = nn.Sequential(nn.Linear(size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
        self.straight = nn.Linear(size, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bent(x) + self.straight(x)
        return out


class Critic(nn.Module):
    """T(x, y) = f(x) . g(y): scores (n, n) of all pairs of n x's and n y's."""

    def __init__(self, x_size: int, y_size: int) -> None:
        super().__init__()
        self.f, self.g = Tower(x_size), Tower(y_size)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores: Tensor = self.f(x) @ self.g(y).T / math.sqrt(WIDTH)
        return scores


def lower_bound(scores: Tensor) -> Tensor:
    """Donsker and Varadhan's bound in nats from scores (n, n): joint pairs on the diagonal, every
    other pair shuffled."""
    n = len(scores)
    apart = scores.masked_fill(torch.eye(n, dtype=torch.bool), -math.inf)
    return scores.diagonal().mean() - torch.logsumexp(apart.flatten(), 0) + math.log(n * (n - 1))


def mutual_information(x: Array, y: Array, seed: int = 0) -> float:
    """Lower bound in nats of the mutual information of x (n, d) and y (n, e), one row per pair.

    Both are first centred and, if wider, reduced to their 32 largest principal components. The mean
    over four folds, each tested with a critic trained without it; never below 0. FedReproError:
    fewer than 40 pairs, values that are not finite.
    """
    from sklearn.model_selection import KFold  # takes a second

    need(len(x) >= LEAST, f"{len(x)} pairs are too few; give {LEAST} or more")
    both = _compact(x, seed), _compact(y, seed)
    folds = KFold(FOLDS, shuffle=True, random_state=stream_seed(seed, "figure") % 2**32)
    found = [_one_fold(both, rest, judged, seed) for rest, judged in folds.split(both[0])]
    return max(0.0, float(np.mean(found)))


def _compact(values: Array, seed: int) -> Tensor:
    """Rows as float32 (n, <=32) of mean 0 and mean square 1."""
    plain = np.asarray(values, dtype=np.float32).reshape(len(values), -1)
    finite = np.isfinite(plain).all()
    need(finite, "a value is not finite: training diverged; lower the learning rate")
    count = min(COMPONENTS, len(plain) - 1)
    if plain.shape[1] > count:
        from sklearn.decomposition import PCA

        state = stream_seed(seed, "figure") % 2**32
        plain = PCA(count, svd_solver="randomized", random_state=state).fit_transform(plain)
    plain = plain - plain.mean(axis=0)
    return torch.from_numpy(plain / max(float(np.sqrt((plain**2).mean())), 1e-12))


def _one_fold(both: tuple[Tensor, Tensor], rest: Array, judged: Array, seed: int) -> float:
    """The bound on held-out pairs, for the critic that was best on a fifth of the others."""
    stop = max(2, round(0.2 * len(rest)))
    order = np.random.default_rng(stream_seed(seed, "figure")).permutation(rest)
    stopping, (x, y), tested = (
        [part[chosen] for part in both] for chosen in (order[:stop], order[stop:], judged)
    )
    generator = torch_stream(seed, "figure")
    with seeded_modules(seed):
        critic = Critic(x.shape[1], y.shape[1])
    adam = torch.optim.AdamW(critic.parameters(), 2e-3, weight_decay=0.1)
    best, bound, since = -math.inf, 0.0, 0
    for _ in range(EPOCHS):
        for index in epoch_batches(len(x), BATCH, generator):
            adam.zero_grad(set_to_none=True)
            (-lower_bound(critic(x[index], y[index]))).backward()
            adam.step()
        since += 1
        with torch.no_grad():
            if (now := float(lower_bound(critic(*stopping)))) > best:
                best, bound, since = now, float(lower_bound(critic(*tested))), 0
        if since >= PATIENCE:
            break
    return bound


# The mutual information of a federated training.


def sent_pairs(training: Training) -> Iterator[tuple[Array, Array]]:
    """By client, its training images (n, 3 H W) and their upload (n, d), row by row. Its network is
    the tested one, everything else is as at the start of the next round. FedReproError: the method
    sends nothing with one row per image."""
    method, kind, number = training.method, training.evaluated[0], training.round + 1
    own = dict(training._networks(kind, number - 1, training.clients))
    for place, client in enumerate(training.clients):
        received = training._job(client, training._download(client), number).received
        state = own.get(place, training.server.model)
        message = method.upload(training.view(client, state, received, number))
        sent = [message[kind] for kind in PER_SAMPLE if kind in message]
        mend = "measure leakage of a method that sends features or representations"
        need(sent, f"{method.name} sends nothing image by image; {mend}")
        images = client.data.train.images
        yield images.flatten(1).cpu().numpy(), sent[0].float().cpu().numpy()


def leakage(training: Training) -> Mapping[str, float]:
    """Mutual information in nats between all clients' training images and their uploads, and the
    number of pairs."""
    pairs = list(sent_pairs(training))
    x, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return {"mutual_information": mutual_information(x, y, training.seed), "pairs": float(len(x))}


@quantity("leakage", probe=Probe("leakage", leakage))
def printed(asked: Asked) -> Values:
    """Mutual information in nats, and the mean accuracy."""
    for result in asked.results:
        measured = result.record.measured("leakage")
        yield result.label, "MI", float(measured["mutual_information"])
        yield result.label, "accuracy", asked.scores(result)["avg"]


# The attack.

LEARNING_RATE = 0.01  # of Adam, on the [0, 1] scale of pixels; the paper gives neither
NOISE = 0.05  # around grey: pixels the encoder ignores do not change, and would affect the PSNR
RATE = 0.3  # k-means centres as a share of a class's images: the higher one of MPFT's Table 1


def misses(encoder: Embedder, images: Tensor, prototypes: Tensor) -> Tensor:
    """Mean squared error (m,) between each image's embedding and its prototype."""
    return (encoder.images(images) - prototypes).square().mean(dim=1)


def invert(
    encoder: Embedder,
    prototypes: Tensor,
    first: Tensor,
    steps: int,
    checkpoint: Checkpoint | None = None,
) -> Tensor:
    """Images (m, 3, H, H) in [0, 1] whose embeddings are near prototypes (m, d).

    Minimises the mean squared error with Adam from the first images, limited to [0, 1] after every
    step, each image separately. MPFT's App. G does not give start, optimiser and rate. Equal
    arguments give equal bits on one CPU, also from a checkpoint.
    """
    images = first.clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=LEARNING_RATE)
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


def attack(asked: Asked) -> Figure:
    """The attack on the messages of MPFT's clients.

    prototypes (m, d); start, found, behind and another, uint8 (m, 3, H, H) of the size the encoder
    works on; mse (m, 2), of the embedding before and after. The facts name the ``rows``.
    """
    steps = asked.experiment.steps[asked.protocol.scale]
    return kept(asked, partial(_made, asked, steps), steps=steps, lr=LEARNING_RATE)


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
    generator = torch_stream(asked.seed, "figure")
    noise = 2 * torch.rand(len(targets), 3, size, size, generator=generator) - 1
    first = 0.5 + NOISE * noise
    found = invert(encoder, prototypes, first, steps, checkpoint)
    ends = [misses(encoder, images, prototypes).double().numpy() for images in (first, found)]
    given = {"behind": torch.stack(behind), "another": torch.stack(another)}
    shown = {"start": first, "found": found}
    shown |= {name: enlarged(images.float() / 255, size) for name, images in given.items()}
    arrays = {n: (255 * images).round().to(torch.uint8).numpy() for n, images in shown.items()}
    arrays |= {"prototypes": prototypes.numpy(), "mse": np.stack(ends, axis=1)}
    return arrays, {"rows": list(names)}


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
