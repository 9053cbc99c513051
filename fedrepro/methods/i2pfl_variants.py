"""I2PFL's ablations and other readings of its Eq. 8."""

from typing import Literal

import torch
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.methods.i2pfl import I2PFL


class I2PFLVariants(I2PFL):
    """With `augmented_over` "client" the augmented means are over all of a client's data, as Eq. 8
    says. They are made from its trained network's features after each round and stay at the client
    for the next round. APA is then zero in round 1."""

    one_lambda: bool = fl.hyper(
        False, "Eq. 7 reads as one a sample", "inferred", code="MixUp code: one a batch"
    )
    distance: Literal["l2", "squared"] = fl.hyper(
        "l2", "squared by tau's note", "decided", text="Eq. 4 leaves the norm open"
    )
    mixup: Literal["features", "images", "none"] = fl.hyper(
        "features", "Eq. 7; Table 7 has the others", "stated"
    )
    augmented_over: Literal["batch", "client"] = fl.hyper(
        "batch",
        "Eq. 8 sums over a client's data of the class; when in a round is not said, and a batch "
        "has features of the network as it is",
        "decided",
        later=True,
    )
    augmented_constant: bool = fl.hyper(
        True, "False: augmented prototypes pass gradients on", "decided", text="not said"
    )
    rule: Literal["reweighting", "averaging", "clustering"] = fl.hyper(
        "reweighting",
        "Eq. 4; Table 6 has the others, clustering read as FPL's unbiased prototype: the mean of a "
        "class's FINCH clusters",
        "stated",
    )

    def __post_init__(self) -> None:
        if self.augmented_over == "client" and self.mixup == "images":
            raise fl.FedReproError("augmented_over client mixes features; set mixup to features")

    def draw(self, n: int, generator: torch.Generator) -> Tensor | None:
        if self.mixup == "none" or self.augmented_over == "client":
            return None
        return super().draw(n, generator)

    def augmented(
        self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message, out: fl.Output
    ) -> tuple[Tensor, Tensor]:
        if self.augmented_over == "client":
            return received["memory"]["augmented"], received["memory"]["counts"]
        z, classes = out.features, out.logits.shape[1]
        if self.mixup != "none":
            assert batch.draws is not None
            how = batch.draws.unbind(dim=1)
            if self.mixup == "features":
                z = fl.prototypes.mix_other_class(z, batch.y, classes, *how)
            else:  # before the network; both passes update BatchNorm
                x = fl.prototypes.mix_other_class(batch.x.flatten(1), batch.y, classes, *how)
                z = model(x.reshape(batch.x.shape)).features
        return fl.class_means(z.detach() if self.augmented_constant else z, batch.y, classes)

    def drawn(self, n: int, generator: torch.Generator) -> Tensor:
        lam = fl.prototypes.beta_draws(1 if self.one_lambda else n, self.alpha, generator).expand(n)
        return torch.stack([lam.float(), torch.rand(n, generator=generator)], dim=1)

    def first_memory(self, server: fl.Server) -> dict[str, Tensor]:
        if not self.apa or self.augmented_over == "batch":
            return {}
        means, _ = fl.empty_table(server, server.classes)
        return {"augmented": means, "counts": means.new_zeros(server.classes)}

    def remember(self, client: fl.TrainedClient) -> dict[str, Tensor]:
        z = self.sent_features(client)
        if self.mixup == "features":
            lam, partner = self.drawn(len(z), client.generator).to(z).unbind(dim=1)
            z = fl.prototypes.mix_other_class(z, client.labels, client.classes, lam, partner)
        means, counts = fl.class_means(z, client.labels, client.classes)
        return {"augmented": means, "counts": counts}

    def joined(self, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        if self.rule == "reweighting":
            return fl.prototypes.distance_reweighted(stack, told, self.distance)
        if self.rule == "averaging":
            return fl.prototypes.plain_mean(stack, told)
        clusters, owner, found = fl.prototypes.finch_prototypes(stack, told)
        means, number = fl.class_means(clusters, owner, stack.shape[1], weights=found)
        return means, number > 0
