"""Fully connected parts: heads and the discriminator."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedrepro.base.errors import FedReproError


def bn_linear(inputs: int, outputs: int, relu: bool = True) -> list[nn.Module]:
    """Linear, BatchNorm and (unless it ends a head) ReLU: inputs (b, inputs) -> (b, outputs)."""
    layers: list[nn.Module] = [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)]
    return [*layers, nn.ReLU()] if relu else layers


class MLPDiscriminator(nn.Sequential):
    """Guesses from features (b, inputs) which client they come from: logits (b, outputs)."""


def discriminator(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (512, 512),
    batch_norm: bool = False,
    activation: bool = True,
) -> MLPDiscriminator:
    """ADCOL's discriminator, 2048-512-512-N by default (Section 3 and Table 19 of the paper).

    hidden: widths of the hidden layers; ``()`` is a single linear layer.
    batch_norm: BatchNorm after each hidden layer and no biases at all, the form third-party
        implementations use; the paper names neither.
    activation: ReLU after each hidden layer; False is Table 19's discriminator without
        non-linearities.

    Raises:
        FedReproError: a width below 1.
    """
    widths = [inputs, *hidden, outputs]
    if min(widths) < 1:
        raise FedReproError(f"discriminator widths {widths}: give every layer at least 1 value")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    last = len(widths) - 2
    for i, (a, b) in enumerate(pairwise(widths)):
        layers[f"linear{i + 1}"] = nn.Linear(a, b, bias=not batch_norm)
        if i < last and batch_norm:
            layers[f"bn{i + 1}"] = nn.BatchNorm1d(b)
        if i < last and activation:
            layers[f"relu{i + 1}"] = nn.ReLU()
    return MLPDiscriminator(layers)
