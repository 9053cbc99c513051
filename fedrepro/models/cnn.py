"""Plain convolutional networks."""

import torch
from torch import nn

from fedrepro.base.errors import FedReproError
from fedrepro.models.base import FLModel, bn_linear

FASTEST = torch.channels_last  # 5 to 33 % off a training step on CPU cores


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, pool: int | None = None
) -> list[nn.Module]:
    """A convolution with BatchNorm, ReLU and, where asked for, max-pooling.

    It pools before the ReLU: values and gradients are the same to the bit, and the ReLU has a
    fraction of the work.
    """
    return [
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2),
        nn.BatchNorm2d(outputs),
        *([nn.MaxPool2d(pool)] if pool else []),
        nn.ReLU(),
    ]


def digit_cnn(classes: int, size: int) -> FLModel:
    """The digit CNN of FedBN, ADCOL's local model in Table 20: three 5x5 convolutions, and 6,272
    values at 28x28 into two hidden layers. z (b, 512) is the input of the last linear layer; there
    is no projection head."""
    _at_least("digit-cnn", size, 4)
    encoder = nn.Sequential(
        *_conv(3, 64, 5, pool=2),
        *_conv(64, 64, 5, pool=2),
        *_conv(64, 128, 5),
        nn.Flatten(),
        *bn_linear(128 * (size // 4) ** 2, 2048),
        *bn_linear(2048, 512),
    )
    return FLModel(encoder, nn.Identity(), nn.Linear(512, classes), 512, FASTEST)


_BIG_IMAGE = 48  # from here on the first convolution of small-cnn halves the image


def small_cnn(classes: int, size: int, width: int = 16, representation: int = 128) -> FLModel:
    """The network of scale ``reduced``: ADCOL's three parts at a size one CPU core can train. z (b,
    representation) is what the projection ends in, without ReLU."""
    _at_least("small-cnn", size, 8)
    stride = 2 if size >= _BIG_IMAGE else 1
    side = -(-size // stride) // 8
    d = representation
    encoder = nn.Sequential(
        *_conv(3, width, 3, stride, pool=2),
        *_conv(width, 2 * width, 3, pool=2),
        *_conv(2 * width, 4 * width, 3, pool=2),
        nn.Flatten(),
        *bn_linear(4 * width * side**2, d),
    )
    projection = nn.Sequential(*bn_linear(d, d), *bn_linear(d, d, relu=False))
    predictor = nn.Sequential(*bn_linear(d, 64), nn.Linear(64, classes))
    return FLModel(encoder, projection, predictor, d, FASTEST)


def pfl_cnn(classes: int, size: int) -> FLModel:
    """The network of pfl-research's CIFAR10 benchmark (its ``simple_cnn``), without BatchNorm: z
    (b, 128). Weights start Glorot-uniform, as there. Left out is its dropout, whose masks would
    come from the global generator. Pooling stands before the second ReLU here, as in `_conv`."""
    _at_least("pfl-cnn", size, 6)
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * ((size - 4) // 2) ** 2, 128),
        nn.ReLU(),
    )
    model = FLModel(encoder, nn.Identity(), nn.Linear(128, classes), 128, FASTEST)
    return model.apply(_glorot)


def tiny_cnn(classes: int, size: int) -> FLModel:
    """The network of scale ``smoke``: it proves the path in seconds and nothing about accuracy. z
    (b, 16)."""
    _at_least("tiny-cnn", size, 8)
    side = max(1, -(-size // 2) // 4)
    encoder = nn.Sequential(*_conv(3, 8, 5, 2, pool=4), nn.Flatten(), *bn_linear(8 * side**2, 32))
    projection = nn.Sequential(*bn_linear(32, 16, relu=False))
    return FLModel(encoder, projection, nn.Linear(16, classes), 16)


def _at_least(name: str, size: int, smallest: int) -> None:
    if size < smallest:
        raise FedReproError(f"{name} needs images of {smallest} pixels or more, not {size}")


def _glorot(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(module.weight)
