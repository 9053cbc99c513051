"""Averaging for a network that adapts in one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.methods.base import BN_POLICIES, BNPolicy, Method, Phase, hyper
from fedrepro.models import TensorInfo


@dataclass(frozen=True)
class PerFedAvg(Method):
    """First-order Per-FedAvg: clients move the shared point by gradients taken after one step.

    A step reads two batches: w' = w - alpha grad L(w; B1), then w <- w - beta grad L(w'; B2);
    Fallah et al. 2020, Alg. 1 with the first-order approximation of its Sec. 5. The server
    averages. An epoch's last odd batch is left out. Before a test each client adapts the average
    to its own images; `adapt_epochs` 0 tests the average as it is.
    """

    name: ClassVar[str] = "Per-FedAvg"
    reference: ClassVar[str] = "fallah2020perfedavg"
    equations: ClassVar[tuple[str, ...]] = (
        r"w' = w - \alpha \nabla L(w; B_1), \qquad w \leftarrow w - \beta \nabla L(w'; B_2)",
    )

    alpha: float = hyper(
        0.01,
        source="not stated by ADCOL; FedPall code uses the learning rate 0.01",
        status="code",
        alternatives=(0.001,),
        low=0,
    )
    beta: float = hyper(
        0.01,
        source="ADCOL Sec. 5.1 tunes a second-batch step over {0.001, 0.01} (printed under FedRep)",
        status="decided",
        alternatives=(0.001,),
        low=0,
    )
    adapt_epochs: int = hyper(
        1,
        source="not stated by ADCOL; FL-bench code; PFLlib code takes one batch (adapt_steps 1)",
        status="code",
        alternatives=(0,),
        low=0,
    )
    adapt_steps: int | None = hyper(
        None,
        source="steps of an adaptation epoch; None: the whole epoch. Fallah et al., Eq. 3: one "
        "gradient step; PFLlib code: on one batch",
        status="code",
        alternatives=(1,),
        low=1,
        later=True,
    )
    bn_policy: BNPolicy = hyper(
        "average", source="as FedAvg (FedPall code)", status="code", alternatives=BN_POLICIES[1:]
    )

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        step = OptimizerSpec(lr=self.beta)
        return (Phase("meta", protocol.local_epochs, optimizer=step, lookahead=self.alpha),)

    def before_test(self, protocol: Protocol, last_round: bool) -> tuple[Phase, ...]:
        if self.adapt_epochs == 0:
            return ()
        step = OptimizerSpec(lr=self.alpha)
        return (Phase("adapt", self.adapt_epochs, optimizer=step, steps=self.adapt_steps),)

    def evaluated_models(self, layout: dict[str, TensorInfo]) -> tuple[str, ...]:  # type: ignore[override]
        return ("personal",) if self.adapt_epochs else super().evaluated_models(layout)
