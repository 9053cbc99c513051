"""Class prototypes instead of networks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedrepro.methods.base import (
    BN_POLICIES,
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    TrainedClient,
    hyper,
)
from fedrepro.methods.losses import NEVER, cross_entropy, prototype_mse
from fedrepro.methods.messages import Message
from fedrepro.methods.prototype_messages import (
    HELD,
    PrototypeMessages,
    class_features,
    received_table,
)
from fedrepro.methods.prototypes import count_weighted_mean, plain_mean
from fedrepro.methods.server import Server
from fedrepro.models import FLModel, Output, TensorInfo


class NearestPrototype(FLModel):
    """A network that classifies by the nearest of the prototypes it holds.

    Its scores are minus the squared distances. Its logits, and so every loss, the validation loss
    too, stay the predictor's, which classifies as long as there are no prototypes (MPFT code).
    """

    prototypes: Tensor
    present: Tensor

    def __init__(self, module: FLModel) -> None:
        super().__init__(module.encoder, module.projection, module.predictor, module.feature_size)
        self.memory_format = module.memory_format
        predictor = copy.deepcopy(module.predictor).eval()
        classes = predictor(torch.zeros(1, module.feature_size)).shape[1]
        self.register_buffer("prototypes", torch.zeros(classes, module.feature_size))
        self.register_buffer("present", torch.zeros(classes, dtype=torch.bool))

    def scores(self, out: Output) -> Tensor:
        distance = torch.cdist(out.features, self.prototypes)
        nearest = torch.where(self.present, -distance.square(), NEVER)
        return torch.where(self.present.any(), nearest, out.logits)


@dataclass(frozen=True)
class FedProto(PrototypeMessages, Method):
    """Clients keep their networks; mean features of their classes are averaged instead.

    Loss CE + lambda times the element-wise mean squared distance between a sample's feature and
    its class's global prototype; Tan et al. 2022, Eq. 7, with the distance of the authors' code
    (the paper's Eq. 8 is one of class means). The first round has no prototypes and no such term:
    zeros and an empty mask go down. Up go a mean feature of each class the client has, and its
    class counts; down all global prototypes. Each client's network is tested on its own domain.
    With `averages_networks` it is FedAvg with that term: networks travel too, and the server's is
    tested.

    Class means are those of the trained network. The authors' and RethinkFL code gather features
    during the last local epoch: of augmented images, in training mode, as two fields can say, but
    also while weights still move, which is not done here.
    """

    name: ClassVar[str] = "FedProto"
    reference: ClassVar[str] = "tan2022fedproto"
    tells = "counts"
    equations: ClassVar[tuple[str, ...]] = (
        r"\mathrm{CE} + \lambda \, \lVert z - g_y \rVert^2 / d",
        r"g_k = \frac{1}{|\mathcal{N}_k|} \sum_{i \in \mathcal{N}_k} p_i^k, \qquad p_i^k = "
        r"\text{mean of } z \text{ over class } k",
    )

    lam: float = hyper(
        1.0,
        source="lambda; authors' code, FedPall code and FedDAP code 1, the authors' CIFAR-10 "
        "example 0.1, MarsFL code 2, MPFT Sec. C.2 50 (its code leaves the term out)",
        status="code",
        alternatives=(0.1, 2.0, 50.0),
        low=0,
    )
    averages_networks: bool = hyper(
        False,
        source="Tan et al., Alg. 1 and FedPall code; True is RethinkFL and MarsFL code, whose "
        "family I2PFL's and FedAPC's tables come from",
        status="stated",
        alternatives=(True,),
    )
    prototype_weighting: Literal["clients", "images"] = hyper(
        "clients",
        source="authors' code and RethinkFL code: plain mean over the clients with the class; "
        "FedPall code: by class counts, as Eq. 6, whose further 1/|N_j| nobody applies",
        status="code",
        alternatives=("images",),
    )
    inference: Literal["classifier", "prototype"] = hyper(
        "classifier",
        source="FedPall code and RethinkFL code; Tan et al., Eq. 4, and MPFT code: nearest global "
        "prototype; the authors' code prints both",
        status="code",
        alternatives=("prototype",),
    )
    prototypes_in_training_mode: bool = hyper(
        False,
        source="FedPall code; authors' and RethinkFL code in training mode",
        status="code",
        alternatives=(True,),
    )
    prototypes_of_augmented_images: bool = hyper(
        False,
        source="Tan et al., Eq. 3, is about the images; all code reads its training loader",
        status="stated",
        alternatives=(True,),
    )
    second_pass: bool = hyper(
        False,
        source="RethinkFL code passes every batch through the network twice: BatchNorm's running "
        "statistics follow it twice a step, and nothing else changes",
        status="code",
        alternatives=(True,),
        later=True,
    )
    prototypes_of: Literal["features", "inputs"] = hyper(
        "features",
        source="Tan et al., Eq. 3; inputs: MPFT code sends means of the frozen embeddings, which "
        "the adapted features of a test are compared with",
        status="stated",
        alternatives=("inputs",),
        later=True,
    )
    bn_policy: BNPolicy = hyper(
        "average",
        source="RethinkFL code; of no effect where networks are not averaged",
        status="code",
        alternatives=BN_POLICIES[1:],
    )

    def network(self, module: FLModel) -> FLModel:
        return NearestPrototype(module) if self.inference == "prototype" else module

    def shares(self, tensor: TensorInfo) -> bool:
        return self.averages_networks and tensor.name not in HELD

    def overwrites(self, tensor: TensorInfo) -> bool:
        # What a network holds of the prototypes came as a message of their own.
        return tensor.name in HELD or super().overwrites(tensor)

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        if self.second_pass:
            with torch.no_grad():
                model(batch.x)
        distance = prototype_mse(out.features, batch.y, *received_table(received))
        return {"ce": cross_entropy(out.logits, batch.y), "prototype": self.lam * distance}

    def keep(self, server: Server, prototypes: Tensor, present: Tensor) -> None:
        super().keep(server, prototypes, present)
        if self.inference == "prototype":
            server.model |= {kind: server.tensors[kind] for kind in HELD}

    def sent_features(self, client: TrainedClient) -> Tensor:
        if self.prototypes_of == "inputs":
            return client.inputs.to(next(iter(client.state.values())).dtype)
        augmented = self.prototypes_of_augmented_images
        return class_features(client, self.prototypes_in_training_mode, augmented)

    def joined(self, server: Server, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        mean = plain_mean if self.prototype_weighting == "clients" else count_weighted_mean
        return mean(stack, told)
