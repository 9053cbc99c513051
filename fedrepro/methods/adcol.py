"""Adversarial collaborative learning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.extras.dp import Budget, Noise, fit, into_unit_range, noise
from fedrepro.methods.base import (
    CLOSING,
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    Phase,
    TrainedClient,
    Upload,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, kl_from_uniform
from fedrepro.methods.messages import Message, network_of, tensor_of
from fedrepro.methods.server import Server
from fedrepro.models import TensorInfo, discriminator
from fedrepro.models.discriminators import Panel, ResNetDiscriminator


@dataclass(frozen=True)
class ADCOL(Method):
    """Each client keeps its whole network; only representations and a discriminator travel.

    Clients minimise CE + mu KL(U || D(z)) (Eq. 2) against the received discriminator D; the server
    trains D to tell whose representation z it sees (Eq. 4). Li et al., ADCOL, Alg. 1. No tensor of
    a client's network is ever averaged. Each client's network is tested on its own domain.

    The fields from `share_predictor` on are the paper's own variants (App. B). With `two_stages`
    a round of the paper is two of the protocol's, whose clients stay (`stay: 2`): in the odd one
    they train without D and send, D learns, in the even one they train with it. Whatever D is made
    of is counted as sent whole in every round. The server logs how much of the fresh uploads D
    tells apart before it learns from them (`discriminator_accuracy_before`).
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
        status="stated",
        alternatives=(10.0, 0.1, 0.01, 0.001),
        low=0,
    )
    discriminator_hidden: tuple[int, ...] = hyper(
        (512, 512),
        source="Sec. 5.1: 3-layer MLP, hidden 512",
        status="stated",
        alternatives=((), (512,)),
    )
    discriminator_activation: bool = hyper(
        True,
        source="Sec. B.15: False is the linear function of Table 19",
        status="stated",
        alternatives=(False,),
    )
    discriminator_batch_norm: bool = hyper(
        False,
        source="Sec. 5.1 names BatchNorm for head and predictor, none here; FL-bench and FedPall "
        "code put it after both hidden layers",
        status="inferred",
        alternatives=(True,),
    )
    discriminator_epochs: int = hyper(
        1,
        source="not stated; Alg. 1, lines 7-9 show one pass, and App. B.12 says that few steps do; "
        "for many: App. B.15, Fig. 8 (D reaches zero training loss) and App. B.9, Table 13 (160 s "
        "a round more than FedAvg, far more than one pass over the 3,700 vectors of Digits)",
        status="inferred",
        alternatives=(3, 30),
        low=1,
    )
    discriminator_lr: float = hyper(
        0.01,
        source="Alg. 1 uses one symbol for both learning rates",
        status="inferred",
        alternatives=(0.001,),
        low=0,
    )
    discriminator_momentum: float = hyper(
        0.9,
        source="Sec. 5.1 names one optimiser; FL-bench code has 0",
        status="inferred",
        alternatives=(0.0,),
        low=0,
    )
    sampling: float = hyper(
        1.0,
        source="Sec. 5.1: no sampling by default; Table 15 varies it",
        status="stated",
        alternatives=(0.2, 0.4, 0.6, 0.8),
        low=0.001,
        high=1,
    )
    representations_in_training_mode: bool = hyper(
        True,
        source="Sec. 3.4, step 3 feeds the data after training and names no mode; FedPall code has "
        "this one, in which the clients' KL term shows them to D; in the other the paper's network "
        "on Office-Caltech-10 diverges in round 2",
        status="code",
        alternatives=(False,),
    )
    bn_policy: BNPolicy = hyper("local", source="nothing is averaged (Alg. 1)", status="stated")
    share_predictor: bool = hyper(
        False,
        source="Sec. B.10: True is Table 14's variant; its BatchNorm goes too where bn_policy says",
        status="stated",
        alternatives=(True,),
        later=True,
    )
    discriminators: int = hyper(
        1,
        source="Sec. B.6, Eq. 18: so many past discriminators share the KL term (Table 10)",
        status="stated",
        alternatives=(2, 10, 20),
        low=1,
        later=True,
    )
    discriminator_network: Literal["mlp", "resnet50"] = hyper(
        "mlp",
        source="Sec. B.6: resnet50 is Table 9's; how it reads a vector is not stated",
        status="stated",
        alternatives=("resnet50",),
        later=True,
    )
    two_stages: bool = hyper(
        False,
        source="Sec. B.14: True is Table 18's round, D as wide as the clients drawn; whether D "
        "starts anew with other clients is not stated (it goes on here)",
        status="stated",
        alternatives=(True,),
        later=True,
    )
    epsilon: float | None = hyper(
        None,
        source="Sec. B.12, trusted server: DP-SGD on D within this budget for the whole run; None "
        "is no privacy",
        status="stated",
        alternatives=(2.0, 5.0, 10.0),
        low=0,
        later=True,
    )
    discriminator_in_training_mode: bool = hyper(
        False,
        source="Alg. 1 names no mode; in FedPall code D's BatchNorm takes the client's batch's own "
        "statistics",
        status="decided",
        alternatives=(True,),
        later=True,
    )
    closing_pass: bool = hyper(
        False,
        source="Sec. 3.4, step 3 feeds the data after training; FedPall code makes one more pass "
        "over augmented images in training mode, which BatchNorm follows, and sends its features",
        status="decided",
        alternatives=(True,),
        later=True,
    )
    discriminator_weight_decay: float | None = hyper(
        None,
        source="Sec. 5.1 names one optimiser: the clients'; FedPall code has 1e-5 at the server "
        "and 0 at the clients",
        status="inferred",
        alternatives=(1e-5,),
        low=0,
        later=True,
    )
    delta: float = hyper(
        0.01, source="Sec. B.12: at most 0.01", status="stated", low=0, high=1, later=True
    )
    clip: float = hyper(
        1.0,
        source="Sec. B.12: default parameters, no number; not stated",
        status="decided",
        alternatives=(0.1, 10.0),
        low=0,
        later=True,
    )
    local_epsilon: float | None = hyper(
        None,
        source="Sec. B.12, curious server: normalised representations with noise of scale "
        "1/epsilon a value; the normalisation is not stated (to [0, 1] here, and D reads them so)",
        status="stated",
        alternatives=(2.0, 5.0, 10.0),
        low=0,
        later=True,
    )
    local_noise: Noise = hyper(
        "laplace",
        source="Sec. B.12 writes Gau(0, 1/epsilon), then describes a Laplace distribution",
        status="inferred",
        alternatives=("gaussian",),
        later=True,
    )

    def shares(self, tensor: TensorInfo) -> bool:
        return self.share_predictor and tensor.part == "predictor"

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        return (*super().phases(protocol), *([CLOSING] if self.closing_pass else []))

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        guess = network_of(received, "discriminator")(self._shown(out.features))
        kl = self.mu * kl_from_uniform(guess)
        if self.two_stages:
            kl = tensor_of(received, "schedule") * kl
        return {"ce": cross_entropy(out.logits, batch.y), "kl": kl}

    def _shown(self, z: Tensor) -> Tensor:
        """Representations (n, d) as the server knows them, but for the noise."""
        return z if self.local_epsilon is None else into_unit_range(z)

    def init_server(self, server: Server) -> None:
        outputs = server.clients
        if self.two_stages:
            outputs = max(1, round(server.protocol.participation * outputs))

        def make() -> nn.Module:
            if self.discriminator_network == "resnet50":
                return ResNetDiscriminator(server.feature_size, outputs)
            return discriminator(
                server.feature_size,
                outputs,
                hidden=self.discriminator_hidden,
                batch_norm=self.discriminator_batch_norm,
                activation=self.discriminator_activation,
            )

        server.add_module("discriminator", make())
        if self.discriminators > 1:
            server.add_module("panel", Panel(make, self.discriminators))

    def download(self, server: Server, client: int) -> Message:
        asked = "panel" if self.discriminators > 1 else "discriminator"
        network = server.network(asked, self.discriminator_in_training_mode)
        message: Message = {"discriminator": network}
        if self.two_stages:
            stage = torch.tensor(float(server.round % 2 == 0), dtype=server.dtype)
            message["schedule"] = stage.to(server.device)
        return message

    def upload(self, client: TrainedClient) -> Message:
        if self.two_stages and tensor_of(client.received, "schedule") > 0:
            return {}
        augmentation = client.augmentation if self.closing_pass else None
        z = client.features(self.representations_in_training_mode, augmentation)
        if self.sampling < 1:
            chosen = torch.randperm(len(z), generator=client.generator)
            z = z[chosen[: math.ceil(self.sampling * len(z))].to(z.device)]
        if self.local_epsilon is not None:
            z = self._shown(z)
            z = z + noise(z, 1 / self.local_epsilon, self.local_noise, client.generator)
        return {"representations": z}

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        if self.two_stages and server.round % 2 == 0:
            return
        z = [tensor_of(upload.message, "representations") for upload in uploads]
        names = [i if self.two_stages else u.client for i, u in enumerate(uploads)]
        owner = [torch.full((len(r),), n) for r, n in zip(z, names, strict=True)]
        optimizer = OptimizerSpec(
            lr=self.discriminator_lr,
            momentum=self.discriminator_momentum,
            weight_decay=server.protocol.optimizer.weight_decay
            if self.discriminator_weight_decay is None
            else self.discriminator_weight_decay,
        )
        data, epochs = (torch.cat(z), torch.cat(owner)), self.discriminator_epochs
        before = server.accuracy("discriminator", *data, self.discriminator_in_training_mode)
        if self.epsilon is None:
            server.fit("discriminator", *data, epochs=epochs, optimizer=optimizer)
        else:
            budget = Budget(self.epsilon, self.delta, self.clip)
            fit(server, "discriminator", *data, epochs=epochs, optimizer=optimizer, budget=budget)
        server.log["discriminator_accuracy_before"] = before
        if self.discriminators > 1:
            panel = cast(Panel, server.modules["panel"])
            panel.take(server.modules["discriminator"], first=server.round == 1)
