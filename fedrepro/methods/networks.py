"""A protocol's networks with a method's own parts, as `Method.network` returns them."""

import torch
from torch import Tensor, nn

from fedrepro.methods.losses import NEVER
from fedrepro.models import FLModel, Output
from fedrepro.models.base import WrappedModel


class Shifted(Output):
    """Features z, logits of z + m, and the inputs of DBE's regulariser: the running mean (d,), with
    this batch's gradient, and whether m is used yet, 0 or 1."""

    running: Tensor
    started: Tensor


class ShiftedModel(WrappedModel):
    """A network whose predictor reads z + m, where m is a client's own trained vector (DBE).

    running_mean: r <- (1 - momentum) r + momentum mean(z) at every training batch.
    """

    running_mean: Tensor
    started: Tensor

    def __init__(self, module: FLModel, momentum: float) -> None:
        super().__init__(module)
        self.momentum = momentum
        self.client_mean = nn.Parameter(torch.zeros(module.feature_size))
        self.register_buffer("running_mean", torch.zeros(module.feature_size))
        self.register_buffer("started", torch.zeros(()))

    def forward(self, x: Tensor) -> Shifted:
        z: Tensor = self.projection(self.encoder(x))
        out = Shifted(z, self.predictor(z + self.started * self.client_mean))
        batch_mean = z.to(self.running_mean.dtype).mean(dim=0)
        out.running = (1 - self.momentum) * self.running_mean + self.momentum * batch_mean
        out.started = self.started
        if self.training:
            self.running_mean.copy_(out.running.detach())
        return out


class NearestPrototype(WrappedModel):
    """A network that classifies by its nearest prototype (FedProto).

    Its scores are minus the squared distances. Its logits, and so all losses, also the validation
    loss, are the predictor's. The predictor classifies while there are no prototypes (MPFT code).
    """

    prototypes: Tensor
    present: Tensor

    def __init__(self, module: FLModel) -> None:
        super().__init__(module)
        classes = self.classes()
        self.register_buffer("prototypes", torch.zeros(classes, module.feature_size))
        self.register_buffer("present", torch.zeros(classes, dtype=torch.bool))

    def scores(self, out: Output) -> Tensor:
        distance = torch.cdist(out.features, self.prototypes)
        nearest = torch.where(self.present, -distance.square(), NEVER)
        return torch.where(self.present.any(), nearest, out.logits)


class TwoEntrances(WrappedModel):
    """A network that takes images or, after its encoder, features (b, d) (RUCR)."""

    def forward(self, x: Tensor) -> Output:
        z = x if x.ndim == 2 else self.projection(self.encoder(x))
        return Output(z, self.predictor(z))
