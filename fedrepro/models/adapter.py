"""A small trained part between a frozen encoder's embeddings and a frozen head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.base.errors import FedReproError
from fedrepro.models.base import FLModel


class Residual(nn.Module):
    """z + A(z), A two layers without biases, a ReLU after each: (b, size) -> (b, size)."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(size, hidden, bias=False),
            nn.ReLU(),
            nn.Linear(hidden, size, bias=False),
            nn.ReLU(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return z + self.fc(z)  # type: ignore[no-any-return]


class FrozenHead(nn.Module):
    """Logits W z / |z| with a W (K, d) that is given, never trained and never sent."""

    weight: Tensor

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(classes, size))

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(F.normalize(z, dim=-1), self.weight)


def adapter(classes: int, size: int, reduction: int = 4) -> FLModel:
    """MPFT's network on embeddings (b, size): z + A(z), then a frozen head on its direction.

    A is size -> size / reduction -> size: 131,072 values at 512, the 0.5 MiB of the paper's
    Table 3. The feature is z + A(z). The head is zero until it is given its values.
    """
    if size < reduction:
        raise FedReproError(f"adapter: reduction = {reduction} leaves nothing of {size} values")
    encoder = Residual(size, size // reduction)
    return FLModel(encoder, nn.Identity(), FrozenHead(size, classes), size)
