from typing import Literal

import torch
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.methods.fedpall import FedPall


class FedPallVariants(FedPall):
    """`reading` "paper" follows the text. Uploads may be masked in another way, or not at all."""

    reading: Literal["code", "paper"] = fl.hyper(
        "code",
        "code: KL(U || A), the contrast's denominator has all prototypes as long as sent, joined "
        "from unit-length ones, a mask of an exact share; paper: KL(A || U), own class left out, "
        "plain means, Bernoulli mask",
        "code",
    )
    sent_as: Literal["mixed-masked", "mixed", "masked", "gaussian", "raw"] = fl.hyper(
        "mixed-masked",
        "Eqs. 9 to 11; Sec. 5.3 compares the others; its Gaussian noise has variance 1",
        "stated",
    )

    def disguised(self, z: Tensor, client: fl.TrainedClient) -> Tensor:
        if self.sent_as == "raw":
            return z
        if self.sent_as == "gaussian":
            return z + torch.randn(z.shape, generator=client.generator).to(z)
        prototypes = client.received["prototypes"]
        low, high = (1.0, 1.0) if self.sent_as == "masked" else (self.mix_low, self.mix_high)
        how = low, high, 1.0 if self.sent_as == "mixed" else self.keep, self.reading == "code"
        return fl.prototypes.fedpall_mix(z, client.labels, prototypes, client.generator, *how)

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        if self.reading == "code":
            return super().client_loss(model, batch, received)
        out = model(batch.x)
        terms = {"ce": fl.cross_entropy(out.logits, batch.y)}
        if self.mu:
            terms["kl"] = self.mu * fl.losses.kl_to_uniform(received["amplifier"](out.features))
        if self.delta:
            known = *fl.received_table(received), self.temperature, self.reading
            contrast = fl.losses.fedpall_contrast(out.features, batch.y, *known)
            terms["contrast"] = self.delta * contrast
        return terms

    def joined(self, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        if self.reading == "code":
            return super().joined(stack, told)
        return fl.prototypes.count_weighted_mean(stack, told)
