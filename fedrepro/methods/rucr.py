"""Representation unification and classifier rectification."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

import fedrepro.methods.api as fl


class RUCR(fl.PrototypeMessages, fl.Method):
    """FedAvg with features pulled towards global prototypes, and a predictor trained on mixtures.

    Unification: CE + weight * cross-entropy of the cosines with the global prototypes, with the log
    of its share of all samples added to the own class. Rectification: with the encoder frozen, the
    predictor learns class k for lam G_k + (1 - lam) z/|z|, with features z of the received network
    and any class k; Huang et al. 2024. Everything is averaged; the average is tested.

    As in FedPall's code a round starts with rectification. Unlike in both codes, prototypes are of
    the previous round's networks, a client trains on from its own rectified predictor (there from
    their average), and each epoch mixes anew.
    """

    name = "RUCR"
    reference = "huang2024rucr"
    tells, sends_all, received_too, decay = "counts", True, ("shares",), 0.0
    equations = (
        r"\mathrm{CE} + \lambda_f \, \mathrm{CE}\big(\cos(z, G_k)/t + [k = y] \log \pi_k,\; y\big)",
        r"\lambda \, G_k + (1 - \lambda) \, z \text{ with label } k \text{ trains the classifier}",
    )

    weight: float = fl.hyper(0.1, "FedPall code; the authors' 0.15", "code", (0.15,))
    temperature: float = fl.hyper(1.0, "FedPall code; the authors' 0.9", "code", (0.9,), low=0.001)
    rectify_epochs: int | None = fl.hyper(
        None, "the protocol's, as FedPall code; the authors' code: 50", "code", (50,), low=1
    )
    rectify_lr: float = fl.hyper(0.01, "both codes, without momentum or decay", "code", low=1e-6)
    lam_low: float = fl.hyper(
        0.2, "FedPall code (0.8 is its start); the authors' 0.35", "code", (0.35,), high=1
    )
    lam_high: float = fl.hyper(0.8, "as lam_low; authors' 0.95", "code", (0.95,), high=1)
    # mixtures need the whole received network, so no policy keeps a part of it at the client
    bn_policy: Literal["average", "first"] = fl.hyper("average", "as FedAvg (FedPall code)", "code")

    def network(self, module: fl.FLModel) -> fl.FLModel:
        return TwoEntrances(module)

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        epochs = self.rectify_epochs or protocol.local_epochs
        step = fl.OptimizerSpec(lr=self.rectify_lr)
        head = fl.Phase("rectify", epochs, lambda t: t.part == "predictor", step, loss="rectify")
        return (head, *super().phases(protocol))

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        anchors = received["anchors" if "anchors" in received else "prototypes"]
        how = batch.y, anchors, received["shares"], self.temperature
        unify = self.weight * fl.losses.prior_adjusted_cross_entropy(out.features, *how)
        ce = fl.cross_entropy(out.logits, batch.y)
        return {"ce": ce, "unify": unify * received["present"].any()}

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, 2, generator=generator)

    def rectify(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        """Cross-entropy of one mixture per image, if its class has a prototype."""
        assert batch.draws is not None
        network, prototypes = received["model"], received["prototypes"]
        k = (batch.draws[:, 0] * len(prototypes)).long().clamp(max=len(prototypes) - 1)
        lam = self.lam_low + (self.lam_high - self.lam_low) * batch.draws[:, 1:]
        lam = lam.mul(100).round().div(100)
        z = model.run(network, batch.x).features.detach()
        mixed = lam * prototypes[k] + (1 - lam) * F.normalize(z.to(lam.dtype), dim=1)
        # in evaluation mode, as in both codes: mixtures do not update BatchNorm
        logits = model.run({**network, **model.params}, mixed).logits
        counts = received["present"][k]
        each = F.cross_entropy(logits, k, reduction="none")
        return {"rectify": (each * counts).sum() / counts.sum().clamp(min=1)}

    def init_server(self, server: fl.Server) -> None:
        super().init_server(server)
        zeros = server.tensors["anchors"] = server.tensors["prototypes"]
        server.tensors["shares"] = zeros.new_full((server.classes,), 1 / server.classes)

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        stack, counts = self.stacked(server, uploads)
        new, present = fl.prototypes.count_weighted_mean(stack, counts)
        server.tensors["anchors"] = torch.where(present[:, None], new, server.tensors["anchors"])
        self.hold(server, *self.renewed(server, *fl.prototypes.unit_mean(stack, counts)))
        # one sample if this round had none: the share's logarithm stays finite
        total = counts.sum(dim=0).clamp(min=1)
        server.tensors["shares"] = total / total.sum()


class TwoEntrances(fl.WrappedModel):
    """A network that takes images or, after its encoder, features (b, d) (RUCR)."""

    def forward(self, x: Tensor) -> fl.Output:
        z = x if x.ndim == 2 else self.projection(self.encoder(x))
        return fl.Output(z, self.predictor(z))
