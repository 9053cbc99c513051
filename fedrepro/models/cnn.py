"""Convolutional networks: plain ones, and residual ones built from torchvision's classes."""

from typing import Any, cast

import torch
from torch import nn

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.errors import FedReproError
from fedrepro.models.base import FLModel, bn_linear

FASTEST = torch.channels_last  # saves 5 to 33 % of a training step on CPU cores
# from this size on small-cnn's first convolution halves, narrow-resnet pools after it
BIG_IMAGE = 48
POOLED_50 = 2048  # ResNet-50's last channels, pooled to one value each
HIDDEN = 512


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, pool: int | None = None
) -> list[nn.Module]:
    """A convolution with BatchNorm, ReLU and, optionally, max-pooling.

    It pools before the ReLU: the same values and gradients bit for bit with less work.
    """
    return [
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2),
        nn.BatchNorm2d(outputs),
        *([nn.MaxPool2d(pool)] if pool else []),
        nn.ReLU(),
    ]


def digit_cnn(classes: int, size: int) -> FLModel:
    """The digit CNN of FedBN, ADCOL's local model in Table 20: three 5x5 convolutions, and 6,272
    values at 28x28 into two hidden layers. z (b, 512) is the last linear layer's input; no head."""
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


def small_cnn(classes: int, size: int, width: int = 16, representation: int = 128) -> FLModel:
    """The network of scale ``reduced``: ADCOL's three parts at a size one CPU core can train. z (b,
    representation) is the projection's output, without ReLU."""
    _at_least("small-cnn", size, 8)
    stride = 2 if size >= BIG_IMAGE else 1
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


def tiny_cnn(classes: int, size: int) -> FLModel:
    """The network of scale ``smoke`` tests the code; its accuracy means nothing. z (b, 16)."""
    _at_least("tiny-cnn", size, 8)
    side = max(1, -(-size // 2) // 4)
    encoder = nn.Sequential(*_conv(3, 8, 5, 2, pool=4), nn.Flatten(), *bn_linear(8 * side**2, 32))
    projection = nn.Sequential(*bn_linear(32, 16, relu=False))
    return FLModel(encoder, projection, nn.Linear(16, classes), 16)


def _at_least(name: str, size: int, smallest: int) -> None:
    if size < smallest:
        raise FedReproError(f"{name} needs images of {smallest} pixels or more, not {size}")


# Residual.


def _resnet50() -> nn.Module:
    encoder: Any = load_torchvision().models.resnet50(weights=None)
    encoder.fc = nn.Identity()
    return cast(nn.Module, encoder)


def adcol_resnet50(classes: int, size: int, representation: int = 2048) -> FLModel:
    """ADCOL's network: ResNet-50 from scratch, projection head, predictor; z (b, representation).

    Head: three fully connected layers with BatchNorm on each, as the paper says. It prints an input
    of 4096; ResNet-50 pools to 2048 and only 2048 explains the printed traffic (37,231,050 values
    at 10 classes). Where the paper is silent: ReLU between the layers, none after the last, as in
    SimSiam, which it cites. ``representation`` is the width of the last layer only
    (Table 11: 512, 1024, 2048). Images may have any size from 28 on; at 28x28 the last map is 1x1,
    so a training batch needs at least two.
    """
    encoder = _resnet50()
    projection = nn.Sequential(
        *bn_linear(POOLED_50, POOLED_50),
        *bn_linear(POOLED_50, POOLED_50),
        *bn_linear(POOLED_50, representation, relu=False),
    )
    predictor = nn.Sequential(*bn_linear(representation, HIDDEN), nn.Linear(HIDDEN, classes))
    return FLModel(encoder, projection, predictor, representation, FASTEST)


def fedpall_resnet50(classes: int, size: int) -> FLModel:
    """FedPall's network (Section 5.1): ResNet-50 from scratch and a three-layer classifier.

    z (b, 2048) is the pooled vector, never negative; there is no projection head. BatchNorm
    and ReLU follow both hidden layers, as in the paper's public code. 23.51 M and, at 10
    classes, 1.32 M parameters, as printed in the paper. Images: as for ADCOL's.
    """
    encoder = _resnet50()
    predictor = nn.Sequential(
        *bn_linear(POOLED_50, HIDDEN), *bn_linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, classes)
    )
    return FLModel(encoder, nn.Identity(), predictor, POOLED_50, FASTEST)


def resnet10(classes: int, size: int) -> FLModel:
    """ResNet-10 of the FPL code family: one basic block per stage (FedAPC, I2PFL)."""
    return _small_image_resnet(classes, blocks=1)


def resnet18(classes: int, size: int) -> FLModel:
    """ResNet-18 of the FPL code family: two basic blocks per stage (I2PFL on PACS)."""
    return _small_image_resnet(classes, blocks=2)


def narrow_resnet(classes: int, size: int, width: int = 16) -> FLModel:
    """ResNet-10 for one CPU core, the network of scale ``reduced`` for methods that need features
    as ResNets have them: z (b, 8 width), the mean of the last map after its ReLU, so never < 0."""
    block = load_torchvision().models.resnet.BasicBlock
    stem = [nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width)]
    pool = [nn.MaxPool2d(3, stride=2, padding=1)] if size >= BIG_IMAGE else []
    stages = [block(width, width)]
    for inputs in (width, 2 * width, 4 * width):
        shortcut = nn.Sequential(
            nn.Conv2d(inputs, 2 * inputs, 1, stride=2, bias=False), nn.BatchNorm2d(2 * inputs)
        )
        stages.append(block(inputs, 2 * inputs, stride=2, downsample=shortcut))
    encoder = nn.Sequential(*stem, nn.ReLU(), *pool, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return FLModel(encoder, nn.Identity(), nn.Linear(8 * width, classes), 8 * width, FASTEST)


def _small_image_resnet(classes: int, blocks: int) -> FLModel:
    """Basic-block ResNet for 32x32 images: a stem of stride 1, no max-pool. z (b, 512) is the
    average of the last map after its ReLU. The family's class also has an MLP without any loss; it
    is left out. Initial values are PyTorch's layer defaults, as there, not torchvision's."""
    resnet = load_torchvision().models.resnet
    encoder = resnet.ResNet(resnet.BasicBlock, [blocks] * 4)
    encoder.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    encoder.maxpool = nn.Identity()
    encoder.fc = nn.Identity()
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()
    return FLModel(encoder, nn.Identity(), nn.Linear(512, classes), 512, FASTEST)
