import torch
from torch import Tensor

import fedrepro.methods.api as fl


class FPL(fl.PrototypeMessages, fl.Method):
    """FedAvg that pulls features towards prototypes; a class may have several prototypes.

    The server clusters the clients' means of each class (FINCH, all clients equal) and sends the
    clusters' means; Huang et al. 2023, Sec. 3. Loss CE + contrast with all of them + consistency.
    Consistency is the element-wise mean squared distance from the class's unbiased prototype: the
    mean of its cluster prototypes, which the client computes itself. The first round has no
    prototypes and only cross-entropy.

    The server sends a table with room for the largest possible number, half as many per class as
    clients, and a mask. Used rows are counted as sent; the curve's `cluster_prototypes` has their
    number. RethinkFL code collects features in the last local epoch, while weights still change;
    this class does not.
    """

    name = "FPL"
    reference = "huang2023fpl"
    equations = (
        r"\mathrm{CE} - \log \frac{\sum_{p \in P_y} e^{s(z,p)/\tau}}{\sum_{p \in P} "
        r"e^{s(z,p)/\tau}} + \lVert z - u_y \rVert^2 / d",
        r"P_k = \mathrm{FINCH}\big(\{p_i^k\}_i\big), \qquad u_k = \text{mean of } P_k",
    )

    temperature: float = fl.hyper(
        0.02, "authors' code (RethinkFL); MarsFL code 0.2", "code", (0.2, 0.05, 0.1), low=0.001
    )
    prototypes_in_training_mode: bool = fl.hyper(
        False, "of the trained network", "decided", code="RethinkFL code: in training mode"
    )
    prototypes_of_augmented_images: bool = fl.hyper(
        False, "of the images", "decided", code="RethinkFL code: of augmented ones"
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "RethinkFL code", "code")

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        prototypes, present = fl.received_table(received)
        classes = out.logits.shape[1]
        owner = torch.arange(classes, device=batch.y.device)
        owner = owner.repeat_interleave(len(prototypes) // classes)
        unbiased, clusters = fl.class_means(prototypes, owner, classes, weights=present)
        known = prototypes, present, self.temperature, owner
        return {
            "ce": fl.cross_entropy(out.logits, batch.y),
            "contrast": fl.losses.prototype_contrast(out.features, batch.y, *known),
            "consistency": fl.losses.prototype_mse(out.features, batch.y, unbiased, clusters),
        }

    def init_server(self, server: fl.Server) -> None:
        self.hold(server, *self.joined(*fl.empty_table(server, server.clients, server.classes)))

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        super().server_step(server, uploads)
        server.log["cluster_prototypes"] = float(server.tensors["present"].sum())

    def stacked(self, server: fl.Server, uploads: fl.Uploads) -> tuple[Tensor, Tensor]:
        # Room for all clients, also those that do not participate: the table keeps its shape.
        room, owned = fl.empty_table(server, server.clients, server.classes)
        rows = [upload.client for upload in uploads]
        room[rows], owned[rows] = super().stacked(server, uploads)
        return room, owned

    def joined(self, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        prototypes, _, present = fl.prototypes.finch_prototypes(stack, told)
        return prototypes, present
