"""RUCR as in its authors' code."""

from dataclasses import replace
from typing import Literal

import torch

import fedrepro.methods.api as fl
from fedrepro.methods.rucr import RUCR


class RUCRVariants(RUCR):
    """The authors' code continues from the predictor before rectification; `rectify_at` "end"
    does not."""

    anchors: Literal["unit", "raw"] = fl.hyper(
        "unit",
        "FedPall code joins unit-length prototypes; the authors' code does so for rectification "
        "only and unifies with plain means",
        "code",
    )
    rectify_at: Literal["start", "end"] = fl.hyper(
        "start", "FedPall code rectifies after the test; the authors' before", "code"
    )
    rectify_last: int | None = fl.hyper(
        None, "FedPall code: all rounds; the authors': r >= R - 20 of 150", "code", (20,)
    )
    rectify_steps: int | None = fl.hyper(
        None,
        "batches of mixtures in such an epoch; None: one mixture per image. FedPall code: 50 for "
        "each class, in batches of the protocol's size",
        "code",
        (8,),
        low=1,
        later=True,
    )
    prototypes_of_augmented_images: bool = fl.hyper(
        False, "of the images; FedPall code: its training loader", "code", later=True
    )

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        rectify, local = super().phases(protocol)
        rectify = replace(rectify, steps=self.rectify_steps)
        return (rectify, local) if self.rectify_at == "start" else (local, rectify)

    def download(self, server: fl.Server, client: int) -> fl.Message:
        message, last = super().download(server, client), self.rectify_last
        due = last is None or server.round >= server.protocol.rounds - last
        now = torch.tensor(float(due), device=server.device, dtype=server.dtype)
        anchors = {"anchors": server.tensors["anchors"]} if self.anchors == "raw" else {}
        return {**message, **anchors, "schedule": now}

    def rectify(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        terms = super().rectify(model, batch, received)
        return {name: received["schedule"] * term for name, term in terms.items()}
