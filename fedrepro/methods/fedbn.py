"""FedAvg with BatchNorm kept at the clients."""

from dataclasses import dataclass

import fedrepro.methods.api as fl


@dataclass(frozen=True)
class FedBN(fl.Method):
    """FedAvg, but every BatchNorm layer, weights and statistics, stays at its client.

    Li et al. 2021, Alg. 1. A layer is recognised by its type. So the shortcut BatchNorms of a
    ResNet, which have no "bn" in their names, stay too (FedPall's code averages them). Each
    client's network is tested on its own domain.
    """

    name = "FedBN"
    reference = "li2021fedbn"
    equations = (
        r"w^{t+1}_{\ell} = \sum_i \frac{n_i}{n} \, w^{t}_{i,\ell}",
        r"\ell \ \text{every layer but BatchNorm, which stays } w^{t}_{i,\ell}",
    )

    bn_policy: fl.BNPolicy = fl.hyper("local", "FedBN, Alg. 1: the method itself", "stated")
