"""Federated averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrepro.methods.base import BN_POLICIES, BNPolicy, Method, hyper


@dataclass(frozen=True)
class FedAvg(Method):
    """Clients train the received network on their own images, the server averages all of it.

    McMahan et al. 2017, Alg. 1: w = sum_i (n_i / n) w_i. The averaged network is tested on every
    domain. It is the base class's behaviour, named.
    """

    name: ClassVar[str] = "FedAvg"
    reference: ClassVar[str] = "mcmahan2017fedavg"
    equations: ClassVar[tuple[str, ...]] = (
        r"w_i^{t} = \arg\min_w \mathrm{CE}\ \text{from}\ w^{t}",
        r"w^{t+1} = \sum_i \frac{n_i}{n} \, w_i^{t}",
    )

    bn_policy: BNPolicy = hyper(
        "average",
        source="FedBN code and FedPall code average BatchNorm statistics with the same weights",
        status="code",
        alternatives=BN_POLICIES[1:],
    )
