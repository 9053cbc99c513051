"""FedAvg with a contrast against class prototypes that fades out."""

from __future__ import annotations

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
from fedrepro.methods.losses import cross_entropy, prototype_contrast
from fedrepro.methods.messages import Message, tensor_of
from fedrepro.methods.prototype_messages import PrototypeMessages, class_features, received_table
from fedrepro.methods.prototypes import count_weighted_mean, ema, plain_mean
from fedrepro.methods.server import Server


@dataclass(frozen=True)
class FedProc(PrototypeMessages, Method):
    """FedAvg whose clients first learn features near their class's global prototype, then to
    classify.

    Loss a_t contrast + (1 - a_t) CE, contrast the mean of -log( e^s(z, G_y) / sum_k e^s(z, G_k) )
    with cosines s and global class means G_k; Mu et al. 2023. a_t falls with the rounds t = 0, 1,
    ... Up go the network, a mean feature of each class the client has, and its class counts; down
    go the averaged network and all G_k (zeros and an empty mask in the first round). A class
    nobody sends keeps its G_k, as in the authors' code.

    z is the feature of the protocol's network: after a projection head where that has one (the
    authors add one of 256 values of length 1, which the classifier reads too). Class means are
    those of the trained network. RethinkFL code gathers features during the last local epoch: of
    augmented images, in training mode, as two fields can say, but also while weights still move,
    which is not done here.
    """

    name: ClassVar[str] = "FedProc"
    reference: ClassVar[str] = "mu2023fedproc"
    tells = "counts"
    equations: ClassVar[tuple[str, ...]] = (
        r"a_t \, \ell_{con} + (1 - a_t) \, \mathrm{CE}, \qquad a_t = 1 - t/T",
        r"\ell_{con} = -\log \frac{e^{s(z, g_y)}}{\sum_k e^{s(z, g_k)}}",
    )

    form: Literal["original", "idle-start"] = hyper(
        "original",
        source="authors' code: a_t = 1 - t/T, but the first round, where there are no prototypes, "
        "is cross-entropy alone. idle-start is RethinkFL code, which I2PFL's tables follow: a_t = "
        "1 - t/(T - 1) from the first round on, which so only decays weights and moves BatchNorm",
        status="code",
        alternatives=("idle-start",),
    )
    horizon: int | None = hyper(
        None,
        source="T: the protocol's rounds; the authors' code runs and counts 100",
        status="stated",
        alternatives=(100,),
        low=1,
    )
    temperature: float = hyper(
        1.0,
        source="authors' code and RethinkFL code",
        status="code",
        alternatives=(0.5,),
        low=0.001,
    )
    prototype_weighting: Literal["images", "clients"] = hyper(
        "images",
        source="authors' code: a class's mean over all images; RethinkFL code: the plain mean of "
        "the clients' means",
        status="code",
        alternatives=("clients",),
    )
    prototypes_in_training_mode: bool = hyper(
        False,
        source="prototypes of the trained network; authors' and RethinkFL code in training mode",
        status="decided",
        alternatives=(True,),
    )
    prototypes_of_augmented_images: bool = hyper(
        False,
        source="prototypes of the images; authors' and RethinkFL code read the training loader",
        status="decided",
        alternatives=(True,),
    )
    bn_policy: BNPolicy = hyper(
        "average", source="authors' code", status="code", alternatives=BN_POLICIES[1:]
    )

    def shares_of_terms(self, t: int, rounds: int) -> tuple[float, float]:
        """Weights of contrast and cross-entropy in round t = 0, 1, ..."""
        last = rounds if self.horizon is None else self.horizon
        if self.form == "original":
            contrast = max(0.0, 1 - t / last) if t else 0.0
        else:
            contrast = max(0.0, 1 - t / max(1, last - 1))
        return contrast, 1 - contrast

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        prototypes, present = received_table(received)
        contrast, ce = tensor_of(received, "schedule")
        return {
            "ce": ce * cross_entropy(out.logits, batch.y),
            "contrast": contrast
            * prototype_contrast(
                out.features, batch.y, prototypes, None, present, self.temperature
            ),
        }

    def keep(self, server: Server, prototypes: Tensor, present: Tensor) -> None:
        """These, and the weights of the next round."""
        super().keep(server, prototypes, present)
        weights = self.shares_of_terms(server.round, server.protocol.rounds)
        server.tensors["schedule"] = torch.tensor(weights, dtype=server.dtype, device=server.device)

    def download(self, server: Server, client: int) -> Message:
        return {**super().download(server, client), "schedule": server.tensors["schedule"]}

    def sent_features(self, client: TrainedClient) -> Tensor:
        augmented = self.prototypes_of_augmented_images
        return class_features(client, self.prototypes_in_training_mode, augmented)

    def joined(self, server: Server, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        mean = count_weighted_mean if self.prototype_weighting == "images" else plain_mean
        new, there = mean(stack, told)
        old, before = server.tensors["prototypes"], server.tensors["present"]
        # A decay of 0: the new one where there is one, else the old.
        return ema(old, new, 0, before, there)
