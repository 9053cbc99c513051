"""FedPall's network: the sizes the paper prints."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedrepro.models import build_model, discriminator, parameter_count


def test_the_printed_parameter_counts() -> None:
    model = build_model("fedpall-resnet50", 10, 28)
    encoder, classifier = parameter_count(model.encoder), parameter_count(model.predictor)
    assert parameter_count(model.projection) == 0 and isinstance(model.projection, nn.Identity)
    assert round(encoder / 1e6, 1) == 23.5
    # 2048*512 + 512*512 + 512*10 weights, biases of all three, two BatchNorms of 512
    assert classifier == 1_048_576 + 262_144 + 5_120 + 512 + 512 + 10 + 2 * 1_024
    assert round(classifier / 1e6, 2) == 1.32
    assert round((encoder + classifier) / 1e6, 1) == 24.8


def test_the_printed_shares_are_those_of_ten_classes_and_four_clients() -> None:
    model = build_model("fedpall-resnet50", 10, 64)
    encoder = parameter_count(model.encoder)
    amplifier = parameter_count(discriminator(2048, 4, batch_norm=True))
    assert round(100 * parameter_count(model.predictor) / encoder, 2) == 5.61
    assert round(100 * amplifier / encoder, 2) == 5.59
    assert round(amplifier / 1e6, 2) == 1.31  # the paper prints 1.33
    both = amplifier + parameter_count(model.predictor)
    assert round(100 * both / (encoder + parameter_count(model.predictor)), 1) == 10.6


@pytest.mark.parametrize(("size", "classes"), [(28, 10), (64, 7)])
def test_features_are_what_the_classifier_sees(size: int, classes: int) -> None:
    model = build_model("fedpall-resnet50", classes, size)
    out = model(torch.randn(2, 3, size, size))
    assert out.features.shape == (2, 2048) and out.logits.shape == (2, classes)
    assert float(out.features.detach().min()) >= 0  # pooled after ReLU
    out.logits.sum().backward()
    assert model.encoder.conv1.weight.grad is not None
    kinds = [type(layer) for layer in model.predictor]
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert kinds == [*hidden, *hidden, nn.Linear]
