from typing import Literal

import fedrepro.methods.api as fl


class FedProto(fl.PrototypeMessages, fl.Method):
    """Clients keep their networks; mean features of their classes are averaged instead.

    Loss CE + lambda times the element-wise mean squared distance between a sample's feature and its
    class's global prototype; Tan et al. 2022, Eq. 7, with the distance of the authors' code (the
    paper's Eq. 8 is between class means). The first round has no prototypes and no such term. A
    client sends a mean feature of each of its classes and its class counts, and receives all
    global prototypes. Each client's network is tested on its own domain. The authors' and RethinkFL
    code collect features in the last local epoch, while weights still change; this class does not.
    """

    name = "FedProto"
    reference = "tan2022fedproto"
    averages = False
    tells = "counts"
    equations = (
        r"\mathrm{CE} + \lambda \, \lVert z - g_y \rVert^2 / d",
        r"g_k = \frac{1}{|\mathcal{N}_k|} \sum_{i \in \mathcal{N}_k} p_i^k, \qquad p_i^k = "
        r"\text{mean of } z \text{ over class } k",
    )

    lam: float = fl.hyper(
        1.0,
        "lambda; authors' code, FedPall code and FedDAP code 1, the authors' CIFAR-10 example 0.1, "
        "MarsFL code 2, MPFT Sec. C.2 50 (its code leaves the term out)",
        "code",
        (0.1, 2.0, 50.0),
    )
    prototype_weighting: Literal["clients", "images"] = fl.hyper(
        "clients",
        "authors' and RethinkFL code: plain mean over the clients with the class; FedPall code: by "
        "class counts, as Eq. 6, whose further 1/|N_j| nobody applies",
        "code",
    )
    prototypes_in_training_mode: bool = fl.hyper(
        False, "FedPall code; authors' and RethinkFL code: in training mode", "code"
    )
    prototypes_of_augmented_images: bool = fl.hyper(
        False, "Tan et al., Eq. 3: of the images", "stated", code="all code: of augmented ones"
    )
    bn_policy: fl.BNPolicy = fl.hyper(
        "average", "RethinkFL code; no effect without averaging", "code"
    )

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        distance = fl.losses.prototype_mse(out.features, batch.y, *fl.received_table(received))
        return {"ce": fl.cross_entropy(out.logits, batch.y), "prototype": self.lam * distance}
