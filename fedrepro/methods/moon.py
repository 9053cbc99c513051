"""FedAvg with a contrast between networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrepro.methods.base import (
    BN_POLICIES,
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    TrainedClient,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, model_contrast
from fedrepro.methods.messages import Message, tensors_of
from fedrepro.methods.server import Server


@dataclass(frozen=True)
class MOON(Method):
    """FedAvg whose clients' features are held near the received network's, away from their own
    previous one's.

    Loss CE + mu times the mean of -log( e^p / (e^p + e^q) ), p the cosine of z with the feature of
    the received network over the temperature, q with that of the network this client ended its last
    round with; Li et al. 2021, Eq. 3 and Alg. 1. The previous network stays at its client, and so
    is no traffic. In the first round it is the received one: the term is mu log 2 and moves
    nothing, as in the authors' code, which has no term there, unless one of the two is in training
    mode and the other is not.

    z is the feature of the protocol's network: after a projection head where that has one (the
    authors add one of 256 values), else the encoder's output, as in all five papers here. Two
    accidents of public code are left out: RethinkFL code's previous networks of the first round
    are random ones, and in FedPall code the previous network is the last that any client trained.
    """

    name: ClassVar[str] = "MOON"
    reference: ClassVar[str] = "li2021moon"
    equations: ClassVar[tuple[str, ...]] = (
        r"\mathrm{CE} - \mu \log \frac{e^{s(z, z_g)/\tau}}{e^{s(z, z_g)/\tau} + e^{s(z, "
        r"z_p)/\tau}}",
        r"z_g, z_p:\ \text{features under the received and the client's previous network}",
    )

    mu: float = hyper(
        1.0,
        source="default of the authors' code, whose example has 5; FedPall code 1; RethinkFL code, "
        "which I2PFL and FedAPC follow, 5; MPFT Sec. C.2 0.001",
        status="code",
        alternatives=(5.0, 0.001, 0.1, 10.0),
        low=0,
    )
    temperature: float = hyper(
        0.5,
        source="authors' code and RethinkFL code; FedPall code and MPFT have 1",
        status="code",
        alternatives=(1.0,),
        low=0.001,
    )
    references_in_training_mode: bool = hyper(
        False,
        source="authors' code: both references in evaluation mode; in RethinkFL code BatchNorm "
        "uses the batch's own statistics there too",
        status="code",
        alternatives=(True,),
    )
    previous_in_training_mode: bool | None = hyper(
        None,
        source="the previous network alone; None: as the received one. FedPall code: in training "
        "mode beside a received one in evaluation mode, so that the first round has a contrast",
        status="code",
        alternatives=(True, False),
        later=True,
    )
    second_pass: bool = hyper(
        False,
        source="RethinkFL code passes every batch through the network twice: BatchNorm's running "
        "statistics follow it twice a step, and nothing else changes",
        status="code",
        alternatives=(True,),
        later=True,
    )
    bn_policy: BNPolicy = hyper(
        "average", source="authors' code", status="code", alternatives=BN_POLICIES[1:]
    )

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        previous = tensors_of(received, "memory")
        # What does not travel, such as local BatchNorm, is the client's own in both.
        shared = {**previous, **tensors_of(received, "model")}
        out = model(batch.x)
        if self.second_pass:
            with torch.no_grad():
                model(batch.x)
        mode, other = self.references_in_training_mode, self.previous_in_training_mode
        ahead = model.run(shared, batch.x, training=mode).features
        behind = model.run(previous, batch.x, training=mode if other is None else other).features
        return {
            "ce": cross_entropy(out.logits, batch.y),
            "contrast": self.mu * model_contrast(out.features, ahead, behind, self.temperature),
        }

    def first_memory(self, server: Server) -> dict[str, Tensor]:
        return dict(server.model)

    def remember(self, client: TrainedClient) -> dict[str, Tensor]:
        return dict(client.state)
