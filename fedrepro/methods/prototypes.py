"""Class means of features: made at a client, joined at the server, mixed before they travel.

Names used throughout: n samples, N clients, K classes, d feature size; features (n, d), labels
(n,) in 0..K-1; a stack (N, K, d) holds each client's class means and counts (N, K) how many
samples each is of, zero where a client has none. A row without samples holds zeros and weighs
nothing. Functions that draw take a CPU generator and name the order of their draws.
"""

import warnings
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import betaincinv
from torch import Tensor

from fedrepro.base.errors import FedReproError
from fedrepro.methods.base import TrainedClient, Upload
from fedrepro.methods.messages import Message, tensor_of
from fedrepro.methods.server import Server

# At a client.


def class_means(
    features: Tensor, labels: Tensor, classes: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Means (K, d) of the features of each class and counts (K,); zeros where there are none.

    weights (n,): how much each sample counts, by default 1. Can be called under vmap. A product
    with the one-hot labels and not an indexed sum, whose order, and so last bits, a GPU leaves
    open. Half precision is summed in float32.
    """
    features = features.float() if features.dtype.itemsize < 4 else features
    hot = (labels[:, None] == torch.arange(classes, device=labels.device)).to(features.dtype)
    if weights is not None:
        hot = hot * weights.to(features.dtype)[:, None]
    counts = hot.sum(dim=0)
    with torch.autocast(features.device.type, enabled=False):
        sums = hot.T @ features
    return sums / _nonzero(counts)[:, None], counts


# At the server. Each returns prototypes (K, d) and present (K,): False where no client has samples.


def count_weighted_mean(stack: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """sum_i n_i^k c_i^k / sum_i n_i^k: the mean over all clients' samples. FedPall, Eq. 4; RUCR."""
    return _weighted(stack, counts.to(stack.dtype))


def plain_mean(stack: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the clients that have the class: FedProto's code, FedProc, FedAPC."""
    return _weighted(stack, (counts > 0).to(stack.dtype))


def unit_mean(stack: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Count-weighted mean of the clients' means, each first scaled to length 1.

    The result is not scaled again: its length tells how far the clients agree. FedPall's code and
    RUCR's rectification.
    """
    return count_weighted_mean(F.normalize(stack, dim=2), counts)


def distance_reweighted(
    stack: Tensor, counts: Tensor, distance: Literal["l2", "squared"] = "l2"
) -> tuple[Tensor, Tensor]:
    """I2PFL's generalised prototypes: a client's weight grows with its distance from the mean.

    g^k = sum_i (d_i / sum_j d_j) p_i^k, d_i the Euclidean distance of p_i^k from the plain mean
    ("squared": its square; Eqs. 3 and 4 leave the norm open). Where all distances are 0 (one
    client only, or all equal) it is the mean. With two clients it always is.
    """
    owners = (counts > 0).to(stack.dtype)
    mean, present = _weighted(stack, owners)
    far = torch.linalg.vector_norm(stack - mean, dim=2) * owners
    if distance == "squared":
        far = far.square()
    weights = torch.where(far.sum(dim=0) > 0, far, owners)
    return _weighted(stack, weights)[0], present


def ema(
    previous: Tensor, new: Tensor, decay: float, previous_present: Tensor, present: Tensor
) -> tuple[Tensor, Tensor]:
    """decay * previous + (1 - decay) * new, class by class: I2PFL, Eq. 5 (decay 0.99).

    previous, new (K, d); previous_present, present (K,). A class that only one of them has is
    taken from there: in the first round, all from the new. Returns both joined, as do the means.
    """
    before, now = previous_present.bool(), present.bool()
    both = decay * previous + (1 - decay) * new
    values = torch.where(now[:, None], torch.where(before[:, None], both, new), previous)
    return values, before | now


def finch_prototypes(stack: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """FPL's cluster prototypes: the clients' means of each class, clustered by FINCH (cosine
    distances, the last partition before all are one), and the plain mean of each cluster.

    Two or three means of a class are always one cluster. Returns prototypes (P, d), owner (P,) and
    present (P,), with P = K max(1, N // 2) whatever is found, as every cluster has two members at
    least: class k owns the rows from k P/K on. The mean of a class's cluster prototypes is
    `class_means(prototypes, owner, classes, weights=present)`. FedReproError: a mean is not finite.
    """
    clients, classes, size = stack.shape
    places = max(1, clients // 2)
    clusters = torch.full((clients, classes), -1, dtype=torch.long)
    found = stack.detach().cpu()
    if not found.isfinite().all():
        raise FedReproError("a prototype is not finite: training diverged; lower the learning rate")
    for k, owners in enumerate((counts > 0).T.cpu()):
        if owners.any():
            clusters[owners, k] = torch.from_numpy(_finch(found[owners, k].float().numpy()))
    clusters = clusters.to(stack.device)
    owner = torch.arange(classes, device=stack.device).repeat_interleave(places)
    rows = torch.arange(classes, device=stack.device) * places + clusters.clamp(min=0)
    # Means of a client that has no sample of the class weigh nothing.
    means, members = class_means(
        stack.reshape(-1, size),
        rows.reshape(-1),
        classes * places,
        weights=(clusters >= 0).reshape(-1),
    )
    return means, owner, members > 0


def _finch(means: np.ndarray) -> np.ndarray:
    """The cluster of each row, from 0 on."""
    with warnings.catch_warnings():
        # It warns, when imported, of a package it needs from 20,000 rows on.
        warnings.simplefilter("ignore")
        from finch import FINCH
    partitions, _, _ = FINCH(means, distance="cosine", ensure_early_exit=False, verbose=False)
    return np.asarray(partitions[:, -1], dtype=np.int64)


# Mixtures.


def beta_draws(n: int, alpha: float, generator: torch.Generator) -> Tensor:
    """n draws of Beta(alpha, alpha), float64: one uniform number each, through the quantile."""
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    return torch.from_numpy(betaincinv(alpha, alpha, uniform.numpy()))


def mix_other_class(z: Tensor, labels: Tensor, classes: int, lam: Tensor, draws: Tensor) -> Tensor:
    """lam_i z_i + (1 - lam_i) z_j with j a random sample of another class: I2PFL, Eq. 7.

    lam (n,), or () for one value for all; draws (n,) uniform in [0, 1): sample i takes the
    floor(m draws_i)-th of its m samples of other classes, ordered by class and place. Where there
    is none, as in a batch of one class, the sample stays as it is. Can be called under vmap; the
    augmented prototypes (Eq. 8) are `class_means(mixed, labels, classes)`.
    """
    n = len(labels)
    order = labels.argsort(stable=True)
    hot = labels[:, None] == torch.arange(classes, device=labels.device)
    counts = hot.sum(dim=0)
    own, start = counts[labels], (counts.cumsum(dim=0) - counts)[labels]
    others = n - own
    chosen = torch.minimum((draws * others).floor().long(), (others - 1).clamp(min=0))
    # In that order the own class is one block, which is stepped over.
    place = torch.where(chosen < start, chosen, chosen + own).clamp(max=n - 1)
    lam = lam.to(z.dtype).expand(n)[:, None]
    mixed = lam * z + (1 - lam) * z[order[place]]
    return torch.where((others > 0)[:, None], mixed, z)


def fedpall_mix(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    generator: torch.Generator,
    low: float = 0.8,
    high: float = 1.0,
    keep: float = 0.9,
    exact: bool = True,
) -> Tensor:
    """mask * (alpha z + (1 - alpha) G_y): what a FedPall client uploads of its features (n, d).

    Eqs. 9 to 11. One alpha uniform in [low, high], rounded to two decimals, and one mask for all
    samples, as in the code, which also gives the mask exactly floor(keep d) ones; not `exact`,
    Eq. 10, draws each place by itself. Draws: alpha, then the mask.
    """
    alpha = round(low + (high - low) * torch.rand((), generator=generator).item(), 2)
    size = z.shape[1]
    if exact:
        kept = torch.randperm(size, generator=generator) < int(keep * size)
    else:
        kept = torch.rand(size, generator=generator) < keep
    mixed = alpha * z + (1 - alpha) * prototypes.to(z.dtype)[labels]
    return mixed * kept.to(z.device, z.dtype)


# As messages.


def told_means(client: TrainedClient, features: Tensor) -> dict[str, Tensor]:
    """All class means of a client's features (n, d), zeros for a class it lacks, and counts."""
    means, counts = class_means(features, client.labels, client.classes)
    return {"prototypes": means, "counts": counts}


def stacked_means(uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
    """Such means (N, K, d) and counts (N, K), one row per upload."""
    means = [tensor_of(upload.message, "prototypes") for upload in uploads]
    return torch.stack(means), torch.stack([tensor_of(u.message, "counts") for u in uploads])


# What the functions above are made of.


def _nonzero(total: Tensor) -> Tensor:
    """A divisor: 1 where the total is 0."""
    return torch.where(total > 0, total, 1.0)


def _weighted(stack: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (K, d) over clients with weights (N, K), and where there was any weight."""
    total = weights.sum(dim=0)
    mean = torch.einsum("nk,nkd->kd", weights, stack) / _nonzero(total)[:, None]
    return mean, total > 0


HELD = ("prototypes", "present")


class PrototypeMessages:
    """What methods have in common whose clients send the mean feature of each class they have, and
    are sent prototypes; written before `Method` among a class's bases.

    The server keeps a table ``prototypes`` (P, d) and a mask ``present`` (P,) of the rows in use,
    at first none; both go down. Up go ``prototypes``, one row per class the client has, and what
    `tells` of the classes (K,): their numbers of images, or a mask. Fields a method may have:
    features of the means in training mode, and of images augmented as in training; a class's means
    weighted by "images", or "clients" alike.
    """

    tells: ClassVar[Literal["counts", "present"]] = "present"
    prototypes_in_training_mode: bool = False
    prototypes_of_augmented_images: bool = False
    prototype_weighting: str = "clients"

    def sent_features(self, client: TrainedClient) -> Tensor:
        """Features (n, d), in the order of the client's labels, whose class means go up."""
        augmentation = client.augmentation if self.prototypes_of_augmented_images else None
        return client.features(self.prototypes_in_training_mode, augmentation)

    def joined(self, server: Server, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        """The server's next prototypes and mask, from the clients' means (N, K, d), zeros where
        there is none, and what they told of their classes (N, K)."""
        mean = count_weighted_mean if self.prototype_weighting == "images" else plain_mean
        return mean(stack, told)

    def renewed(self, server: Server, new: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """New prototypes (P, d) where there are some (P,), else those the server has."""
        return ema(server.tensors["prototypes"], new, 0, server.tensors["present"], there)

    def init_server(self, server: Server) -> None:
        self.hold(server, *empty_table(server, server.classes))

    def hold(self, server: Server, prototypes: Tensor, present: Tensor) -> None:
        """Make these the server's."""
        server.tensors |= dict(zip(HELD, (prototypes, present), strict=True))

    def download(self, server: Server, client: int) -> Message:
        return {kind: server.tensors[kind] for kind in HELD}

    def upload(self, client: TrainedClient) -> Message:
        means, counts = class_means(self.sent_features(client), client.labels, client.classes)
        owned = counts > 0
        told = counts if self.tells == "counts" else owned
        return {"prototypes": means[owned], self.tells: told}

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        self.hold(server, *self.joined(server, *self.stacked(server, uploads)))

    def stacked(self, server: Server, uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
        """The uploads as `joined` takes them, a row an upload."""
        told = torch.stack([tensor_of(upload.message, self.tells) for upload in uploads])
        sent = torch.cat([tensor_of(upload.message, "prototypes") for upload in uploads])
        stack = sent.new_zeros(*told.shape, sent.shape[1])
        stack[told > 0] = sent
        return stack, told


def empty_table(server: Server, *rows: int) -> tuple[Tensor, Tensor]:
    """A table (rows, d) of zeros, and a mask (rows,) of none."""
    size = *rows, server.feature_size
    table = torch.zeros(size, dtype=server.dtype, device=server.device)
    return table, torch.zeros(rows, dtype=torch.bool, device=server.device)


def received_table(received: Message) -> tuple[Tensor, Tensor]:
    """The prototypes (P, d) a client was sent and their mask (P,)."""
    return tensor_of(received, "prototypes"), tensor_of(received, "present")
