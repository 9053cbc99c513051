"""Leakage of uploads: a lower bound of the mutual information of uploads and images.

A network T scores pairs. With joint pairs p and shuffled ones q, Donsker and Varadhan's
E_p[T] - log E_q[exp T] is a lower bound of the mutual information for every T (Belghazi et al.
2018, MINE). As in DEMINE (Lin et al. 2019) T is tested on other pairs than it was trained on. So
memorised pairs do not count, and the bound is also valid for few pairs.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import seeded_modules, stream_seed, torch_stream
from fedrepro.data.transforms import epoch_batches
from fedrepro.federated.rounds import Training
from fedrepro.methods.messages import tensor_of
from fedrepro.quantities.base import Asked, Values, quantity
from fedrepro.records import Probe

Array = npt.NDArray[Any]
PER_SAMPLE = ("features", "representations")  # kinds of payload with one row per image
COMPONENTS = 32  # principal components; more are noise with a few thousand pairs
FOLDS, STOPPING = 4, 0.2
HIDDEN, WIDTH, BATCH = 128, 32, 256
EPOCHS, PATIENCE = 150, 15
LEARNING_RATE, WEIGHT_DECAY = 2e-3, 0.1
LEAST = 40  # pairs: ten per fold


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
    over four folds; each fold is tested with a critic trained without it; never below 0. Equal
    input and seed give equal numbers on one machine. FedReproError: fewer than 40 pairs, values
    that are not finite.
    """
    from sklearn.model_selection import KFold  # takes a second

    if len(x) < LEAST:
        raise FedReproError(f"{len(x)} pairs are too few; give {LEAST} or more")
    both = _compact(x, seed), _compact(y, seed)
    folds = KFold(FOLDS, shuffle=True, random_state=stream_seed(seed, "figure") % 2**32)
    found = [_one_fold(both, rest, judged, seed) for rest, judged in folds.split(both[0])]
    return max(0.0, float(np.mean(found)))


def _compact(values: Array, seed: int) -> Tensor:
    """Rows as float32 (n, <=32) of mean 0 and mean square 1."""
    plain = np.asarray(values, dtype=np.float32).reshape(len(values), -1)
    if not np.isfinite(plain).all():
        raise FedReproError("a value is not finite: training diverged; lower the learning rate")
    count = min(COMPONENTS, len(plain) - 1)
    if plain.shape[1] > count:
        state = stream_seed(seed, "figure") % 2**32
        from sklearn.decomposition import PCA

        plain = PCA(count, svd_solver="randomized", random_state=state).fit_transform(plain)
    plain = plain - plain.mean(axis=0)
    return torch.from_numpy(plain / max(float(np.sqrt((plain**2).mean())), 1e-12))


def _one_fold(both: tuple[Tensor, Tensor], rest: Array, judged: Array, seed: int) -> float:
    """The bound on held-out pairs, for the critic that was best on a fifth of the others."""
    stop = max(2, round(STOPPING * len(rest)))
    order = np.random.default_rng(stream_seed(seed, "figure")).permutation(rest)
    stopping, training, tested = (
        [part[chosen] for part in both] for chosen in (order[:stop], order[stop:], judged)
    )
    critic = _trained(training, stopping, seed).eval()
    with torch.no_grad():
        return float(lower_bound(critic(*tested)))


def _trained(training: Sequence[Tensor], stopping: Sequence[Tensor], seed: int) -> Critic:
    (x, y), generator = training, torch_stream(seed, "figure")
    with seeded_modules(seed):
        critic = Critic(x.shape[1], y.shape[1])
    adam = torch.optim.AdamW(critic.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    best, kept, since = -math.inf, copy.deepcopy(critic.state_dict()), 0
    for _ in range(EPOCHS):
        for index in epoch_batches(len(x), BATCH, generator):
            adam.zero_grad(set_to_none=True)
            (-lower_bound(critic(x[index], y[index]))).backward()
            adam.step()
        with torch.no_grad():
            now = float(lower_bound(critic(*stopping)))
        since += 1
        if now > best:
            best, kept, since = now, copy.deepcopy(critic.state_dict()), 0
        if since >= PATIENCE:
            break
    critic.load_state_dict(kept)
    return critic


# Of a federated training.


def sent_pairs(training: Training) -> Iterator[tuple[Array, Array]]:
    """By client, its training images (n, 3 H W) and their upload (n, d), row by row.

    Its network is the tested one, everything else is as at the start of the next round.
    FedReproError: the method sends nothing with one row per image.
    """
    networks = dict(training.tested_networks(training.round))
    for client in training.clients:
        state, number = networks[client.data.domain], training.round + 1
        received = dict(training.method.download(training.server, client.index))
        message = training.method.upload(training.view(client, state, received, number))
        kind = next((name for name in PER_SAMPLE if name in message), None)
        if kind is None:
            raise FedReproError(
                f"{training.method.name} sends nothing image by image; measure leakage of a method "
                "that sends features or representations"
            )
        sent = tensor_of(message, kind).float().cpu().numpy()
        yield client.data.train.images.flatten(1).cpu().numpy(), sent


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
