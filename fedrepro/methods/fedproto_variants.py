from typing import Literal

import torch
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.methods.fedproto import FedProto


class FedProtoVariants(FedProto):
    """With `averages_networks` it is FedAvg with FedProto's term: networks are sent too, and the
    server's is tested. With `inference` "prototype" the nearest global prototype classifies."""

    averages_networks: bool = fl.hyper(
        False,
        "Tan et al., Alg. 1 and FedPall code",
        "stated",
        code="True: RethinkFL and MarsFL code, whose family I2PFL's and FedAPC's tables come from",
    )
    inference: Literal["classifier", "prototype"] = fl.hyper(
        "classifier",
        "FedPall code and RethinkFL code; Tan et al., Eq. 4, and MPFT code: nearest global "
        "prototype; the authors' code prints both",
        "code",
    )
    second_pass: bool = fl.hyper(
        False, "RethinkFL code: twice; BatchNorm's statistics see it", "code", later=True
    )
    prototypes_of: Literal["features", "inputs"] = fl.hyper(
        "features",
        "Tan et al., Eq. 3",
        "stated",
        later=True,
        code="inputs: MPFT code sends means of the frozen embeddings, which the adapted features "
        "of a test are compared with",
    )

    def network(self, module: fl.FLModel) -> fl.FLModel:
        module = fl.seen_twice(module) if self.second_pass else module
        return NearestPrototype(module) if self.inference == "prototype" else module

    def shares(self, tensor: fl.TensorInfo) -> bool:
        return self.averages_networks and tensor.name not in fl.prototypes.HELD

    def overwrites(self, tensor: fl.TensorInfo) -> bool:
        # The network's copy of the prototypes came in a separate message.
        return tensor.name in fl.prototypes.HELD or super().overwrites(tensor)

    def hold(self, server: fl.Server, prototypes: Tensor, present: Tensor) -> None:
        super().hold(server, prototypes, present)
        if self.inference == "prototype":
            server.model |= {kind: server.tensors[kind] for kind in fl.prototypes.HELD}

    def sent_features(self, client: fl.TrainedClient) -> Tensor:
        inputs = self.prototypes_of == "inputs"
        return client.embeddings() if inputs else super().sent_features(client)


class NearestPrototype(fl.WrappedModel):
    """A network that classifies by its nearest prototype (FedProto).

    Its scores are minus the squared distances. Its logits, and so all losses, also the validation
    loss, are the predictor's. The predictor classifies while there are no prototypes (MPFT code).
    """

    prototypes: Tensor
    present: Tensor

    def __init__(self, module: fl.FLModel) -> None:
        super().__init__(module)
        classes = self.classes()
        self.register_buffer("prototypes", torch.zeros(classes, module.feature_size))
        self.register_buffer("present", torch.zeros(classes, dtype=torch.bool))

    def scores(self, out: fl.Output) -> Tensor:
        distance = torch.cdist(out.features, self.prototypes)
        nearest = torch.where(self.present, -distance.square(), fl.losses.NEVER)
        return torch.where(self.present.any(), nearest, out.logits)
