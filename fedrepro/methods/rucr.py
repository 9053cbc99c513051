"""Representation unification and classifier rectification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.methods.base import (
    Batch,
    LocalModel,
    Method,
    Phase,
    TrainedClient,
    Upload,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, prior_adjusted_cross_entropy
from fedrepro.methods.messages import Message, tensor_of, tensors_of
from fedrepro.methods.prototype_messages import class_features
from fedrepro.methods.prototypes import class_means, count_weighted_mean, unit_mean
from fedrepro.methods.server import Server
from fedrepro.models import FLModel, Output, TensorInfo


class TwoEntrances(FLModel):
    """A network that is given images or, past its encoder, features (b, d)."""

    def forward(self, x: Tensor) -> Output:
        z = x if x.ndim == 2 else self.projection(self.encoder(x))
        return Output(z, self.predictor(z))


def is_predictor(tensor: TensorInfo) -> bool:
    """Whether rectification trains a tensor."""
    return tensor.part == "predictor"


@dataclass(frozen=True)
class RUCR(Method):
    """FedAvg with features drawn to global prototypes and a predictor trained on mixtures.

    Unification: CE + weight * cross-entropy of the cosines to the global prototypes, with the log
    of its share of all samples added to the own class. Rectification: with the encoder frozen, the
    predictor learns to call lam G_k + (1 - lam) z/|z| class k, for features z of the received
    network and any class k; Huang et al. 2024. Everything is averaged; tested is the average.

    Default is FedPall's code, where this is a baseline: rectification in every round, after the
    test, so that here a round starts with it ("start") and its average is tested before the next
    one. Departures from both codes: prototypes are those of the clients' networks after their
    training in the round before, not of the received network, so that the first round is FedAvg;
    rectified predictors are trained on or tested where they are averaged with all else, not
    averaged by themselves; mixtures are drawn anew in each epoch, their class too, where the codes
    make a fixed number for each class once a round; their features are the received network's,
    where the codes mix those of before the round's training, one average earlier. The authors'
    code goes on from the predictor as it was before rectification, which "end" does not.
    """

    name: ClassVar[str] = "RUCR"
    reference: ClassVar[str] = "huang2024rucr"
    equations: ClassVar[tuple[str, ...]] = (
        r"\mathrm{CE} + \lambda_f \, \mathrm{CE}\big(\cos(z, G_k)/t + [k = y] \log \pi_k,\; y\big)",
        r"\text{mixtures } \lambda \, G_k + (1 - \lambda) \, z \text{ with label } k \text{ "
        r"train the classifier}",
    )

    weight: float = hyper(
        0.1,
        source="FedPall code; the authors' code has 0.15",
        status="code",
        alternatives=(0.15,),
        low=0,
    )
    temperature: float = hyper(
        1.0,
        source="FedPall code; the authors' code has 0.9",
        status="code",
        alternatives=(0.9,),
        low=0.001,
    )
    anchors: Literal["unit", "raw"] = hyper(
        "unit",
        source="FedPall code joins unit-length prototypes; the authors' code does so for "
        "rectification only and unifies with plain means",
        status="code",
        alternatives=("raw",),
    )
    rectify_at: Literal["start", "end"] = hyper(
        "start",
        source="FedPall code rectifies after the test; the authors' code before it",
        status="code",
        alternatives=("end",),
    )
    rectify_last: int | None = hyper(
        None,
        source="FedPall code: every round; the authors' code: round r where r >= R - 20 of R = "
        "150, which are 21 rounds",
        status="code",
        alternatives=(20,),
        low=0,
    )
    rectify_epochs: int | None = hyper(
        None,
        source="the protocol's local epochs, as FedPall code; the authors' code has 50",
        status="code",
        alternatives=(50,),
        low=1,
    )
    rectify_steps: int | None = hyper(
        None,
        source="batches of mixtures in such an epoch; None: one mixture an image. FedPall code: 50 "
        "for each class, in batches of the protocol's size",
        status="code",
        alternatives=(8,),
        low=1,
        later=True,
    )
    prototypes_of_augmented_images: bool = hyper(
        False,
        source="prototypes of the images; FedPall code reads the training loader",
        status="code",
        alternatives=(True,),
        later=True,
    )
    rectify_lr: float = hyper(
        0.01, source="both codes, without momentum or decay", status="code", low=0
    )
    lam_low: float = hyper(
        0.2,
        source="FedPall code, whose bounds 0.8 and 0.2 are a start and an end; the authors' code "
        "has 0.35",
        status="code",
        alternatives=(0.35,),
        low=0,
        high=1,
    )
    lam_high: float = hyper(
        0.8,
        source="as lam_low; the authors' code has 0.95",
        status="code",
        alternatives=(0.95,),
        low=0,
        high=1,
    )
    # mixtures need the received network whole, and so no policy that keeps a part of it at home
    bn_policy: Literal["average", "first"] = hyper(
        "average", source="as FedAvg (FedPall code)", status="code", alternatives=("first",)
    )

    def network(self, module: FLModel) -> FLModel:
        parts = module.encoder, module.projection, module.predictor
        wrapped = TwoEntrances(*parts, module.feature_size)
        wrapped.memory_format = module.memory_format
        return wrapped

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        epochs = self.rectify_epochs or protocol.local_epochs
        step = OptimizerSpec(lr=self.rectify_lr)
        rectify = Phase(
            "rectify", epochs, is_predictor, step, loss="rectify", steps=self.rectify_steps
        )
        local = Phase("local", protocol.local_epochs)
        return (rectify, local) if self.rectify_at == "start" else (local, rectify)

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        prototypes = tensor_of(received, "prototypes" if self.anchors == "unit" else "anchors")
        unify = prior_adjusted_cross_entropy(
            out.features, batch.y, prototypes, tensor_of(received, "shares"), self.temperature
        )
        # 0 in the first round, which has no prototypes
        return {
            "ce": cross_entropy(out.logits, batch.y),
            "unify": self.weight * unify * tensor_of(received, "present").any(),
        }

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, 2, generator=generator)

    def rectify(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        """Cross-entropy of one mixture an image, as far as there is a prototype of its class."""
        assert batch.draws is not None
        network, prototypes = tensors_of(received, "model"), tensor_of(received, "prototypes")
        classes = len(prototypes)
        k = (batch.draws[:, 0] * classes).long().clamp(max=classes - 1)
        lam = self.lam_low + (self.lam_high - self.lam_low) * batch.draws[:, 1:]
        lam = lam.mul(100).round().div(100)
        z = model.run(network, batch.x).features.detach()
        mixed = lam * prototypes[k] + (1 - lam) * F.normalize(z.to(lam.dtype), dim=1)
        # in evaluation mode, as in both codes: BatchNorm does not follow mixtures
        logits = model.run({**network, **model.params}, mixed).logits
        counts = tensor_of(received, "present")[k] * tensor_of(received, "schedule")
        each = F.cross_entropy(logits, k, reduction="none")
        return {"rectify": (each * counts).sum() / counts.sum().clamp(min=1)}

    def init_server(self, server: Server) -> None:
        zeros = torch.zeros(
            server.classes, server.feature_size, device=server.device, dtype=server.dtype
        )
        server.tensors |= {"prototypes": zeros, "anchors": zeros}
        server.tensors["present"] = zeros.any(dim=1)
        server.tensors["shares"] = zeros.new_full((server.classes,), 1 / server.classes)

    def download(self, server: Server, client: int) -> Message:
        kinds = ["prototypes", "present", "shares"] + ["anchors"] * (self.anchors == "raw")
        last = self.rectify_last
        due = last is None or server.round >= server.protocol.rounds - last
        now = torch.tensor(float(due), device=server.device, dtype=server.dtype)
        return {"schedule": now, **{kind: server.tensors[kind] for kind in kinds}}

    def upload(self, client: TrainedClient) -> Message:
        features = class_features(client, False, self.prototypes_of_augmented_images)
        means, counts = class_means(features, client.labels, client.classes)
        return {"prototypes": means, "counts": counts}

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        stack = torch.stack([tensor_of(u.message, "prototypes") for u in uploads])
        counts = torch.stack([tensor_of(u.message, "counts") for u in uploads])
        present = counts.sum(dim=0) > 0
        server.tensors["present"] = server.tensors["present"] | present
        for name, join in (("prototypes", unit_mean), ("anchors", count_weighted_mean)):
            new, _ = join(stack, counts)
            server.tensors[name] = torch.where(present[:, None], new, server.tensors[name])
        # one sample where this round had none: the share's logarithm stays finite
        total = counts.sum(dim=0).clamp(min=1)
        server.tensors["shares"] = total / total.sum()
