from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.methods.server import under


class FedDyn(fl.Method):
    """FedAvg that corrects each client's objective until all clients share one optimum.

    "dynamic", Acar et al. 2021, Alg. 1: client i minimises CE - <g_i, w> + (alpha/2) ||w - w_t||^2
    and then sets g_i <- g_i - alpha (w_i - w_t); the server sets s <- s - (alpha/m) sum_i (w_i -
    w_t), m all clients, and sends mean(w_i) - s/alpha, which is tested. Stored are -g_i/alpha and
    -s/alpha: sums of past updates. g_i stays at its client, so the traffic is FedAvg's. Clients
    have equal weights, as the derivation needs; BatchNorm's running statistics have a plain
    average. The authors' code tests plain means, divides alpha by a client's relative number of
    images and clips gradients; Alg. 1 does not, and neither does this class.

    "inert": the penalty depends on the received network's parameters, which the local optimiser
    does not train. It has no gradient and is left out. The server takes plain averages: FedAvg.
    """

    name = "FedDyn"
    reference = "acar2021feddyn"
    equations = (
        r"\mathrm{CE} - \langle g_i, w \rangle + \frac{\alpha}{2} \lVert w - w^t \rVert^2",
        r"g_i \leftarrow g_i - \alpha (w_i - w^t)",
        r"s \leftarrow s - \alpha \cdot \mathrm{mean}_i (w_i - w^t), \quad w^{t+1} = "
        r"\mathrm{mean}_i w_i - s / \alpha",
    )

    form: Literal["dynamic", "inert"] = fl.hyper(
        "dynamic", "Acar et al., Alg. 1; RethinkFL (I2PFL's tables): inert", "stated"
    )
    alpha: float = fl.hyper(
        0.01, "authors, MarsFL; FL-bench 0.1; PFLlib 1", "code", (0.1, 0.001, 1.0), low=1e-6
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "RethinkFL code; the authors have none", "code")

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        terms = {"ce": fl.cross_entropy(model(batch.x).logits, batch.y)}
        if self.form == "dynamic":
            g = received["memory"]  # -g_i / alpha
            products = [(g[name] * v).sum() for name, v in model.params.items() if name in g]
            terms["linear"] = self.alpha * torch.stack(products).sum()
            terms["prox"] = self.alpha * fl.losses.proximal(model.params, received["model"])
        return terms

    def weights(self, protocol: fl.Protocol, counts: Sequence[int]) -> list[float]:
        if self.form == "inert" or protocol.weighting == "tensors":
            return super().weights(protocol, counts)
        return [1 / len(counts)] * len(counts)

    def bent(self, server: fl.Server) -> list[str]:
        """Names of the shared parameters, which are regularised if "dynamic"."""
        shared = [n for n, t in server.layout.items() if self.travels(t) and not t.is_buffer]
        return shared if self.form == "dynamic" else []

    def first_memory(self, server: fl.Server) -> dict[str, Tensor]:
        return {name: torch.zeros_like(server.model[name]) for name in self.bent(server)}

    def remember(self, client: fl.TrainedClient) -> dict[str, Tensor]:
        start, moved = client.received["model"], client.received["memory"]
        return {
            name: value.to(start[name].device) + client.state[name] - start[name]
            for name, value in moved.items()
        }

    def init_server(self, server: fl.Server) -> None:
        for name in self.bent(server):
            server.tensors[f"sent/{name}"] = server.model[name]
            server.tensors[f"moved/{name}"] = torch.zeros_like(server.model[name])

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        part = len(uploads) / server.clients
        for name, sent in under(server.tensors, "sent/").items():
            moved = server.tensors[f"moved/{name}"] + part * (server.model[name] - sent)
            server.tensors[f"moved/{name}"] = moved
            server.model[name] = server.model[name] + moved
            server.tensors[f"sent/{name}"] = server.model[name]
