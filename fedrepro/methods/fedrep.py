from typing import Literal

import fedrepro.methods.api as fl


class FedRep(fl.Method):
    """The representation is averaged, the prediction head stays at its client.

    Each round trains the head with the representation frozen, then the representation with the
    head frozen; Collins et al. 2021, Alg. 1. Each client's network is tested on its own domain.
    BatchNorm statistics of the frozen part still follow the batches, as in the authors' code.
    """

    name = "FedRep"
    reference = "collins2021fedrep"
    equations = (
        r"h_i \leftarrow \arg\min_h \mathrm{CE}\big(h(f(x)), y\big)",
        r"f_i \leftarrow \arg\min_f \mathrm{CE}\big(h_i(f(x)), y\big)",
        r"f^{t+1} = \sum_i \frac{n_i}{n} f_i",
    )

    head_epochs: int | None = fl.hyper(
        None, "the protocol's, as FedPall code; the authors' code has 10", "code", (10,), low=1
    )
    body_epochs: int = fl.hyper(1, "authors' code and FedPall code", "code", (5, 10), low=1)
    shared: Literal["representation", "predictor"] = fl.hyper(
        "representation", "Collins, Alg. 1; ADCOL Sec. 5.1: the predictor", "stated"
    )
    final_head_epochs: int = fl.hyper(
        10, "authors' code: the heads alone, after the last round", "code", (0,)
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "FedPall code: the encoder's too", "code")

    def is_head(self, tensor: fl.TensorInfo) -> bool:
        return (tensor.part == "predictor") == (self.shared == "representation")

    def shares(self, tensor: fl.TensorInfo) -> bool:
        return not self.is_head(tensor)

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        return (
            fl.Phase("head", self.head_epochs or protocol.local_epochs, trains=self.is_head),
            fl.Phase("body", self.body_epochs, trains=self.shares),
        )

    def before_test(self, protocol: fl.Protocol, last_round: bool) -> tuple[fl.Phase, ...]:
        if last_round and self.final_head_epochs:
            return (fl.Phase("final-head", self.final_head_epochs, trains=self.is_head),)
        return ()
