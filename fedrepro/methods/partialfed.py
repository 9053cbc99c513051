"""Averaging whose clients take over only part of the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrepro.methods.base import BN_POLICIES, BNPolicy, Method, hyper
from fedrepro.models import TensorInfo


@dataclass(frozen=True)
class PartialFed(Method):
    """Everything is sent and averaged; at a round's start a client keeps some of its own tensors.

    The fixed variant of Sun et al. 2021: which tensors stay is chosen by hand. ADCOL says only
    that it keeps chosen parameters besides BatchNorm. Each client's network, the loaded part
    with its own rest, is tested on its own domain.
    """

    name: ClassVar[str] = "PartialFed"
    reference: ClassVar[str] = "sun2021partialfed"
    equations: ClassVar[tuple[str, ...]] = (
        r"w_i \leftarrow \big(w^{t}_{\text{loaded}},\; w_{i,\text{local}}\big)",
        r"w^{t+1} = \sum_i \frac{n_i}{n} w_i",
    )

    local_parts: tuple[str, ...] = hyper(
        ("predictor",),
        source="not stated by ADCOL; top layers are the usual choice of the fixed variant",
        status="decided",
        alternatives=(("projection", "predictor"), ("encoder",), ()),
    )
    local_bn: bool = hyper(
        True,
        source="ADCOL Sec. 2.3: parameters besides BatchNorm's stay local",
        status="stated",
        alternatives=(False,),
    )
    bn_policy: BNPolicy = hyper(
        "average",
        source="ADCOL's printed traffic (284 per round) holds the whole network",
        status="inferred",
        alternatives=BN_POLICIES[1:],
    )

    def overwrites(self, tensor: TensorInfo) -> bool:
        own = tensor.part in self.local_parts or (self.local_bn and tensor.is_bn)
        return self.travels(tensor) and not own
