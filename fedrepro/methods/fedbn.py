"""FedAvg with BatchNorm kept at the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrepro.methods.base import BNPolicy, Method, hyper


@dataclass(frozen=True)
class FedBN(Method):
    """FedAvg, except that every BatchNorm layer, weights and statistics, stays where it is.

    Li et al. 2021, Alg. 1. A layer is known by its type and not by its name: the shortcut
    BatchNorms of a ResNet, whose names carry no "bn", stay local too (FedPall's code averages
    them). Each client's network is tested on its own domain.
    """

    name: ClassVar[str] = "FedBN"
    reference: ClassVar[str] = "li2021fedbn"
    equations: ClassVar[tuple[str, ...]] = (
        r"w^{t+1}_{\ell} = \sum_i \frac{n_i}{n} \, w^{t}_{i,\ell}",
        r"\ell \ \text{every layer but BatchNorm, which stays } w^{t}_{i,\ell}",
    )

    bn_policy: BNPolicy = hyper("local", source="FedBN, Alg. 1: the method itself", status="stated")
