from typing import Literal

import fedrepro.methods.api as fl


class Ditto(fl.Method):
    """FedAvg, and each client's own network v, which is pulled towards the received one w.

    v <- v - lr (grad CE(v) + lambda (v - w)), Li et al. 2021, Alg. 1: plain gradient steps on
    CE + lambda/2 ||v - w||^2, before the client trains w. Only w is sent. Each client's v is
    tested on its own domain. If a maximal length is given, only CE's gradient is clipped.
    """

    name = "Ditto"
    reference = "li2021ditto"
    equations = (
        r"w^{t+1} = \sum_i \frac{n_i}{n} w_i",
        r"v_i \leftarrow v_i - \eta \big(\nabla \mathrm{CE}(v_i) + \lambda (v_i - w^t)\big)",
    )

    lam: float = fl.hyper(
        2.0, "MPFT Sec. C.2", "stated", (1.0, 0.1), code="authors' code 0.1, 1 or 2; FL-bench 1"
    )
    personal_epochs: int | None = fl.hyper(
        1, "MPFT Sec. C.2; None: the protocol's", "stated", (None,), low=1, code="FL-bench code"
    )
    personal_lr: float | None = fl.hyper(
        None, "the protocol's: PFLlib and MPFT code have one rate for both", "code", low=1e-6
    )
    personal_clip: float | None = fl.hyper(
        None, "Alg. 1", "stated", (1.0,), low=1e-6, later=True, code="MPFT code: 1, of CE"
    )
    stops_by: Literal["personal", "common"] = fl.hyper(
        "personal", "what is tested; MPFT code watches w", "decided", later=True
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "as FedAvg; v has its own", "inferred")

    def personal_phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        epochs = self.personal_epochs or protocol.local_epochs
        clip, rate = self.personal_clip, self.personal_lr or protocol.optimizer.lr
        plain = fl.OptimizerSpec(lr=rate, clip=clip)
        late = () if clip is None else ("pull",)
        phase = fl.Phase("personal", epochs, optimizer=plain, loss="personal_loss", unclipped=late)
        return (phase,)

    def personal_loss(
        self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message
    ) -> fl.Terms:
        """CE + lambda/2 ||v - w||^2 over the shared tensors of w."""
        ce = fl.cross_entropy(model(batch.x).logits, batch.y)
        distance = fl.losses.proximal(model.params, received["model"])
        return {"ce": ce, "pull": self.lam * distance}

    def evaluated_models(self, layout: fl.Layout) -> tuple[str, ...]:
        return ("twin",)

    def watched(self) -> str | None:
        return "global" if self.stops_by == "common" else None
