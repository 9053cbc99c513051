"""The shape every network has: encoder, projection head, predictor."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Output(NamedTuple):
    """What one forward pass gives: features z (b, d) and class logits (b, K)."""

    features: Tensor
    logits: Tensor


class FLModel(nn.Module):
    """A classifier in three named parts, so that a method can say which of them travels.

    z = projection(encoder(x)) has ``feature_size`` values per image; logits = predictor(z).
    A network without a projection head has ``nn.Identity`` there. ``memory_format`` is the one it
    was measured fastest in.
    """

    memory_format = torch.contiguous_format

    def __init__(
        self, encoder: nn.Module, projection: nn.Module, predictor: nn.Module, feature_size: int
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection
        self.predictor = predictor
        self.feature_size = feature_size

    def forward(self, x: Tensor) -> Output:
        """Images (b, 3, H, W), floating point and normalised -> features (b, d), logits (b, K)."""
        z: Tensor = self.projection(self.encoder(x))
        return Output(z, self.predictor(z))

    def scores(self, out: Output) -> Tensor:
        """What it classifies by (b, K), the highest one naming the class: its logits."""
        return out.logits


class WrappedModel(FLModel):
    """A protocol's network with something of a method's own: what `Method.network` may return."""

    def __init__(self, module: FLModel) -> None:
        super().__init__(module.encoder, module.projection, module.predictor, module.feature_size)
        self.memory_format = module.memory_format

    @torch.no_grad()
    def classes(self) -> int:
        """How many classes the predictor tells apart."""
        predictor = copy.deepcopy(self.predictor).eval()
        return int(predictor(torch.zeros(1, self.feature_size)).shape[1])
