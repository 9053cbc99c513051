"""Fully connected parts: heads, and the adapter between embeddings and a frozen head."""

from __future__ import annotations

from torch import Tensor, nn

from fedrepro.base.errors import FedReproError
from fedrepro.models.base import FLModel, FrozenHead


def bn_linear(inputs: int, outputs: int, relu: bool = True) -> list[nn.Module]:
    """Linear, BatchNorm and (unless it ends a head) ReLU: inputs (b, inputs) -> (b, outputs)."""
    layers: list[nn.Module] = [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)]
    return [*layers, nn.ReLU()] if relu else layers


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


def adapter(classes: int, size: int, reduction: int = 4) -> FLModel:
    """MPFT's network on embeddings (b, size): z + A(z), then a frozen head on its direction.

    A is size -> size / reduction -> size: 131,072 values at 512, the 0.5 MiB of the paper's
    Table 3. The feature is z + A(z). The head is zero until it is given its values.
    """
    if size < reduction:
        raise FedReproError(f"adapter: reduction = {reduction} leaves nothing of {size} values")
    encoder = Residual(size, size // reduction)
    return FLModel(encoder, nn.Identity(), FrozenHead(size, classes), size)
