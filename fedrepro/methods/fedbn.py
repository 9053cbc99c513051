from typing import Literal

import fedrepro.methods.api as fl


class FedBN(fl.Method):
    """FedAvg, but every BatchNorm layer, weights and statistics, stays at its client.

    Li et al. 2021, Alg. 1. A layer is recognised by its type. Public code recognises it by "bn" in
    its name, which the shortcuts of torchvision's ResNets lack: there their layers are averaged
    (``shortcut_bn``). Each client's network is tested on its own domain.
    """

    name = "FedBN"
    reference = "li2021fedbn"
    equations = (
        r"w^{t+1}_{\ell} = \sum_i \frac{n_i}{n} \, w^{t}_{i,\ell}",
        r"\ell \ \text{every layer but BatchNorm, which stays } w^{t}_{i,\ell}",
    )

    bn_policy: fl.BNPolicy = fl.hyper("local", "FedBN, Alg. 1: the method itself", "stated", ())
    shortcut_bn: Literal["local", "average"] = fl.hyper(
        "local", "FedBN, Alg. 1: all of BatchNorm is local", "stated", later=True
    )

    def travels(self, tensor: fl.TensorInfo) -> bool:
        """All but BatchNorm, with ``shortcut_bn`` "average" the shortcuts' too."""
        averaged = self.shortcut_bn == "average" and "downsample" in tensor.name
        return not tensor.is_counter if averaged else super().travels(tensor)
