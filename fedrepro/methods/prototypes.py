"""Class means of features: computed at a client, combined at the server, mixed before sending.

Names used throughout: n samples, N clients, K classes, d feature size; features (n, d), labels
(n,) in 0..K-1; a stack (N, K, d) has each client's class means, and counts (N, K) their numbers
of samples. A row without samples has zeros and weight 0. Generators are the CPU's.
"""

import warnings
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import betaincinv
from torch import Tensor

from fedrepro.base.errors import FedReproError
from fedrepro.methods.base import TrainedClient, Uploads
from fedrepro.methods.losses import one_hot, wide
from fedrepro.methods.server import Message, Server

# At a client.


def class_means(
    features: Tensor, labels: Tensor, classes: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Means (K, d) of the features of each class and counts (K,); zeros where there are none.

    weights (n,): how much each sample counts, by default 1. Can be called under vmap. Half
    precision is summed in float32.
    """
    features = wide(features)
    hot = one_hot(labels, classes).to(features.dtype)
    if weights is not None:
        hot = hot * weights.to(features.dtype)[:, None]
    counts = hot.sum(dim=0)
    # A product: a GPU's indexed sum has no fixed order and so no fixed last bits.
    with torch.autocast(features.device.type, enabled=False):
        sums = hot.T @ features
    return sums / torch.where(counts > 0, counts, 1.0)[:, None], counts


# At the server. Each returns prototypes (K, d) and present (K,): False where no client has samples.


def count_weighted_mean(stack: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """sum_i n_i^k c_i^k / sum_i n_i^k: the mean over all clients' samples. FedPall, Eq. 4; RUCR."""
    weights = counts.to(stack.dtype)
    total = weights.sum(dim=0)
    sums = torch.einsum("nk,nkd->kd", weights, stack)
    return sums / torch.where(total > 0, total, 1.0)[:, None], total > 0


def plain_mean(stack: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the clients that have the class: FedProto's code, FedAPC."""
    return count_weighted_mean(stack, counts > 0)


def unit_mean(stack: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Count-weighted mean of the clients' means, each first scaled to length 1; the result is not.
    FedPall's code and RUCR's rectification."""
    return count_weighted_mean(F.normalize(stack, dim=2), counts)


def distance_reweighted(
    stack: Tensor, counts: Tensor, distance: Literal["l2", "squared"] = "l2"
) -> tuple[Tensor, Tensor]:
    """I2PFL's generalised prototypes: a client's weight grows with its distance from the mean.

    g^k = sum_i (d_i / sum_j d_j) p_i^k, d_i the Euclidean distance of p_i^k from the plain mean
    ("squared": its square; Eqs. 3 and 4 leave the norm open). If all distances are 0 it is the
    mean. With two clients it always is.
    """
    owners = (counts > 0).to(stack.dtype)
    mean, present = plain_mean(stack, counts)
    far = torch.linalg.vector_norm(stack - mean, dim=2) * owners
    if distance == "squared":
        far = far.square()
    weights = torch.where(far.sum(dim=0) > 0, far, owners)
    return count_weighted_mean(stack, weights)[0], present


def finch_prototypes(stack: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """FPL's cluster prototypes: the clients' means of each class, clustered by FINCH (cosine
    distances, the last partition before all are one), and the plain mean of each cluster.

    Returns prototypes (P, d), owner (P,) and present (P,), always with P = K max(1, N // 2),
    because every cluster has at least two members: class k owns the rows from k P/K on. The mean of
    a class's clusters is `class_means(prototypes, owner, classes, weights=present)`.
    FedReproError: a mean is not finite.
    """
    clients, classes, _ = stack.shape
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
    # Means of a client without samples of the class have weight 0.
    known = (clusters >= 0).flatten()
    means, members = class_means(stack.flatten(0, 1), rows.flatten(), classes * places, known)
    return means, owner, members > 0


def _finch(means: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        # When imported, it warns about a package that it needs from 20,000 rows on.
        warnings.simplefilter("ignore")
        from finch import FINCH
    partitions, _, _ = FINCH(means, distance="cosine", ensure_early_exit=False, verbose=False)
    return np.asarray(partitions[:, -1], dtype=np.int64)


# Mixtures.


def beta_draws(n: int, alpha: float, generator: torch.Generator) -> Tensor:
    """n draws of Beta(alpha, alpha), float64: the quantile of one uniform number each."""
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    return torch.from_numpy(betaincinv(alpha, alpha, uniform.numpy()))


def mix_other_class(z: Tensor, labels: Tensor, classes: int, lam: Tensor, draws: Tensor) -> Tensor:
    """lam_i z_i + (1 - lam_i) z_j with j a random sample of another class: I2PFL, Eq. 7.

    lam (n,), or () for one value for all; draws (n,) uniform in [0, 1): sample i takes the
    floor(m draws_i)-th of its m samples of other classes, ordered by class and place. If there
    is none it does not change. Can be called under vmap; the augmented prototypes (Eq. 8) are
    `class_means(mixed, labels, classes)`.
    """
    n = len(labels)
    order = labels.argsort(stable=True)
    counts = one_hot(labels, classes).sum(dim=0)
    own, start = counts[labels], (counts.cumsum(dim=0) - counts)[labels]
    others = n - own
    chosen = torch.minimum((draws * others).floor().long(), (others - 1).clamp(min=0))
    # In that order the own class is one block, which is skipped.
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
    """mask * (alpha z + (1 - alpha) G_y): a FedPall client's upload from its features (n, d).

    Eqs. 9 to 11. One alpha uniform in [low, high], rounded to two decimals, and then one mask for
    all samples, as in the code. There the mask has exactly floor(keep d) ones (`exact`); in Eq. 10
    each place is drawn separately.
    """
    alpha = round(low + (high - low) * torch.rand((), generator=generator).item(), 2)
    size = z.shape[1]
    if exact:
        kept = torch.randperm(size, generator=generator) < int(keep * size)
    else:
        kept = torch.rand(size, generator=generator) < keep
    mixed = alpha * z + (1 - alpha) * prototypes.to(z.dtype)[labels]
    return mixed * kept.to(z.device, z.dtype)


HELD = ("prototypes", "present")


class PrototypeMessages:
    """Shared by methods whose clients send the mean feature of each of their classes and receive
    prototypes. Write it before `Method` in a class's bases.

    The server keeps a table ``prototypes`` (P, d) and a mask ``present`` (P,) of the used rows, at
    first none; it sends both, and its tensors named in `received_too`. A client sends
    ``prototypes``, one row per class it has (`sends_all`: of zeros for the others), and, by
    `tells`, the classes' (K,) numbers of images or a mask. decay: the share of the last round's
    prototypes in the next (I2PFL, Eq. 5), None if only the new are kept. `decay` and the three
    settings before it may be a method's fields.
    """

    tells: ClassVar[Literal["counts", "present"]] = "present"
    sends_all: ClassVar[bool] = False
    received_too: ClassVar[tuple[str, ...]] = ()
    prototypes_in_training_mode: bool = False
    prototypes_of_augmented_images: bool = False
    prototype_weighting: str = "clients"
    decay: float | None = None

    def sent_features(self, client: TrainedClient) -> Tensor:
        """Features (n, d) for the sent class means, in the order of the client's labels."""
        augmentation = client.augmentation if self.prototypes_of_augmented_images else None
        return client.features(self.prototypes_in_training_mode, augmentation)

    def joined(self, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        """New prototypes and their mask from the clients' means (N, K, d), zeros where there is
        none, and the counts or masks they sent (N, K)."""
        mean = count_weighted_mean if self.prototype_weighting == "images" else plain_mean
        return mean(stack, told)

    def renewed(self, server: Server, new: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """The server's next prototypes (P, d) and mask (P,) from the new. With a decay, a class in
        only one of the last and the new is taken from it: in the first round, all from the new."""
        if self.decay is None:
            return new, there
        before, known = (server.tensors[kind] for kind in HELD)
        both = self.decay * before + (1 - self.decay) * new
        values = torch.where(there[:, None], torch.where(known[:, None], both, new), before)
        return values, known | there

    def init_server(self, server: Server) -> None:
        self.hold(server, *empty_table(server, server.classes))

    def hold(self, server: Server, prototypes: Tensor, present: Tensor) -> None:
        server.tensors |= dict(zip(HELD, (prototypes, present), strict=True))

    def download(self, server: Server, client: int) -> Message:
        return {kind: server.tensors[kind] for kind in (*HELD, *self.received_too)}

    def upload(self, client: TrainedClient) -> Message:
        return self.means_of(client, self.sent_features(client))

    def means_of(self, client: TrainedClient, features: Tensor) -> Message:
        """The message with the class means of features (n, d)."""
        means, counts = class_means(features, client.labels, client.classes)
        owned = counts > 0
        told = counts if self.tells == "counts" else owned
        return {"prototypes": means if self.sends_all else means[owned], self.tells: told}

    def server_step(self, server: Server, uploads: Uploads) -> None:
        new = self.joined(*self.stacked(server, uploads))
        self.hold(server, *self.renewed(server, *new))

    def stacked(self, server: Server, uploads: Uploads) -> tuple[Tensor, Tensor]:
        """The uploads in the form of `joined`, one row per upload."""
        told = torch.stack([upload.message[self.tells] for upload in uploads])
        sent = torch.cat([upload.message["prototypes"] for upload in uploads])
        if self.sends_all:
            return sent.view(*told.shape, -1), told
        stack = sent.new_zeros(*told.shape, sent.shape[1])
        stack[told > 0] = sent
        return stack, told


def empty_table(server: Server, *rows: int) -> tuple[Tensor, Tensor]:
    """A table (rows, d) of zeros, and a mask (rows,) without any row."""
    size = *rows, server.feature_size
    table = torch.zeros(size, dtype=server.dtype, device=server.device)
    return table, torch.zeros(rows, dtype=torch.bool, device=server.device)


def received_table(received: Message) -> tuple[Tensor, Tensor]:
    """The prototypes (P, d) that a client received and their mask (P,)."""
    return received["prototypes"], received["present"]
