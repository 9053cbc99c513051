from typing import Literal

import fedrepro.methods.api as fl
from fedrepro.methods.dbe import DBE


class DBEVariants(DBE):
    """With `mean_lr` the vector m has its own optimiser, with that learning rate."""

    first_round: Literal["discarded", "averaged"] = fl.hyper(
        "discarded",
        "authors' code then starts from the initial network; MPFT code lets each client go on from "
        "its own, nearest to which is the average",
        "code",
    )
    mean_lr: float | None = fl.hyper(
        None,
        "None: m is one of the network's parameters",
        "decided",
        (0.001,),
        low=1e-6,
        later=True,
        code="MPFT code: AdamW of its own at a steady 0.001, its gradient shortened by itself",
    )
    stops_by: Literal["personal", "common"] = fl.hyper(
        "personal", "what is tested; MPFT code: without m", "decided", later=True
    )

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        own = {"warmup": 0, "cosine": None, "lr": self.mean_lr}
        spec = protocol.optimizer.model_copy(update=own)
        apart = (("client_mean", spec),) if self.mean_lr else ()
        return (fl.Phase("local", protocol.local_epochs, apart=apart),)

    def watched(self) -> str | None:
        return "global" if self.stops_by == "common" else None  # whose m is 0

    def init_server(self, server: fl.Server) -> None:
        super().init_server(server)
        if self.first_round == "averaged":
            for name in [n for n in server.tensors if n.startswith("initial/")]:
                del server.tensors[name]
