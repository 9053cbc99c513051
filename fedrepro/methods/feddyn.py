"""FedAvg with dynamic regularisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedrepro.base.protocol import Protocol
from fedrepro.methods.base import (
    BN_POLICIES,
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    TrainedClient,
    Upload,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, feddyn_linear, proximal
from fedrepro.methods.messages import Message, tensors_of
from fedrepro.methods.server import Server, under


@dataclass(frozen=True)
class FedDyn(Method):
    """FedAvg whose clients' objectives are bent until their optima agree.

    "dynamic", Acar et al. 2021, Alg. 1: client i minimises CE - <g_i, w> + (alpha/2) ||w - w_t||^2
    and then sets g_i <- g_i - alpha (w_i - w_t); the server sets s <- s - (alpha/m) sum_i (w_i -
    w_t), m all clients, and sends mean(w_i) - s/alpha. Kept here are -g_i/alpha and -s/alpha: sums
    of past moves. g_i stays at its client, so the traffic is FedAvg's. Clients count equally, as
    the derivation needs. BatchNorm's running statistics are plainly averaged. What is tested is
    what the server sends; the authors' code tests plain means instead, of the round's clients and
    of all clients' last networks. It also divides alpha by a client's relative number of
    images and clips gradients; neither is in Alg. 1 or here.

    "inert": the penalty is written in the received network's parameters, which the local
    optimiser does not own, and the server averages plainly. It has no gradient, so it is left
    out: round for round this is FedAvg.
    """

    name: ClassVar[str] = "FedDyn"
    reference: ClassVar[str] = "acar2021feddyn"
    equations: ClassVar[tuple[str, ...]] = (
        r"\mathrm{CE} - \langle g_i, w \rangle + \frac{\alpha}{2} \lVert w - w^t \rVert^2",
        r"g_i \leftarrow g_i - \alpha (w_i - w^t)",
        r"s \leftarrow s - \alpha \cdot \mathrm{mean}_i (w_i - w^t), \quad w^{t+1} = "
        r"\mathrm{mean}_i w_i - s / \alpha",
    )

    form: Literal["dynamic", "inert"] = hyper(
        "dynamic",
        source="Acar et al., Alg. 1; inert is what RethinkFL and MarsFL code do, whose family "
        "I2PFL's tables come from",
        status="stated",
        alternatives=("inert",),
    )
    alpha: float = hyper(
        0.01,
        source="CIFAR-10 example of the authors' code and MarsFL code; FL-bench code 0.1; PFLlib 1",
        status="code",
        alternatives=(0.1, 0.001, 1.0),
        low=1e-6,
    )
    bn_policy: BNPolicy = hyper(
        "average",
        source="RethinkFL code; the authors' networks have no BatchNorm",
        status="code",
        alternatives=BN_POLICIES[1:],
    )

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        terms = {"ce": cross_entropy(model(batch.x).logits, batch.y)}
        if self.form == "dynamic":
            moved = tensors_of(received, "memory")
            bent = {name: value for name, value in model.params.items() if name in moved}
            terms["linear"] = self.alpha * feddyn_linear(bent, moved)
            terms["prox"] = self.alpha * proximal(bent, tensors_of(received, "model"))
        return terms

    def weights(self, protocol: Protocol, counts: Sequence[int]) -> list[float]:
        if self.form == "inert":
            return super().weights(protocol, counts)
        return [1 / len(counts)] * len(counts)

    def bent(self, server: Server) -> list[str]:
        """Names of the parameters that travel: those the regularisation is about."""
        return [n for n, t in server.layout.items() if self.travels(t) and not t.is_buffer]

    def first_memory(self, server: Server) -> dict[str, Tensor]:
        if self.form == "inert":
            return {}
        return {name: torch.zeros_like(server.model[name]) for name in self.bent(server)}

    def remember(self, client: TrainedClient) -> dict[str, Tensor]:
        start = tensors_of(client.received, "model")
        moved = tensors_of(client.received, "memory")
        return {
            name: value.to(start[name].device) + client.state[name] - start[name]
            for name, value in moved.items()
        }

    def init_server(self, server: Server) -> None:
        if self.form == "dynamic":
            for name in self.bent(server):
                server.tensors[f"sent/{name}"] = server.model[name]
                server.tensors[f"moved/{name}"] = torch.zeros_like(server.model[name])

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        if self.form == "inert":
            return
        part = len(uploads) / server.clients
        for name, sent in under(server.tensors, "sent/").items():
            moved = server.tensors[f"moved/{name}"] + part * (server.model[name] - sent)
            server.tensors[f"moved/{name}"] = moved
            server.model[name] = server.model[name] + moved
            server.tensors[f"sent/{name}"] = server.model[name]
