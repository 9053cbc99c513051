"""FedAvg with a proximal term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedrepro.base.protocol import Protocol
from fedrepro.methods.base import BN_POLICIES, Batch, BNPolicy, LocalModel, Method, Phase, hyper
from fedrepro.methods.losses import cross_entropy, proximal
from fedrepro.methods.messages import Message, tensors_of


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg whose clients are held near the received network.

    Loss CE + (mu/2) ||w - w_received||^2 over the trained parameters; Li et al. 2020, Eq. 2. The
    term is zero at a round's first step, where both networks are still equal.
    """

    name: ClassVar[str] = "FedProx"
    reference: ClassVar[str] = "li2020fedprox"
    equations: ClassVar[tuple[str, ...]] = (
        r"\min_{w_i} \; \mathrm{CE} + \frac{\mu}{2} \lVert w_i - w^{t} \rVert^2",
    )

    mu: float = hyper(
        0.01,
        source="ADCOL Sec. 5.1 tunes it, prints the best, does not name it; FedBN's code has 0.01",
        status="code",
        alternatives=(10.0, 1.0, 0.1, 0.001),
        low=0,
    )
    clipped: Literal["loss", "ce"] = hyper(
        "loss",
        source="what a protocol's clipping shortens: the whole gradient; MPFT code: CE's alone",
        status="decided",
        alternatives=("ce",),
        later=True,
    )
    stops_by: Literal["common", "trained"] = hyper(
        "common",
        source="the network that is tested; MPFT code averages after it has taken the validation "
        "loss, so of the clients' networks as they were trained",
        status="decided",
        alternatives=("trained",),
        later=True,
    )
    bn_policy: BNPolicy = hyper(
        "average", source="as FedAvg (FedBN code)", status="code", alternatives=BN_POLICIES[1:]
    )

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        late = ("prox",) if self.clipped == "ce" else ()
        return (Phase("local", protocol.local_epochs, unclipped=late),)

    def watched(self) -> str | None:
        return "trained" if self.stops_by == "trained" else None

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        sent = tensors_of(received, "model")
        shared = {name: value for name, value in model.params.items() if name in sent}
        return {
            "ce": cross_entropy(model(batch.x).logits, batch.y),
            "prox": self.mu * proximal(shared, sent),
        }
