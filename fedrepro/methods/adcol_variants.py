"""The variants of ADCOL's appendix, and its form in FedPall's code."""

from typing import Literal, cast

import torch
from torch import Tensor, nn

import fedrepro.methods.api as fl
from fedrepro.methods.adcol import ADCOL
from fedrepro.models.networks import Panel, ResNetDiscriminator


class ADCOLVariants(ADCOL):
    """With `two_stages` a round of the paper is two rounds of the protocol with the same clients
    (`stay: 2`). In odd rounds they train without D and send, and D learns; in even rounds they
    train with D. All of D is counted as sent in every round."""

    discriminator_activation: bool = fl.hyper(
        True, "Sec. B.15: False is the linear function of Table 19", "stated"
    )
    discriminator_batch_norm: bool = fl.hyper(
        False, "Sec. 5.1 names none; FL-bench, FedPall code: in hidden layers", "inferred"
    )
    share_predictor: bool = fl.hyper(
        False, "Sec. B.10, Table 14; its BatchNorm as bn_policy says", "stated", later=True
    )
    discriminators: int = fl.hyper(
        1, "Sec. B.6, Eq. 18, Table 10: past ones too", "stated", (2, 10, 20), low=1, later=True
    )
    discriminator_network: Literal["mlp", "resnet50"] = fl.hyper(
        "mlp", "Sec. B.6, Table 9; its picture is not stated", "stated", later=True
    )
    two_stages: bool = fl.hyper(
        False, "Sec. B.14, Table 18: D as wide as the clients drawn", "stated", later=True
    )
    closing_pass: bool = fl.hyper(
        False,
        "Sec. 3.4, step 3 feeds the data after training; FedPall code: of one more pass over "
        "augmented images in training mode, which BatchNorm follows",
        "decided",
        later=True,
    )
    discriminator_weight_decay: float | None = fl.hyper(
        None, "Sec. 5.1: clients'; FedPall code: 1e-5", "inferred", (1e-5,), later=True
    )
    keep_representations: bool = fl.hyper(
        False, "Sec. B.5 does not say; FL-bench's code does not", "code", (True,), later=True
    )

    def shares(self, tensor: fl.TensorInfo) -> bool:
        return self.share_predictor and tensor.part == "predictor"

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        return (*super().phases(protocol), *([fl.CLOSING] if self.closing_pass else []))

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        terms = super().client_loss(model, batch, received)
        if self.two_stages:
            terms["kl"] = received["schedule"] * terms["kl"]
        return terms

    def init_server(self, server: fl.Server) -> None:
        super().init_server(server)
        if self.discriminators > 1:
            members = [self.new_discriminator(server) for _ in range(self.discriminators)]
            server.add_module("panel", Panel(members))

    def new_discriminator(self, server: fl.Server) -> nn.Module:
        outputs = server.clients
        if self.two_stages:
            outputs = max(1, round(server.protocol.participation * outputs))
        if self.discriminator_network == "resnet50":
            return ResNetDiscriminator(server.feature_size, outputs)
        batch_norm, activation = self.discriminator_batch_norm, self.discriminator_activation
        hidden = self.discriminator_hidden
        return fl.discriminator(server.feature_size, outputs, hidden, batch_norm, activation)

    def download(self, server: fl.Server, client: int) -> fl.Message:
        message = super().download(server, client)
        if self.discriminators > 1:
            message["discriminator"] = server.network("panel", self.discriminator_in_training_mode)
        if self.two_stages:
            stage = torch.tensor(float(server.round % 2 == 0), dtype=server.dtype)
            message["schedule"] = stage.to(server.device)
        return message

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        if self.two_stages and client.received["schedule"] > 0:
            return {}
        return super().upload(client)

    def reads(self, client: fl.TrainedClient) -> tuple[bool, fl.Augmentation | None]:
        mode, _ = super().reads(client)
        return mode, client.augmentation if self.closing_pass else None

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        if self.two_stages and server.round % 2 == 0:
            return
        super().server_step(server, uploads)
        if self.discriminators > 1:
            panel = cast(Panel, server.modules["panel"])
            panel.take(server.modules["discriminator"], first=server.round == 1)

    def learn(self, server: fl.Server, z: Tensor, owner: Tensor) -> None:
        if self.keep_representations:  # the last ones of each client
            for client in owner.unique().tolist():
                server.tensors[f"kept/{client}"] = z[owner == client]
            kept = {name[5:]: t for name, t in server.tensors.items() if name.startswith("kept/")}
            z = torch.cat(list(kept.values()))
            owner = torch.cat([torch.full((len(t),), int(n)) for n, t in kept.items()])
        super().learn(server, z, owner)

    def owners(self, uploads: fl.Uploads) -> list[int]:
        return list(range(len(uploads))) if self.two_stages else super().owners(uploads)

    def optimizer(self, protocol: fl.Protocol) -> fl.OptimizerSpec:
        spec, decay = super().optimizer(protocol), self.discriminator_weight_decay
        return spec if decay is None else spec.model_copy(update={"weight_decay": decay})
