from typing import Literal

import fedrepro.methods.api as fl


class FedProx(fl.Method):
    """FedAvg that keeps clients near the received network.

    Loss CE + (mu/2) ||w - w_received||^2 over the trained parameters; Li et al. 2020, Eq. 2. The
    term is zero at a round's first step, when both networks are equal.
    """

    name = "FedProx"
    reference = "li2020fedprox"
    equations = (r"\min_{w_i} \; \mathrm{CE} + \frac{\mu}{2} \lVert w_i - w^{t} \rVert^2",)

    mu: float = fl.hyper(
        0.01, "FedBN code; ADCOL Sec. 5.1 prints the best", "code", (10.0, 1.0, 0.1, 0.001)
    )
    clipped: Literal["loss", "ce"] = fl.hyper(
        "loss", "whose gradient is clipped; MPFT code: CE's alone", "decided", later=True
    )
    stops_by: Literal["common", "trained"] = fl.hyper(
        "common", "what is tested; MPFT code: before averaging", "decided", later=True
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "as FedAvg (FedBN code)", "code")

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        late = ("prox",) if self.clipped == "ce" else ()
        return (fl.Phase("local", protocol.local_epochs, unclipped=late),)

    def watched(self) -> str | None:
        return "trained" if self.stops_by == "trained" else None

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        ce = fl.cross_entropy(model(batch.x).logits, batch.y)
        distance = fl.losses.proximal(model.params, received["model"])
        return {"ce": ce, "prox": self.mu * distance}
