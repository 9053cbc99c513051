"""Domain bias eliminator."""

import torch
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.models import Shifted, ShiftedModel


class DBE(fl.Method):
    """FedAvg with a trained vector m of each client added to its features, and a common mean.

    Loss CE(h(z + m)) + kappa/2 mean_d (r - g)^2: r is the running mean of a round's features; g
    is that of all clients, weighted by their images. g comes from a first round without m and
    without the regulariser; its networks are counted as sent. m starts at 0, stays at its client
    and has the protocol's optimiser (plain gradient steps in the authors' code). Zhang et al. 2023
    and that code. g is sent to each client once. Each client's network is tested on its own domain.

    If z ends in BatchNorm, a batch's mean is that layer's bias, so the regulariser changes only
    this bias.
    """

    name = "DBE"
    reference = "zhang2023dbe"
    equations = (
        r"\mathrm{CE}\big(h(z + m_i), y\big) + \frac{\kappa}{2 d} \lVert r_i - \bar g \rVert^2",
        r"r_i \leftarrow (1 - \mu) \, r_i + \mu \, \mathrm{mean}(z)",
    )

    kappa: float = fl.hyper(
        1.0, "MPFT Sec. C.2 and code", "stated", (50.0, 0.0), code="the authors' example: 50"
    )
    momentum: float = fl.hyper(
        0.01, "MPFT and code", "stated", (1.0, 0.1), high=1, code="authors' example 1, PFLlib 0.1"
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "as FedAvg", "inferred")

    def network(self, module: fl.FLModel) -> fl.FLModel:
        return ShiftedModel(module, self.momentum)

    def shares(self, tensor: fl.TensorInfo) -> bool:
        return tensor.part != "own"

    def overwrites(self, tensor: fl.TensorInfo) -> bool:
        # A client begins each round with the server's unchanged 0 as running mean, and knows
        # from the round's number whether m is in use: neither is sent.
        return self.broadcast(tensor) or tensor.name in ("running_mean", "started")

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        assert isinstance(out, Shifted)
        apart = fl.losses.wide(out.running) - self.common_mean(received)
        distance = 0.5 * apart.square().mean()  # the factor is PFLlib's code's
        ce = fl.cross_entropy(out.logits, batch.y)
        return {"ce": ce, "mean": self.kappa * out.started * distance}

    def common_mean(self, received: fl.Message) -> Tensor:
        """g (d,) from the message or the client's memory; zeros before there is one."""
        holder = received if "common_mean" in received else received["memory"]
        mean: Tensor = holder["common_mean"]
        return mean

    def first_memory(self, server: fl.Server) -> dict[str, Tensor]:
        return {"common_mean": server.tensors["common_mean"]}

    def remember(self, client: fl.TrainedClient) -> dict[str, Tensor]:
        return {"common_mean": self.common_mean(client.received)}

    def init_server(self, server: fl.Server) -> None:
        zeros = torch.zeros(server.feature_size, dtype=server.dtype, device=server.device)
        told = torch.zeros(server.clients, dtype=torch.bool, device=server.device)
        server.tensors |= {"common_mean": zeros, "told": told}
        sent = {n: v for n, v in server.model.items() if self.travels(server.layout[n])}
        server.tensors |= {f"initial/{name}": value for name, value in sent.items()}

    def download(self, server: fl.Server, client: int) -> fl.Message:
        if server.round == 1 or server.tensors["told"][client]:
            return {}
        return {"common_mean": server.tensors["common_mean"]}

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        return {} if client.state["started"] else {"running_mean": client.state["running_mean"]}

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        if server.round > 1:
            server.tensors["told"][[upload.client for upload in uploads]] = True
            return
        n = sum(upload.n for upload in uploads)
        means = [upload.n / n * upload.message["running_mean"] for upload in uploads]
        server.tensors["common_mean"] = torch.stack(means).sum(dim=0)
        server.model["started"] = torch.ones_like(server.model["started"])
        for name in [n for n in server.model if f"initial/{n}" in server.tensors]:
            server.model[name] = server.tensors.pop(f"initial/{name}")
