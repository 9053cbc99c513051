"""The discriminator: depth, biases and non-linearities as asked for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedrepro.base.errors import FedReproError
from fedrepro.models import MLPDiscriminator, discriminator, parameter_count


def test_default_is_the_papers_three_layer_mlp() -> None:
    net = discriminator(2048, 5)
    assert isinstance(net, MLPDiscriminator)
    # its 4-byte values are the 5.01 MiB of a round's traffic that are not representations
    assert round(4 * parameter_count(net) / 2**20, 2) == 5.01
    assert [type(m) for m in net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_no_hidden_layer_is_linear() -> None:
    net = discriminator(16, 3, hidden=())
    assert [type(m) for m in net] == [nn.Linear]
    assert parameter_count(net) == 16 * 3 + 3


def test_without_activation_the_whole_is_affine() -> None:
    net = discriminator(6, 3, hidden=(8, 8), activation=False).double()
    a, b = torch.randn(2, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(net(0.3 * a + 0.7 * b), 0.3 * net(a) + 0.7 * net(b))
    curved = discriminator(6, 3, hidden=(8, 8)).double()
    assert not torch.allclose(curved(0.3 * a + 0.7 * b), 0.3 * curved(a) + 0.7 * curved(b))


def test_batch_norm_form_has_no_biases_in_its_linears() -> None:
    net = discriminator(16, 3, hidden=(8, 4), batch_norm=True)
    assert [type(m).__name__ for m in net] == [
        "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear",
    ]  # fmt: skip
    assert all(m.bias is None for m in net if isinstance(m, nn.Linear))


def test_an_empty_layer_is_refused() -> None:
    with pytest.raises(FedReproError, match="at least 1 value"):
        discriminator(16, 3, hidden=(0,))
