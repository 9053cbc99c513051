"""RUCR as its authors' code has it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.methods.rucr import RUCR


@dataclass(frozen=True)
class RUCRVariants(RUCR):
    """The authors' code goes on from the predictor as it was before rectification, which
    `rectify_at` "end" does not."""

    anchors: Literal["unit", "raw"] = fl.hyper(
        "unit",
        "FedPall code joins unit-length prototypes; the authors' code does so for rectification "
        "only and unifies with plain means",
        "code",
        ("raw",),
    )
    rectify_at: Literal["start", "end"] = fl.hyper(
        "start",
        "FedPall code rectifies after the test; the authors' code before it",
        "code",
        ("end",),
    )
    rectify_last: int | None = fl.hyper(
        None,
        "FedPall code: every round; the authors' code: round r where r >= R - 20 of R = 150, which "
        "are 21 rounds",
        "code",
        (20,),
        low=0,
    )
    rectify_steps: int | None = fl.hyper(
        None,
        "batches of mixtures in such an epoch; None: one mixture an image. FedPall code: 50 for "
        "each class, in batches of the protocol's size",
        "code",
        (8,),
        low=1,
        later=True,
    )
    prototypes_of_augmented_images: bool = fl.hyper(
        False,
        "prototypes of the images; FedPall code reads the training loader",
        "code",
        (True,),
        later=True,
    )

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        rectify, local = super().phases(protocol)
        return (rectify, local) if self.rectify_at == "start" else (local, rectify)

    def rectification(self, protocol: fl.Protocol) -> fl.Phase:
        return replace(super().rectification(protocol), steps=self.rectify_steps)

    def anchors_of(self, received: fl.Message) -> Tensor:
        return fl.tensor_of(received, "prototypes" if self.anchors == "unit" else "anchors")

    def download(self, server: fl.Server, client: int) -> fl.Message:
        message = super().download(server, client)
        return message | ({"anchors": server.tensors["anchors"]} if self.anchors == "raw" else {})

    def due(self, server: fl.Server) -> bool:
        last = self.rectify_last
        return last is None or server.round >= server.protocol.rounds - last

    def sent_features(self, client: fl.TrainedClient) -> Tensor:
        augmented = self.prototypes_of_augmented_images
        return client.features(False, client.augmentation if augmented else None)
