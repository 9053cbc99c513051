"""Residual networks, built from torchvision's classes without weights."""

from typing import Any, cast

from torch import nn

from fedrepro.base._torchvision import load_torchvision
from fedrepro.models.base import FLModel, bn_linear
from fedrepro.models.cnn import FASTEST

_POOLED_50 = 2048  # channels ResNet-50 ends in, pooled to one value each
_HIDDEN = 512
_BIG_IMAGE = 48  # from here on narrow-resnet pools after its stem


def _resnet50() -> nn.Module:
    encoder: Any = load_torchvision().models.resnet50(weights=None)
    encoder.fc = nn.Identity()
    return cast(nn.Module, encoder)


def adcol_resnet50(classes: int, size: int, representation: int = 2048) -> FLModel:
    """ADCOL's network: ResNet-50 from scratch, projection head, predictor; z (b, representation).

    Head: three fully connected layers with BatchNorm on each, as the paper says. It prints an input
    of 4096; ResNet-50 pools to 2048 and only 2048 explains the printed traffic (37,231,050 values
    at 10 classes). Where the paper is silent, ReLU between the layers and none after the last: the
    form of SimSiam, which it refers to. ``representation`` is the width of the last layer alone
    (Table 11: 512, 1024, 2048). Images may be of any size from 28 on; at 28x28 the last map is 1x1,
    so that a training batch needs at least two.
    """
    encoder = _resnet50()
    projection = nn.Sequential(
        *bn_linear(_POOLED_50, _POOLED_50),
        *bn_linear(_POOLED_50, _POOLED_50),
        *bn_linear(_POOLED_50, representation, relu=False),
    )
    predictor = nn.Sequential(*bn_linear(representation, _HIDDEN), nn.Linear(_HIDDEN, classes))
    return FLModel(encoder, projection, predictor, representation, FASTEST)


def fedpall_resnet50(classes: int, size: int) -> FLModel:
    """FedPall's network (Section 5.1): ResNet-50 from scratch and a three-layer classifier.

    z (b, 2048) is the pooled vector, never negative; there is no projection head. That BatchNorm
    and ReLU follow both hidden layers is read in the paper's public code. 23.51 M and, at 10
    classes, 1.32 M parameters, as the paper prints. Images: as for ADCOL's.
    """
    encoder = _resnet50()
    predictor = nn.Sequential(
        *bn_linear(_POOLED_50, _HIDDEN), *bn_linear(_HIDDEN, _HIDDEN), nn.Linear(_HIDDEN, classes)
    )
    return FLModel(encoder, nn.Identity(), predictor, _POOLED_50, FASTEST)


def resnet10(classes: int, size: int) -> FLModel:
    """ResNet-10 of the FPL code family: one basic block a stage (FedAPC, I2PFL)."""
    return _small_image_resnet(classes, blocks=1)


def resnet18(classes: int, size: int) -> FLModel:
    """ResNet-18 of the FPL code family: two basic blocks a stage (I2PFL on PACS)."""
    return _small_image_resnet(classes, blocks=2)


def narrow_resnet(classes: int, size: int, width: int = 16) -> FLModel:
    """ResNet-10 for one CPU core, the network of scale ``reduced`` for methods that need features
    as ResNets have them: z (b, 8 width) is the average of the last map after its ReLU, so never
    negative."""
    block = load_torchvision().models.resnet.BasicBlock
    stem = [nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width)]
    pool = [nn.MaxPool2d(3, stride=2, padding=1)] if size >= _BIG_IMAGE else []
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
    average of the last map after its ReLU. The family's class also carries an MLP that no loss
    reaches; it is left out. Initial values are PyTorch's layer defaults, as there, not
    torchvision's Kaiming ones."""
    resnet = load_torchvision().models.resnet
    encoder = resnet.ResNet(resnet.BasicBlock, [blocks] * 4)
    encoder.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    encoder.maxpool = nn.Identity()
    encoder.fc = nn.Identity()
    encoder.apply(_default_initialisation)
    return FLModel(encoder, nn.Identity(), nn.Linear(512, classes), 512, FASTEST)


def _default_initialisation(module: Any) -> None:
    if isinstance(module, nn.Conv2d):
        module.reset_parameters()
