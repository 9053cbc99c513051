from typing import Any

import torch
from torch import Tensor

import fedrepro.methods.api as fl


class FedAPC(fl.PrototypeMessages, fl.Method):
    """FedAvg whose clients contrast features with global prototypes of augmented images.

    After training each client averages every image's features over several augmented views (Eq. 2)
    and those over each class (Eq. 3); the server averages the clients' class means (Eq. 4, whose
    sum differs by a factor that the cosine cancels). Loss CE + APC (Eqs. 5, 6). Le et al., FedAPC,
    Alg. 1. APC is zero in round 1, because there are no prototypes yet. A client sends the means of
    its classes and a mask of these, and receives all prototypes and their mask.
    """

    name = "FedAPC"
    reference = "le2025fedapc"
    equations = (
        r"\mathrm{CE} - \log \frac{e^{s(z, G^y)/\tau}}{\sum_k e^{s(z, G^k)/\tau}}",
        r"\bar z = \frac{1}{N} \sum_{n=1}^{N} f(A_n(x)), \qquad G^k = \sum_i \mathrm{mean}_{y "
        r"= k}\, \bar z",
    )

    tau: float = fl.hyper(
        0.02, "FPL code and FedDAP code; not given", "code", (0.05, 0.07, 0.1, 0.5), low=0.001
    )
    weight: float = fl.hyper(1.0, "Eq. 6: the sum", "stated")
    augmented: bool = fl.hyper(True, "Eq. 3; Table II leaves it out", "stated")
    views: int = fl.hyper(
        3, "N of Eq. 2, not given; one per technique of Sec. III-A", "decided", (1, 2, 5), low=1
    )
    all_in_each: bool = fl.hyper(
        False,
        "not given; FedDAP code's helper gives a batch one technique at a time, here in turn: "
        "erasing, cropping, flipping; True: every view has all three",
        "code",
    )
    erase: float = fl.hyper(
        0.5,
        "probability, area and shape of FedDAP code's helper, which draws once for a whole batch "
        "of tensors, here for each image",
        "code",
        high=1,
        text="Sec. III-A: erasing",
    )
    crop: int = fl.hyper(4, "padding of FedDAP code's helper", "code", text="Sec. III-A: cropping")
    flip: bool = fl.hyper(
        True, "Sec. III-A: flipping", "stated", (), code="left-right as in FPL code"
    )
    prototypes_in_training_mode: bool = fl.hyper(
        False,
        "project decision: evaluation mode",
        "decided",
        text="Sec. II-C: after local training; Alg. 1, line 14: in its loop",
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "FPL code averages all buffers", "code")

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        known = *fl.received_table(received), self.tau
        contrast = fl.losses.prototype_contrast(out.features, batch.y, *known)
        return {"ce": fl.cross_entropy(out.logits, batch.y), "apc": self.weight * contrast}

    def augmentations(self) -> list[fl.Augmentation | None]:
        """The augmentation of each view of an image; None: unchanged."""
        if not self.augmented:
            return [None]
        every: dict[str, Any] = {"erase": self.erase, "crop": self.crop, "flip": self.flip}
        turns = [every] if self.all_in_each else [{name: how} for name, how in every.items()]
        return [fl.Augmentation(**turns[view % len(turns)]) for view in range(self.views)]

    def sent_features(self, client: fl.TrainedClient) -> Tensor:
        mode = self.prototypes_in_training_mode
        views = [client.features(mode, augmentation) for augmentation in self.augmentations()]
        return torch.stack(views).mean(dim=0)
