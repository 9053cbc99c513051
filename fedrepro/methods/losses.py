"""One function per equation, in matrix form: no loops over samples, no random numbers.

All return a scalar, logarithms in nats, and can be called under `torch.func.vmap`, one client's
tensors at a time: no shape or branch depends on a value. Names used throughout: b samples in the
batch, d feature size, K classes, P prototypes; z (b, d) features; labels (b,) in 0..K-1; present
(P,) or (K,), zero or False where there is no such prototype: that row must be finite and is
ignored, as are samples whose class has none; if all are, the value and its gradient are 0.
Prototypes are constants. Similarities are computed at least in float32, for any precision of the
network, because a temperature of 0.02 multiplies their error by 50.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-8  # a vector shorter than this has no direction
NEVER = -1e30  # a logit whose exponential is zero; finite, so that no gradient becomes NaN


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats. logits (b, K), labels (b,) in 0..K-1."""
    return F.cross_entropy(logits, labels)


def kl_from_uniform(logits: Tensor) -> Tensor:
    """Mean KL(U || D) = -(1/N) sum_j log(N D_j) of a discriminator's softmax D from the uniform
    distribution U, from logits (b, N) over N clients. Li et al., ADCOL, Eq. 2 and Alg. 1 line 15;
    FedPall's code."""
    log_d = F.log_softmax(logits, dim=1)
    return -log_d.mean() - math.log(logits.shape[1])


def kl_to_uniform(logits: Tensor) -> Tensor:
    """Mean KL(D || U) = sum_j D_j log(N D_j), the direction of FedPall's Eq. 6, from logits (b, N)
    over N clients; between 0 and log N."""
    log_d = F.log_softmax(logits, dim=1)
    return (log_d.exp() * log_d).sum(dim=1).mean() + math.log(logits.shape[1])


def proximal(params: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor:
    """Half the squared Euclidean distance between trained parameters and the received ones, over
    the tensors that both sides have; 0 if there are none. Li et al., FedProx (2020), Eq. 2 without
    mu; the second term of FedDyn and Ditto's pull."""
    pairs = [(v, reference[name]) for name, v in params.items() if name in reference]
    if not pairs:
        return next(iter((params or reference).values())).new_zeros(())
    return 0.5 * torch.stack([F.mse_loss(*pair, reduction="sum") for pair in pairs]).sum()


def model_contrast(
    z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float = 0.5
) -> Tensor:
    """Mean -log(e^p / (e^p + e^q)), p = cos(z, z_global) / temperature, q with z_previous; all of
    (b, d). The contrast of MOON, Li et al. (2021)."""
    z, z_global, z_previous = _directions(z), _directions(z_global), _directions(z_previous)
    ahead = (z * (z_global - z_previous)).sum(dim=1)
    return -F.logsigmoid(ahead / temperature).mean()


def prototype_mse(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    present: Tensor,
    over_dimensions: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Squared distance between features and the prototype of their class, a mean over samples.

    prototypes (K, d), present (K,). over_dimensions: "mean" is the element-wise mean squared error
    of FedProto's and FPL's code, also used for I2PFL's Eq. 9, whose text does not say which; "sum"
    is the squared Euclidean distance.
    """
    error = (wide(z) - wide(prototypes)[labels]).square()
    each = error.mean(dim=1) if over_dimensions == "mean" else error.sum(dim=1)
    return _mean_where(present.bool()[labels], each)


def prototype_contrast(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    present: Tensor,
    temperature: float,
    owner: Tensor | None = None,
) -> Tensor:
    """Mean -log( sum over own-class prototypes e^(s/t) / sum over all e^(s/t) ), s the cosine.

    prototypes (P, d); present (P,); owner (P,) the class of each, None for one per class in order.
    FPL's and FedAPC's contrast; I2PFL, Eq. 6; FedProc with temperature 1.
    """
    logits = _cosine(z, prototypes) / temperature
    if owner is None:
        owner = torch.arange(len(prototypes), device=labels.device)
    there = present.bool()
    own = (owner == labels[:, None]) & there
    each = _log_sum_exp(logits, there) - _log_sum_exp(logits, own)
    return _mean_where(own.any(dim=1), each)


def fedpall_contrast(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    present: Tensor,
    temperature: float = 3.0,
    reading: Literal["code", "paper"] = "code",
) -> Tensor:
    """FedPall's contrast with the global prototypes (K, d); a mean over samples, may be negative.

    "code": the own class is in the denominator too, and there the prototypes are not rescaled:
    -log( e^(sim(z, G_y)/t) / sum_k e^(<z/|z|, G_k>/t) ).
    "paper", Eq. 7: cosines everywhere, own class left out of the denominator, whose x is read as
    the feature of x; samples without another class are ignored.
    """
    there = present.bool()
    own = one_hot(labels, len(prototypes))
    cosine = _cosine(z, prototypes) / temperature
    known = there[labels]
    if reading == "code":
        against = _log_sum_exp(_products(_directions(z), wide(prototypes)) / temperature, there)
    else:
        others = there & ~own
        against = _log_sum_exp(cosine, others)
        known = known & others.any(dim=1)
    return _mean_where(known, against - (cosine * own).sum(dim=1))


def prior_adjusted_cross_entropy(
    z: Tensor, labels: Tensor, prototypes: Tensor, shares: Tensor, temperature: float = 0.9
) -> Tensor:
    """RUCR's unification term: cross-entropy of cos(z, G_k) / temperature, prototypes G (K, d).

    shares (K,): each class's share of all samples; log(share) is added to the logit of the own
    class only, as in RUCR's code. A class without a prototype has zeros there, so its logit is 0.
    """
    logits = _cosine(z, prototypes) / temperature
    own = one_hot(labels, len(prototypes))
    return F.cross_entropy(logits + own * wide(shares)[labels].log()[:, None], labels)


def distill_kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """KL(q || p) of a teacher's softmax q and a network's p, both logits (b, K), over b K. As in
    MPFT's code: its Eq. 10 gives neither the direction nor the divisor."""
    log_p, log_q = F.log_softmax(logits, dim=1), F.log_softmax(teacher, dim=1)
    return (log_q.exp() * (log_q - log_p)).mean()


# Parts of the functions above.


def wide(x: Tensor) -> Tensor:
    """The tensor in float32 if its type is narrower, else unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _directions(x: Tensor) -> Tensor:
    """Rows scaled to length 1. A row of zeros does not change and has no gradient."""
    x = wide(x)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length > TINY, length, math.inf)


def _products(x: Tensor, y: Tensor) -> Tensor:
    """Inner products (b, P) of rows, in the rows' type."""
    with torch.autocast(x.device.type, enabled=False):
        return x @ y.T


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    return _products(_directions(x), _directions(y))


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Bool (b, K), True at each sample's class."""
    return labels[:, None] == torch.arange(classes, device=labels.device)


def _log_sum_exp(logits: Tensor, mask: Tensor) -> Tensor:
    """(b,), over the masked places of the last axis; about NEVER if there are none."""
    return torch.logsumexp(torch.where(mask, logits, NEVER), dim=1)


def _mean_where(mask: Tensor, each: Tensor) -> Tensor:
    """Mean of the values (b,) where the mask is true; 0 if it is nowhere true."""
    return torch.where(mask, each, 0.0).sum() / mask.sum().clamp(min=1)
