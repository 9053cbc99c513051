"""Prototypes of augmented images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrepro.base.protocol import Augmentation
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
from fedrepro.methods.messages import Message
from fedrepro.methods.prototype_messages import PrototypeMessages, received_table
from fedrepro.methods.prototypes import plain_mean
from fedrepro.methods.server import Server


@dataclass(frozen=True)
class FedAPC(PrototypeMessages, Method):
    """FedAvg whose clients contrast features with global prototypes of augmented images.

    After training each client averages every image's features over several augmented views (Eq. 2)
    and those over each class (Eq. 3); the server averages the clients' class means (Eq. 4, whose
    sum differs by a factor that the cosine cancels). Loss CE + APC (Eqs. 5, 6). Le et al., FedAPC,
    Alg. 1. APC is zero in round 1, as there are no prototypes yet. Up go the means of the classes
    a client has and a mask of these, down all prototypes and theirs.
    """

    name: ClassVar[str] = "FedAPC"
    reference: ClassVar[str] = "le2025fedapc"
    equations: ClassVar[tuple[str, ...]] = (
        r"\mathrm{CE} - \log \frac{e^{s(z, G^y)/\tau}}{\sum_k e^{s(z, G^k)/\tau}}",
        r"\bar z = \frac{1}{N} \sum_{n=1}^{N} f(A_n(x)), \qquad G^k = \sum_i \mathrm{mean}_{y "
        r"= k}\, \bar z",
    )

    tau: float = hyper(
        0.02,
        source="not given; FPL code and FedDAP code: 0.02",
        status="code",
        alternatives=(0.05, 0.07, 0.1, 0.5),
        low=0.001,
    )
    weight: float = hyper(1.0, source="Eq. 6: the sum", status="stated", low=0)
    augmented: bool = hyper(
        True,
        source="Eq. 3; Table II leaves the augmentation out",
        status="stated",
        alternatives=(False,),
    )
    views: int = hyper(
        3,
        source="N of Eq. 2, not given; one for each technique that Sec. III-A names",
        status="decided",
        alternatives=(1, 2, 5),
        low=1,
    )
    all_in_each: bool = hyper(
        False,
        source="not given; FedDAP code's helper gives a batch one technique at a time, here in "
        "turn: erasing, cropping, flipping; True: every view has all three",
        status="code",
        alternatives=(True,),
    )
    erase: float = hyper(
        0.5,
        source="Sec. III-A: erasing; probability, area and shape of FedDAP code's helper, which "
        "draws once for a whole batch of tensors, here for each image",
        status="stated",
        low=0,
        high=1,
    )
    crop: int = hyper(
        4, source="Sec. III-A: cropping; padding of FedDAP code's helper", status="stated", low=0
    )
    flip: bool = hyper(
        True, source="Sec. III-A: flipping; left-right as in FPL code", status="stated"
    )
    prototypes_in_training_mode: bool = hyper(
        False,
        source="Sec. II-C: once local training is completed; Alg. 1, line 14 has it in the loop",
        status="stated",
        alternatives=(True,),
    )
    bn_policy: BNPolicy = hyper(
        "average",
        source="FPL code averages all buffers",
        status="code",
        alternatives=BN_POLICIES[1:],
    )

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        prototypes, present = received_table(received)
        contrast = prototype_contrast(out.features, batch.y, prototypes, None, present, self.tau)
        return {"ce": cross_entropy(out.logits, batch.y), "apc": self.weight * contrast}

    def augmentations(self) -> list[Augmentation | None]:
        """How each view of an image is made; None leaves it as it is."""
        if not self.augmented:
            return [None]
        if self.all_in_each:
            return [Augmentation(erase=self.erase, crop=self.crop, flip=self.flip)] * self.views
        single = (
            Augmentation(erase=self.erase),
            Augmentation(crop=self.crop),
            Augmentation(flip=self.flip),
        )
        return [single[view % len(single)] for view in range(self.views)]

    def sent_features(self, client: TrainedClient) -> Tensor:
        mode = self.prototypes_in_training_mode
        views = [client.features(mode, augmentation) for augmentation in self.augmentations()]
        return torch.stack(views).mean(dim=0)

    def joined(self, server: Server, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        return plain_mean(stack, told)
