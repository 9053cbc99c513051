"""Discriminators: they predict which client features come from."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.errors import FedReproError


def discriminator(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (512, 512),
    batch_norm: bool = False,
    activation: bool = True,
) -> nn.Sequential:
    """ADCOL's discriminator: features (b, inputs) -> logits (b, outputs) of the client they come
    from. 2048-512-512-N by default (Section 3 and Table 19 of the paper).

    hidden: widths of the hidden layers; ``()`` is a single linear layer. batch_norm: BatchNorm
    after each hidden layer and no biases at all, as in third-party code; the paper has neither.
    activation: ReLU after each hidden layer; not in Table 19. FedReproError: a width below 1.
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
    return nn.Sequential(layers)


class ResNetDiscriminator(nn.Module):
    """A ResNet-50 that reads features (b, d) as a picture of one channel: logits (b, outputs).

    The picture is as near to a square as d allows, 32x64 for 2048 values, row by row. How the
    paper's ResNet-50 reads a vector is not stated (App. B.6).
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        rows = next(r for r in range(math.isqrt(inputs), 0, -1) if inputs % r == 0)
        self.shape = 1, rows, inputs // rows
        self.resnet = load_torchvision().models.resnet50(weights=None, num_classes=outputs)
        self.resnet.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.resnet(z.unflatten(1, self.shape)))


class Panel(nn.Module):
    """Discriminators that are evaluated together, such as the last states of one, the newest first:
    features (b, d) -> logits (members * b, outputs)."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([member(z) for member in self.members])

    def take(self, newest: nn.Module, first: bool) -> None:
        """Put a new state in front; the first trained state fills all places."""
        states = [newest.state_dict(), *(member.state_dict() for member in self.members)]
        for i in range(len(self.members) - 1, -1, -1):
            self.members[i].load_state_dict(states[0] if first else states[i])
