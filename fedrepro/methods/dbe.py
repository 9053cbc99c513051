"""Domain bias eliminator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedrepro.base.protocol import Protocol
from fedrepro.methods.base import (
    BN_POLICIES,
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    Phase,
    TrainedClient,
    Upload,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, mean_regulariser
from fedrepro.methods.messages import Message, tensor_of, tensors_of
from fedrepro.methods.server import Server
from fedrepro.models import FLModel, Output, TensorInfo


class Shifted(Output):
    """features z, logits of z + m, and what the regulariser reads: the running mean (d,), with
    this batch's gradient, and whether m is in use yet, 0 or 1."""

    running: Tensor
    started: Tensor


class ShiftedModel(FLModel):
    """A network whose predictor reads z + m, m being a client's own trained vector.

    running_mean: r <- (1 - momentum) r + momentum mean(z) at every training batch.
    """

    running_mean: Tensor
    started: Tensor

    def __init__(self, module: FLModel, momentum: float) -> None:
        super().__init__(module.encoder, module.projection, module.predictor, module.feature_size)
        self.memory_format = module.memory_format
        self.momentum = momentum
        self.client_mean = nn.Parameter(torch.zeros(module.feature_size))
        self.register_buffer("running_mean", torch.zeros(module.feature_size))
        self.register_buffer("started", torch.zeros(()))

    def forward(self, x: Tensor) -> Shifted:
        z: Tensor = self.projection(self.encoder(x))
        out = Shifted(z, self.predictor(z + self.started * self.client_mean))
        batch_mean = z.to(self.running_mean.dtype).mean(dim=0)
        out.running = (1 - self.momentum) * self.running_mean + self.momentum * batch_mean
        out.started = self.started
        if self.training:
            self.running_mean.copy_(out.running.detach())
        return out


@dataclass(frozen=True)
class DBE(Method):
    """FedAvg with a trained vector m of each client added to its features, and a common mean.

    Loss CE(h(z + m)) + kappa/2 mean_d (r - g)^2: r is the running mean of a round's features, g
    that of all clients, weighted by their images, from a first round without m and without the
    regulariser. m stays with its client and starts at 0. Zhang et al. 2023 and the authors' code.
    Each client's network is tested on its own domain.

    m has the protocol's optimiser unless it is given a rate, where that code takes plain gradient
    steps. What round 1 trained
    serves g alone, but its networks are counted as sent. g is sent to each client once. Where z
    ends in BatchNorm a batch's mean is that layer's bias, and so all that the regulariser reaches.
    """

    name: ClassVar[str] = "DBE"
    reference: ClassVar[str] = "zhang2023dbe"
    equations: ClassVar[tuple[str, ...]] = (
        r"\mathrm{CE}\big(h(z + m_i), y\big) + \frac{\kappa}{2 d} \lVert r_i - \bar g \rVert^2",
        r"r_i \leftarrow (1 - \mu) \, r_i + \mu \, \mathrm{mean}(z)",
    )

    kappa: float = hyper(
        1.0,
        source="MPFT Sec. C.2 and its code: 1; the authors' example has 50",
        status="stated",
        alternatives=(50.0, 0.0),
        low=0,
    )
    momentum: float = hyper(
        0.01,
        source="MPFT Sec. C.2 and its code: 0.01; the authors' example has 1, PFLlib code 0.1",
        status="stated",
        alternatives=(1.0, 0.1),
        low=0,
        high=1,
    )
    first_round: Literal["discarded", "averaged"] = hyper(
        "discarded",
        source="authors' code then starts from the initial network; MPFT code lets each client go "
        "on from its own, nearest to which is the average",
        status="code",
        alternatives=("averaged",),
    )
    mean_lr: float | None = hyper(
        None,
        source="None: m is one of the network's parameters; MPFT code: AdamW of its own at a "
        "steady 0.001, its gradient shortened by itself",
        status="decided",
        alternatives=(0.001,),
        low=1e-6,
        later=True,
    )
    stops_by: Literal["personal", "common"] = hyper(
        "personal",
        source="the networks that are tested; MPFT code leaves m out of the validation loss",
        status="decided",
        alternatives=("common",),
        later=True,
    )
    bn_policy: BNPolicy = hyper(
        "average", source="as FedAvg", status="inferred", alternatives=BN_POLICIES[1:]
    )

    def network(self, module: FLModel) -> FLModel:
        return ShiftedModel(module, self.momentum)

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        spec = protocol.optimizer
        own = {"warmup": 0, "cosine": None, "lr": self.mean_lr}
        apart = (("client_mean", spec.model_copy(update=own)),) if self.mean_lr else ()
        return (Phase("local", protocol.local_epochs, apart=apart),)

    def watched(self) -> str | None:
        # The server's network has 0 for m.
        return "global" if self.stops_by == "common" else None

    def shares(self, tensor: TensorInfo) -> bool:
        return tensor.part != "own"

    def overwrites(self, tensor: TensorInfo) -> bool:
        # A client begins each round with the server's untouched 0 as running mean, and learns
        # from the round's number whether m is in use: neither is sent.
        return self.broadcast(tensor) or tensor.name in ("running_mean", "started")

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        assert isinstance(out, Shifted)
        distance = mean_regulariser(out.running, self.common_mean(received))
        return {
            "ce": cross_entropy(out.logits, batch.y),
            "mean": self.kappa * out.started * distance,
        }

    def common_mean(self, received: Message) -> Tensor:
        """g (d,) as it comes or as the client remembers it; zeros before there is one."""
        if "common_mean" in received:
            return tensor_of(received, "common_mean")
        return tensors_of(received, "memory")["common_mean"]

    def first_memory(self, server: Server) -> dict[str, Tensor]:
        return {"common_mean": server.tensors["common_mean"]}

    def remember(self, client: TrainedClient) -> dict[str, Tensor]:
        return {"common_mean": self.common_mean(client.received)}

    def init_server(self, server: Server) -> None:
        size, place = server.feature_size, server.device
        server.tensors["common_mean"] = torch.zeros(size, dtype=server.dtype, device=place)
        server.tensors["told"] = torch.zeros(server.clients, dtype=torch.bool, device=place)
        if self.first_round == "discarded":
            sent = {n: v for n, v in server.model.items() if self.travels(server.layout[n])}
            server.tensors |= {f"initial/{name}": value for name, value in sent.items()}

    def download(self, server: Server, client: int) -> Message:
        if server.round == 1 or server.tensors["told"][client]:
            return {}
        return {"common_mean": server.tensors["common_mean"]}

    def upload(self, client: TrainedClient) -> Message:
        return {} if client.state["started"] else {"running_mean": client.state["running_mean"]}

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        if server.round > 1:
            server.tensors["told"][[upload.client for upload in uploads]] = True
            return
        n = sum(upload.n for upload in uploads)
        means = [upload.n / n * tensor_of(upload.message, "running_mean") for upload in uploads]
        server.tensors["common_mean"] = torch.stack(means).sum(dim=0)
        server.model["started"] = torch.ones_like(server.model["started"])
        for name in [n for n in server.model if f"initial/{n}" in server.tensors]:
            server.model[name] = server.tensors.pop(f"initial/{name}")
