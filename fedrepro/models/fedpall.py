"""FedPall's network, built from torchvision's ResNet-50 without weights."""

from __future__ import annotations

import torch
from torch import nn

from fedrepro.base._torchvision import load_torchvision
from fedrepro.models.base import FLModel
from fedrepro.models.mlp import bn_linear

_POOLED = 2048  # channels ResNet-50 ends in, pooled to one value each
_HIDDEN = 512


def fedpall_resnet50(classes: int, size: int) -> FLModel:
    """FedPall's network (Section 5.1): ResNet-50 from scratch and a three-layer classifier.

    z is the 2048-d pooled vector, never negative, and there is no projection head. Classifier:
    2048-512-512-K; that BatchNorm and ReLU follow both hidden layers is read in the paper's public
    code. 23.51 M and, at 10 classes, 1.32 M parameters, as the paper prints.

    Images may be of any size from 28 on; at 28x28 the last map is 1x1, so that a training batch
    needs at least two images.
    """
    encoder = load_torchvision().models.resnet50(weights=None)
    encoder.fc = nn.Identity()
    predictor = nn.Sequential(
        *bn_linear(_POOLED, _HIDDEN), *bn_linear(_HIDDEN, _HIDDEN), nn.Linear(_HIDDEN, classes)
    )
    model = FLModel(encoder, nn.Identity(), predictor, _POOLED)
    model.memory_format = torch.channels_last  # as ADCOL's network, on CPU cores
    return model
