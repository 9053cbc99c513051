"""A second, personal network beside FedAvg's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.methods.base import (
    BN_POLICIES,
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    Phase,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, proximal
from fedrepro.methods.messages import Message, tensors_of
from fedrepro.models import TensorInfo


@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg, and beside it each client's own network v, held near the received one w.

    v <- v - lr (grad CE(v) + lambda (v - w)), Li et al. 2021, Alg. 1: plain gradient steps on
    CE + lambda/2 ||v - w||^2, taken before the client trains w. Only w travels. v is what is
    tested, each client's on its own domain. Where a length is given, CE's gradient alone is
    shortened to it.
    """

    name: ClassVar[str] = "Ditto"
    reference: ClassVar[str] = "li2021ditto"
    equations: ClassVar[tuple[str, ...]] = (
        r"w^{t+1} = \sum_i \frac{n_i}{n} w_i",
        r"v_i \leftarrow v_i - \eta \big(\nabla \mathrm{CE}(v_i) + \lambda (v_i - w^t)\big)",
    )

    lam: float = hyper(
        2.0,
        source="MPFT Sec. C.2: 2; the authors' code chooses among 0.1, 1 and 2; FL-bench code: 1",
        status="stated",
        alternatives=(1.0, 0.1),
        low=0,
    )
    personal_epochs: int | None = hyper(
        1,
        source="MPFT Sec. C.2 and FL-bench code; None: the protocol's local epochs",
        status="stated",
        alternatives=(None,),
        low=1,
    )
    personal_lr: float | None = hyper(
        None,
        source="the protocol's: PFLlib code and MPFT code use one rate for both",
        status="code",
        low=1e-6,
    )
    personal_clip: float | None = hyper(
        None,
        source="Li et al. 2021, Alg. 1: none; MPFT code: 1, of CE alone, before the pull is added",
        status="stated",
        alternatives=(1.0,),
        low=1e-6,
        later=True,
    )
    stops_by: Literal["personal", "common"] = hyper(
        "personal",
        source="the networks that are tested; MPFT code watches w's validation loss",
        status="decided",
        alternatives=("common",),
        later=True,
    )
    bn_policy: BNPolicy = hyper(
        "average",
        source="as FedAvg; v has statistics of its own",
        status="inferred",
        alternatives=BN_POLICIES[1:],
    )

    def personal_phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        epochs = self.personal_epochs or protocol.local_epochs
        clip, rate = self.personal_clip, self.personal_lr or protocol.optimizer.lr
        plain = OptimizerSpec(lr=rate, clip=clip)
        late = () if clip is None else ("pull",)
        return (Phase("personal", epochs, optimizer=plain, loss="personal_loss", unclipped=late),)

    def personal_loss(
        self, model: LocalModel, batch: Batch, received: Message
    ) -> dict[str, Tensor]:
        """CE + lambda/2 ||v - w||^2 over what w shares."""
        shared = tensors_of(received, "model")
        params = {name: value for name, value in model.params.items() if name in shared}
        return {
            "ce": cross_entropy(model(batch.x).logits, batch.y),
            "pull": self.lam * proximal(params, shared),
        }

    def evaluated_models(self, layout: Mapping[str, TensorInfo]) -> tuple[str, ...]:
        return ("twin",)

    def watched(self) -> str | None:
        return "global" if self.stops_by == "common" else None
