"""Shared representation, own head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedrepro.base.protocol import Protocol
from fedrepro.methods.base import BN_POLICIES, BNPolicy, Method, Phase, hyper
from fedrepro.models import TensorInfo


@dataclass(frozen=True)
class FedRep(Method):
    """The representation is averaged, the prediction head stays with its client.

    Each round trains the head with the representation frozen, then the representation with the
    head frozen; Collins et al. 2021, Alg. 1. Each client's network is tested on its own domain.
    BatchNorm statistics of the frozen part still follow the batches, as in the authors' code.
    """

    name: ClassVar[str] = "FedRep"
    reference: ClassVar[str] = "collins2021fedrep"
    equations: ClassVar[tuple[str, ...]] = (
        r"h_i \leftarrow \arg\min_h \mathrm{CE}\big(h(f(x)), y\big)",
        r"f_i \leftarrow \arg\min_f \mathrm{CE}\big(h_i(f(x)), y\big)",
        r"f^{t+1} = \sum_i \frac{n_i}{n} f_i",
    )

    head_epochs: int | None = hyper(
        None,
        source="the protocol's local epochs, as FedPall code; the authors' code has 10",
        status="code",
        alternatives=(10,),
        low=1,
    )
    body_epochs: int = hyper(
        1, source="authors' code and FedPall code", status="code", alternatives=(5, 10), low=1
    )
    shared: Literal["representation", "predictor"] = hyper(
        "representation",
        source="Collins et al., Alg. 1; ADCOL Sec. 5.1 says the prediction layers are shared",
        status="stated",
        alternatives=("predictor",),
    )
    final_head_epochs: int = hyper(
        10,
        source="authors' code trains the heads 10 epochs after the last round",
        status="code",
        alternatives=(0,),
        low=0,
    )
    bn_policy: BNPolicy = hyper(
        "average",
        source="FedPall code averages the encoder's statistics",
        status="code",
        alternatives=BN_POLICIES[1:],
    )

    def is_head(self, tensor: TensorInfo) -> bool:
        """Whether a tensor belongs to the part that stays with the client."""
        return (tensor.part == "predictor") == (self.shared == "representation")

    def is_body(self, tensor: TensorInfo) -> bool:
        """Whether a tensor belongs to the shared part."""
        return not self.is_head(tensor)

    def shares(self, tensor: TensorInfo) -> bool:
        return self.is_body(tensor)

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        head = protocol.local_epochs if self.head_epochs is None else self.head_epochs
        return (
            Phase("head", head, trains=self.is_head),
            Phase("body", self.body_epochs, trains=self.is_body),
        )

    def before_test(self, protocol: Protocol, last_round: bool) -> tuple[Phase, ...]:
        if last_round and self.final_head_epochs:
            return (Phase("final-head", self.final_head_epochs, trains=self.is_head),)
        return ()
