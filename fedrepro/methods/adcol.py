"""Adversarial collaborative learning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrepro.losses import cross_entropy, kl_from_uniform
from fedrepro.messages import Message, network_of, tensor_of
from fedrepro.methods.base import (
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    TrainedClient,
    Upload,
    hyper,
)
from fedrepro.models import TensorInfo, discriminator
from fedrepro.protocol import OptimizerSpec
from fedrepro.server import Server


@dataclass(frozen=True)
class ADCOL(Method):
    """Each client keeps its whole network; only representations and a discriminator travel.

    Clients minimise CE + mu KL(U || D(z)) (Eq. 2) against the received discriminator D; the server
    trains D to tell whose representation z it sees (Eq. 4). Li et al., ADCOL, Alg. 1. No tensor of
    a client's network is ever averaged. Each client's network is tested on its own domain.
    """

    name: ClassVar[str] = "ADCOL"
    reference: ClassVar[str] = "li2023adcol"
    equations: ClassVar[tuple[str, ...]] = (
        r"\min_{w_i} \; \mathrm{CE}(h(z), y) + \mu \, \mathrm{KL}\big(U \,\Vert\, D(z)\big)",
        r"\mathrm{KL}(U \Vert D) = -\frac{1}{N}\sum_{j=1}^{N} \log\big(N D_j(z)\big)",
        r"\min_{D} \; -\sum_i \sum_{z \in Z_i} \log D_i(z)",
    )

    mu: float = hyper(
        1.0,
        source="Sec. 5.4 calls 1 a good default; Sec. 5.1 tunes it per data set and names no value",
        alternatives=(10.0, 0.1, 0.01, 0.001),
        low=0,
    )
    discriminator_hidden: tuple[int, ...] = hyper(
        (512, 512), source="Sec. 5.1: 3-layer MLP, hidden 512", alternatives=((), (512,))
    )
    discriminator_activation: bool = hyper(
        True, source="Sec. B.15: False is the linear function of Table 19", alternatives=(False,)
    )
    discriminator_batch_norm: bool = hyper(
        False,
        source="Sec. 5.1 names BatchNorm for head and predictor, none here; FL-bench and FedPall "
        "code put it after both hidden layers",
        alternatives=(True,),
    )
    discriminator_epochs: int = hyper(
        1,
        source="Alg. 1, lines 7-9 show one pass; the paper names no number",
        alternatives=(3,),
        low=1,
    )
    discriminator_lr: float = hyper(
        0.01, source="Alg. 1 uses one symbol for both learning rates", alternatives=(0.001,), low=0
    )
    discriminator_momentum: float = hyper(
        0.9, source="Sec. 5.1 names one optimiser; FL-bench code has 0", alternatives=(0.0,), low=0
    )
    sampling: float = hyper(
        1.0,
        source="Sec. 5.1: no sampling by default; Table 15 varies it",
        alternatives=(0.2, 0.4, 0.6, 0.8),
        low=0.001,
        high=1,
    )
    representations_in_training_mode: bool = hyper(
        False,
        source="Sec. 3.4, step 3 feeds the data after training; FedPall code in training mode",
        alternatives=(True,),
    )
    bn_policy: BNPolicy = hyper("local", source="nothing is averaged (Alg. 1)")

    def shares(self, tensor: TensorInfo) -> bool:
        return False

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        guess = network_of(received, "discriminator")(out.features)
        return {
            "ce": cross_entropy(out.logits, batch.y),
            "kl": self.mu * kl_from_uniform(guess),
        }

    def init_server(self, server: Server) -> None:
        server.add_module(
            "discriminator",
            discriminator(
                server.feature_size,
                server.clients,
                hidden=self.discriminator_hidden,
                batch_norm=self.discriminator_batch_norm,
                activation=self.discriminator_activation,
            ),
        )

    def download(self, server: Server, client: int) -> Message:
        return {"discriminator": server.network("discriminator")}

    def upload(self, client: TrainedClient) -> Message:
        z = client.features(training=self.representations_in_training_mode)
        if self.sampling < 1:
            chosen = torch.randperm(len(z), generator=client.generator)
            z = z[chosen[: math.ceil(self.sampling * len(z))].to(z.device)]
        return {"representations": z}

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        z = [tensor_of(upload.message, "representations") for upload in uploads]
        owner = [torch.full((len(r),), u.client) for r, u in zip(z, uploads, strict=True)]
        server.fit(
            "discriminator",
            torch.cat(z),
            torch.cat(owner),
            epochs=self.discriminator_epochs,
            optimizer=OptimizerSpec(
                lr=self.discriminator_lr,
                momentum=self.discriminator_momentum,
                weight_decay=server.protocol.optimizer.weight_decay,
            ),
        )
