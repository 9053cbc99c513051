"""Adversarial collaborative learning."""

import math

import torch
from torch import Tensor, nn

import fedrepro.methods.api as fl


class ADCOL(fl.Method):
    """Each client keeps its whole network; only representations and a discriminator are sent.

    Clients minimise CE + mu KL(U || D(z)) (Eq. 2) against the received discriminator D; the server
    trains D to predict the client of a representation z (Eq. 4). Li et al., ADCOL, Alg. 1. No
    tensor of a client's network is averaged. Each client's network is tested on its own domain.
    The log has D's accuracy on new uploads before it learns from them.
    """

    name = "ADCOL"
    reference = "li2023adcol"
    averages = False
    equations = (
        r"\min_{w_i} \; \mathrm{CE}(h(z), y) + \mu \, \mathrm{KL}\big(U \,\Vert\, D(z)\big)",
        r"\mathrm{KL}(U \Vert D) = -\frac{1}{N}\sum_{j=1}^{N} \log\big(N D_j(z)\big)",
        r"\min_{D} \; -\sum_i \sum_{z \in Z_i} \log D_i(z)",
    )

    mu: float = fl.hyper(1.0, "Sec. 5.4; Sec. 5.1 names none", "stated", (10.0, 0.1, 0.01, 0.001))
    discriminator_hidden: tuple[int, ...] = fl.hyper(
        (512, 512), "Sec. 5.1: 3-layer MLP, hidden 512", "stated", ((), (512,))
    )
    discriminator_epochs: int = fl.hyper(
        1,
        "not stated; Alg. 1: one pass, B.12: few steps do; for many: Fig. 8, Table 13",
        "inferred",
        (3, 30),
        low=1,
    )
    discriminator_lr: float = fl.hyper(
        0.01, "Alg. 1: one symbol for both learning rates", "inferred", (0.001,), low=1e-6
    )
    discriminator_momentum: float = fl.hyper(
        0.9, "Sec. 5.1 names one optimiser", "inferred", (0.0,), code="FL-bench: 0", high=0.999
    )
    sampling: float = fl.hyper(
        1.0, "Sec. 5.1: none; Table 15 varies it", "stated", (0.2, 0.4, 0.6, 0.8), low=0.001, high=1
    )
    representations_in_training_mode: bool = fl.hyper(
        True,
        "Sec. 3.4 names none; FedPall code; in evaluation mode Office-10's ResNet-50 diverges",
        "code",
    )
    discriminator_in_training_mode: bool = fl.hyper(
        False, "Alg. 1 names no mode; FedPall code: at a client", "decided", later=True
    )
    bn_policy: fl.BNPolicy = fl.hyper("local", "nothing is averaged (Alg. 1)", "stated", ())

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        guess = received["discriminator"](self.shown(out.features))
        ce = fl.cross_entropy(out.logits, batch.y)
        return {"ce": ce, "kl": self.mu * fl.losses.kl_from_uniform(guess)}

    def shown(self, z: Tensor) -> Tensor:
        """The input of D for representations (n, d)."""
        return z

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        z = client.features(*self.reads(client))
        if self.sampling < 1:
            chosen = torch.randperm(len(z), generator=client.generator)
            z = z[chosen[: math.ceil(self.sampling * len(z))].to(z.device)]
        return {"representations": z}

    def reads(self, client: fl.TrainedClient) -> tuple[bool, fl.Augmentation | None]:
        """Mode and augmentation of the features that are sent."""
        return self.representations_in_training_mode, None

    def init_server(self, server: fl.Server) -> None:
        server.add_module("discriminator", self.new_discriminator(server))

    def new_discriminator(self, server: fl.Server) -> nn.Module:
        return fl.discriminator(server.feature_size, server.clients, self.discriminator_hidden)

    def download(self, server: fl.Server, client: int) -> fl.Message:
        network = server.network("discriminator", self.discriminator_in_training_mode)
        return {"discriminator": network}

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        z = [upload.message["representations"] for upload in uploads]
        owner = [torch.full((len(r),), n) for r, n in zip(z, self.owners(uploads), strict=True)]
        data, training = (torch.cat(z), torch.cat(owner)), self.discriminator_in_training_mode
        before = server.accuracy("discriminator", *data, training)
        self.learn(server, *data)
        server.log["discriminator_accuracy_before"] = before

    def owners(self, uploads: fl.Uploads) -> list[int]:
        return [upload.client for upload in uploads]

    def learn(self, server: fl.Server, z: Tensor, owner: Tensor) -> None:
        """Train D on representations (n, d) and their clients (n,)."""
        epochs, optimizer = self.discriminator_epochs, self.optimizer(server.protocol)
        server.fit("discriminator", z, owner, epochs=epochs, optimizer=optimizer)

    def optimizer(self, protocol: fl.Protocol) -> fl.OptimizerSpec:
        decay = protocol.optimizer.weight_decay
        lr, momentum = self.discriminator_lr, self.discriminator_momentum
        return fl.OptimizerSpec(lr=lr, momentum=momentum, weight_decay=decay)
