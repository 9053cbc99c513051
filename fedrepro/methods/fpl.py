"""FedAvg with cluster prototypes and unbiased prototypes."""

from __future__ import annotations

from collections.abc import Sequence
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
    Upload,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, prototype_contrast, prototype_mse
from fedrepro.methods.messages import Message
from fedrepro.methods.prototype_messages import (
    PrototypeMessages,
    class_features,
    empty_table,
    received_table,
)
from fedrepro.methods.prototypes import class_means, finch_prototypes
from fedrepro.methods.server import Server


@dataclass(frozen=True)
class FPL(PrototypeMessages, Method):
    """FedAvg whose clients' features are held to prototypes of which a class may have several.

    The server clusters the clients' means of each class (FINCH) and sends the clusters' means.
    Loss CE + contrast + consistency: the mean of -log( sum over own-class cluster prototypes p of
    e^(cos(z, p)/tau) / sum over all ), and the element-wise mean squared distance from the unbiased
    prototype of the class, the mean of its cluster prototypes, which the client works out itself;
    Huang et al. 2023, Sec. 3. The first round has none and is cross-entropy alone.

    Up go the network, a mean feature of each class the client has, and a mask of these classes;
    clusters weigh clients equally. Down go the averaged network and the cluster prototypes, in a
    table with room for the most there can be, half as many a class as clients, and a mask. Bytes
    are those of the whole table; the curve's `cluster_prototypes` says how many rows are in use.

    Class means are those of the trained network. RethinkFL code gathers features during the last
    local epoch: of augmented images, in training mode, as two fields can say, but also while
    weights still move, which is not done here.
    """

    name: ClassVar[str] = "FPL"
    reference: ClassVar[str] = "huang2023fpl"
    equations: ClassVar[tuple[str, ...]] = (
        r"\mathrm{CE} - \log \frac{\sum_{p \in P_y} e^{s(z,p)/\tau}}{\sum_{p \in P} "
        r"e^{s(z,p)/\tau}} + \lVert z - u_y \rVert^2 / d",
        r"P_k = \mathrm{FINCH}\big(\{p_i^k\}_i\big), \qquad u_k = \text{mean of } P_k",
    )

    temperature: float = hyper(
        0.02,
        source="authors' code (RethinkFL), which I2PFL's tables follow; MarsFL code 0.2",
        status="code",
        alternatives=(0.2, 0.05, 0.1),
        low=0.001,
    )
    prototypes_in_training_mode: bool = hyper(
        False,
        source="prototypes of the trained network; RethinkFL code in training mode",
        status="decided",
        alternatives=(True,),
    )
    prototypes_of_augmented_images: bool = hyper(
        False,
        source="prototypes of the images; RethinkFL code reads the training loader",
        status="decided",
        alternatives=(True,),
    )
    bn_policy: BNPolicy = hyper(
        "average", source="RethinkFL code", status="code", alternatives=BN_POLICIES[1:]
    )

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        prototypes, present = received_table(received)
        classes = out.logits.shape[1]
        owner = torch.arange(classes, device=batch.y.device)
        owner = owner.repeat_interleave(len(prototypes) // classes)
        unbiased, clusters = class_means(prototypes, owner, classes, weights=present)
        return {
            "ce": cross_entropy(out.logits, batch.y),
            "contrast": prototype_contrast(
                out.features, batch.y, prototypes, owner, present, self.temperature
            ),
            "consistency": prototype_mse(out.features, batch.y, unbiased, clusters),
        }

    def init_server(self, server: Server) -> None:
        self.keep(
            server, *self.joined(server, *empty_table(server, server.clients, server.classes))
        )

    def sent_features(self, client: TrainedClient) -> Tensor:
        augmented = self.prototypes_of_augmented_images
        return class_features(client, self.prototypes_in_training_mode, augmented)

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        super().server_step(server, uploads)
        server.log["cluster_prototypes"] = float(server.tensors["present"].sum())

    def stacked(self, server: Server, uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
        # Room for all clients, whoever took part: the table keeps its shape.
        room, owned = empty_table(server, server.clients, server.classes)
        rows = [upload.client for upload in uploads]
        room[rows], owned[rows] = super().stacked(server, uploads)
        return room, owned

    def joined(self, server: Server, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        prototypes, _, present = finch_prototypes(stack, told)
        return prototypes, present
