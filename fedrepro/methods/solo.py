"""Each client alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrepro.methods.base import BNPolicy, Method, hyper
from fedrepro.models import TensorInfo


@dataclass(frozen=True)
class SOLO(Method):
    """Local training without any communication: the floor every federated method must clear.

    The optimiser's momentum is kept from round to round, so that rounds are only the points at
    which the networks are tested and E rounds of e epochs equal one training of E x e epochs.
    """

    name: ClassVar[str] = "SOLO"
    reference: ClassVar[str] = "li2023adcol"
    keeps_optimizer: ClassVar[bool] = True
    equations: ClassVar[tuple[str, ...]] = (
        r"\min_{w_i} \; \mathrm{CE}\big(h(f(x)), y\big) \quad \text{each } i \text{ alone}",
    )

    bn_policy: BNPolicy = hyper(
        "local", source="nothing travels (ADCOL, Sec. 5.1)", status="stated"
    )

    def shares(self, tensor: TensorInfo) -> bool:
        return False
