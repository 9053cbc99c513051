"""FedBN with client-level differential privacy, compared with ADCOL in its Table 17."""

from typing import Literal

import torch

import fedrepro.methods.api as fl
from fedrepro.base.rng import torch_stream
from fedrepro.extras.dp import clipped, noise, noise_multiplier
from fedrepro.federated.clients import turns_of


class DPFedBN(fl.Method):
    """FedBN with clipped updates and noise. Li et al., ADCOL, Sec. B.12.

    Curious server: each client adds Laplace noise of scale clip / e to every value it sends, with
    e = epsilon / k for the k rounds it participates in (privacy losses add up). Trusted server: the
    average of the clipped updates gets Gaussian noise, by an accountant over all rounds (DP-FedAvg
    of McMahan et al. 2017), scaled by the client with the largest weight. BatchNorm stays local.
    """

    name = "DP-FedBN"
    reference = "li2023adcol"
    equations = (
        r"\Delta_i = (w_i - w) \cdot \min\big(1, C / \lVert w_i - w \rVert\big)",
        r"\tilde\Delta_i = \Delta_i + \mathrm{Lap}(0, C k / \epsilon)",
    )

    epsilon: float = fl.hyper(
        5.0, "ADCOL, Sec. B.12: the budget of the whole run", "stated", (2.0, 10.0), low=1e-6
    )
    server_is: Literal["curious", "trusted"] = fl.hyper(
        "curious", "ADCOL, Sec. B.12: Table 17; trusted: its text's 66.3 %", "stated"
    )
    clip: float = fl.hyper(0.01, "not stated in ADCOL's paper", "decided", (0.1, 1.0))
    order: float = fl.hyper(
        2.0,
        "under Laplace noise only order 1 gives epsilon-DP of the whole update",
        "decided",
        (1.0,),
        low=1,
        text="not stated in ADCOL's paper: the usual norm of an update",
    )
    delta: float = fl.hyper(
        0.01, "ADCOL, Sec. B.12: at most 0.01 (trusted server)", "stated", high=1
    )
    bn_policy: fl.BNPolicy = fl.hyper("local", "FedBN, Alg. 1: the method itself", "stated", ())

    def download(self, server: fl.Server, client: int) -> fl.Message:
        part = turns_of(server.protocol, server.clients)
        scale = torch.tensor(self.clip * part / self.epsilon, dtype=server.dtype)
        return {"schedule": scale.to(server.device)}

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        before = client.received["model"]
        update = {name: client.state[name] - value for name, value in before.items()}
        update = clipped(update, self.clip, self.order)
        if self.server_is == "curious":
            scale = float(client.received["schedule"])
            for name, value in update.items():
                update[name] = value + noise(value, scale, "laplace", client.generator)
        return {"model": {name: before[name] + value for name, value in update.items()}}

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        if self.server_is != "trusted":
            return
        rate = len(uploads) / server.clients
        sigma = noise_multiplier(self.epsilon, self.delta, rate, server.protocol.rounds)
        generator = torch_stream(server.seed, "server", round=server.round)
        heaviest = max(self.weights(server.protocol, [upload.n for upload in uploads]))
        for name, info in server.layout.items():
            if self.travels(info):
                value = server.model[name]
                shaken = noise(value, sigma * self.clip * heaviest, "gaussian", generator)
                server.model[name] = value + shaken
