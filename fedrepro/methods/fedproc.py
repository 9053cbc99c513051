from typing import Literal

import torch
from torch import Tensor

import fedrepro.methods.api as fl


class FedProc(fl.PrototypeMessages, fl.Method):
    """FedAvg that first trains features towards their class's global prototype, then the
    classifier.

    Loss a_t contrast + (1 - a_t) CE; the contrast uses cosines with the global class means; Mu et
    al. 2023. a_t falls with the rounds t = 0, 1, ... Besides the network, a client sends a mean
    feature of each of its classes and its class counts, and receives all global means. A class
    that nobody sends keeps its mean, as in the authors' code.

    z is the feature of the protocol's network (the authors add a projection head of 256 values of
    length 1). RethinkFL code collects features in the last local epoch, while weights still
    change; this class does not.
    """

    name = "FedProc"
    reference = "mu2023fedproc"
    tells, decay, received_too = "counts", 0.0, ("schedule",)
    equations = (
        r"a_t \, \ell_{con} + (1 - a_t) \, \mathrm{CE}, \qquad a_t = 1 - t/T",
        r"\ell_{con} = -\log \frac{e^{s(z, g_y)}}{\sum_k e^{s(z, g_k)}}",
    )

    form: Literal["original", "idle-start"] = fl.hyper(
        "original",
        "authors' code: a_t = 1 - t/T, but the first round, where there are no prototypes, is "
        "cross-entropy alone; idle-start: RethinkFL code, which I2PFL's tables follow: a_t = 1 - "
        "t/(T - 1) from the first round on, which so only decays weights and moves BatchNorm",
        "code",
    )
    horizon: int | None = fl.hyper(
        None, "T: the protocol's rounds", "stated", (100,), low=1, code="the authors' code has 100"
    )
    temperature: float = fl.hyper(1.0, "authors' and RethinkFL code", "code", (0.5,), low=0.001)
    prototype_weighting: Literal["images", "clients"] = fl.hyper(
        "images", "authors' code; RethinkFL code: all clients alike", "code"
    )
    prototypes_in_training_mode: bool = fl.hyper(
        False, "of the trained network", "decided", code="both codes: in training mode"
    )
    prototypes_of_augmented_images: bool = fl.hyper(
        False, "of the images", "decided", code="both codes read the training loader"
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "authors' code", "code")

    def shares_of_terms(self, t: int, rounds: int) -> tuple[float, float]:
        """Weights of contrast and cross-entropy in round t = 0, 1, ..."""
        last = self.horizon or rounds
        if self.form == "original":
            contrast = max(0.0, 1 - t / last) if t else 0.0
        else:
            contrast = max(0.0, 1 - t / max(1, last - 1))
        return contrast, 1 - contrast

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        table, (a, b) = fl.received_table(received), received["schedule"]
        contrast = fl.losses.prototype_contrast(out.features, batch.y, *table, self.temperature)
        return {"ce": b * fl.cross_entropy(out.logits, batch.y), "contrast": a * contrast}

    def hold(self, server: fl.Server, prototypes: Tensor, present: Tensor) -> None:
        super().hold(server, prototypes, present)
        weights = self.shares_of_terms(server.round, server.protocol.rounds)
        server.tensors["schedule"] = torch.tensor(weights, dtype=server.dtype, device=server.device)
