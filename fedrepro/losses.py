"""One function per equation, in matrix form: nothing loops over samples, none reads a generator."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy. logits (b, K), labels (b,) in 0..K-1; a scalar in nats."""
    return F.cross_entropy(logits, labels)


def kl_from_uniform(logits: Tensor) -> Tensor:
    """Mean KL(U || D) of the discriminator's softmax D from the uniform distribution U.

    logits (b, N) over N clients; a scalar in nats, 0 exactly where every D is uniform.
    KL(U || D) = -(1/N) sum_j log(N D_j): Li et al., ADCOL, Eq. 2 and Alg. 1 line 15.
    """
    clients = logits.shape[1]
    log_d = F.log_softmax(logits, dim=1)
    return -log_d.mean() - math.log(clients)


def proximal(params: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor:
    """Half the squared Euclidean distance between trained parameters and the received ones.

    Li et al., FedProx (2020), Eq. 2 without mu. Tensors of `reference` that are not trained
    parameters (running statistics) take no part.
    """
    parts = [((value - reference[name]) ** 2).sum() for name, value in params.items()]
    return 0.5 * torch.stack(parts).sum()
