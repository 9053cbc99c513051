"""The networks: sizes the papers' printed traffic fixes, shapes, parts, and learning at all."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedrepro.base.errors import FedReproError
from fedrepro.base.rng import seeded_modules
from fedrepro.models import build_model, discriminator, layout, parameter_count


def test_adcol_network_has_the_values_its_printed_traffic_implies() -> None:
    model = build_model("adcol-resnet50", 10, 28)
    state = model.state_dict()
    travelling = sum(state[i.name].numel() for i in layout(model).values() if not i.is_counter)
    assert travelling == 37_231_050
    # 2 x 4 bytes a value = 284.05 MiB a round, as printed volumes over rounds give
    assert round(2 * 4 * travelling / 2**20, 2) == 284.05


def test_fedpalls_network_has_the_printed_parameter_counts() -> None:
    model = build_model("fedpall-resnet50", 10, 28)
    encoder, classifier = parameter_count(model.encoder), parameter_count(model.predictor)
    assert parameter_count(model.projection) == 0 and isinstance(model.projection, nn.Identity)
    assert round(encoder / 1e6, 1) == 23.5
    # 2048*512 + 512*512 + 512*10 weights, biases of all three, two BatchNorms of 512
    assert classifier == 1_048_576 + 262_144 + 5_120 + 512 + 512 + 10 + 2 * 1_024
    assert round(classifier / 1e6, 2) == 1.32
    assert round((encoder + classifier) / 1e6, 1) == 24.8


def test_fedpalls_printed_shares_are_those_of_ten_classes_and_four_clients() -> None:
    model = build_model("fedpall-resnet50", 10, 64)
    encoder = parameter_count(model.encoder)
    amplifier = parameter_count(discriminator(2048, 4, batch_norm=True))
    assert round(100 * parameter_count(model.predictor) / encoder, 2) == 5.61
    assert round(100 * amplifier / encoder, 2) == 5.59
    assert round(amplifier / 1e6, 2) == 1.31  # the paper prints 1.33
    both = amplifier + parameter_count(model.predictor)
    assert round(100 * both / (encoder + parameter_count(model.predictor)), 1) == 10.6


@pytest.mark.parametrize(
    ("name", "size", "d"),
    [("adcol-resnet50", 28, 2048), ("fedpall-resnet50", 28, 2048), ("fedpall-resnet50", 64, 2048)],
)
def test_deep_networks_take_small_images_and_train(name: str, size: int, d: int) -> None:
    model = build_model(name, 7, size)
    out = model(torch.randn(2, 3, size, size))
    assert out.features.shape == (2, d) and out.logits.shape == (2, 7)
    out.logits.sum().backward()
    assert model.encoder.conv1.weight.grad is not None


@pytest.mark.parametrize(
    ("name", "values"),
    # conv + BN + blocks + shortcuts + linear, added by hand
    [("resnet10", 4_903_242), ("resnet18", 11_173_962)],
)
def test_basic_resnets_have_the_known_sizes(name: str, values: int) -> None:
    model = build_model(name, 10, 32)
    assert parameter_count(model) == values
    model.eval()
    with torch.no_grad():
        features = model(torch.randn(2, 3, 32, 32)).features
        maps = nn.Sequential(*list(model.encoder.children())[:-2])(torch.randn(1, 3, 32, 32))
    assert features.shape == (2, 512) and float(features.min()) >= 0
    assert maps.shape == (1, 512, 4, 4)  # stride 1 stem, no max-pool


def test_digit_cnn_flattens_6272_values_and_follows_the_size() -> None:
    linears = [m for m in build_model("digit-cnn", 10, 28).modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linears] == [
        (6272, 2048),
        (2048, 512),
        (512, 10),
    ]
    wide = build_model("digit-cnn", 7, 32)
    assert wide(torch.randn(2, 3, 32, 32)).features.shape == (2, 512)


def test_pfl_cnn_has_the_public_sizes_and_no_batch_norm() -> None:
    model = build_model("pfl-cnn", 10, 32)
    # 3*32*9 + 32, 32*64*9 + 64, 64*14*14*128 + 128, 128*10 + 10
    assert parameter_count(model) == 896 + 18_496 + 1_605_760 + 1_290
    assert not any(info.is_bn or info.is_buffer for info in layout(model).values())
    out = model(torch.randn(2, 3, 32, 32))
    assert out.features.shape == (2, 128) and float(out.features.detach().min()) >= 0
    assert build_model("pfl-cnn", 4, 6)(torch.randn(2, 3, 6, 6)).logits.shape == (2, 4)


@pytest.mark.parametrize("name", ["digit-cnn", "small-cnn", "tiny-cnn", "pfl-cnn"])
def test_pooling_before_relu_makes_no_difference(name: str) -> None:
    """Losses and gradients of the usual order of layers, ReLU before pooling, to the bit."""
    with seeded_modules(0):
        ours = build_model(name, 10, 28)
    layers = list(ours.encoder)
    pools = [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
    assert pools
    for i in pools:
        layers[i], layers[i + 1] = layers[i + 1], layers[i]
        assert isinstance(layers[i], nn.ReLU)
    usual = nn.Sequential(*layers, ours.projection, ours.predictor)
    x = torch.randn(16, 3, 28, 28)
    y = torch.arange(16) % 10
    gradients = []
    for logits in (ours(x).logits, usual(x)):
        ours.zero_grad()
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in ours.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_pfl_cnn_starts_glorot_uniform() -> None:
    with seeded_modules(0):
        wide = build_model("pfl-cnn", 10, 32).encoder[6].weight
    bound = (6 / (12_544 + 128)) ** 0.5
    assert bound * 0.999 < float(wide.detach().abs().max()) <= bound


@pytest.mark.parametrize("name", ["small-cnn", "tiny-cnn", "narrow-resnet"])
@pytest.mark.parametrize("size", [8, 16, 28, 33, 64])
def test_small_networks_take_any_size(name: str, size: int) -> None:
    model = build_model(name, 7, size)
    out = model(torch.randn(3, 3, size, size))
    assert out.features.shape == (3, model.feature_size) and out.logits.shape == (3, 7)


def test_narrow_resnet_has_resnet_10s_features_at_one_16th_of_its_size() -> None:
    model = build_model("narrow-resnet", 10, 32)
    z = model(torch.randn(4, 3, 32, 32)).features
    assert z.shape == (4, 128) and (z >= 0).all() and (z > 0).any()
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    full = [m for m in build_model("resnet10", 10, 32).modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels * 4 for m in convolutions] == [m.out_channels for m in full]
    with_pool = build_model("narrow-resnet", 7, 64)
    assert sum(isinstance(m, nn.MaxPool2d) for m in with_pool.modules()) == 1


def test_layout_tells_batch_norm_by_type_even_in_shortcuts() -> None:
    model = build_model("resnet10", 10, 32)
    infos = layout(model)
    assert list(infos) == list(model.state_dict())
    shortcut = {n: i for n, i in infos.items() if "downsample" in n}
    assert {n for n, i in shortcut.items() if not i.is_bn} == {
        f"encoder.layer{stage}.0.downsample.0.weight" for stage in (2, 3, 4)
    }
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(i.is_bn for i in infos.values()) == 5 * len(norms)
    assert sum(i.is_counter for i in infos.values()) == len(norms)
    assert sum(i.is_buffer for i in infos.values()) == 3 * len(norms)


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("resnet51", {}, "choose one of adcol-resnet50"),
        ("small-cnn", {"depth": 3}, "its arguments: width, representation"),
        ("resnet10", {"width": 3}, "its arguments: none"),
        ("narrow-resnet", {"width": 0}, "whole number of 1 or more"),
        ("adcol-resnet50", {"representation": 2.5}, "whole number of 1 or more"),
        ("adcol-resnet50", {"representation": True}, "whole number of 1 or more"),
    ],
)
def test_wrong_names_and_arguments_are_one_clear_line(name: str, args: dict, says: str) -> None:
    with pytest.raises(FedReproError, match=says) as caught:
        build_model(name, 10, 28, **args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tiny-cnn", "small-cnn"])
def test_too_few_pixels_are_refused(name: str) -> None:
    with pytest.raises(FedReproError, match="8 pixels or more, not 7"):
        build_model(name, 10, 7)


def test_the_import_door_leaves_torchvision_whole_in_a_fresh_process() -> None:
    code = (
        "from fedrepro.base._torchvision import load_torchvision as load\n"
        "tv = load()\n"
        "assert tv is load()\n"
        "import torchvision\n"
        "assert torchvision is tv and torchvision.models.resnet18 is tv.models.resnet18\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Discriminators.


def test_default_is_the_papers_three_layer_mlp() -> None:
    net = discriminator(2048, 5)
    # its 4-byte values are the 5.01 MiB of a round's traffic that are not representations
    assert round(4 * parameter_count(net) / 2**20, 2) == 5.01
    assert [type(m) for m in net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_batch_norm_form_has_no_biases_in_its_linears() -> None:
    net = discriminator(16, 3, hidden=(8, 4), batch_norm=True)
    assert [type(m).__name__ for m in net] == [
        "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear",
    ]  # fmt: skip
    assert all(m.bias is None for m in net if isinstance(m, nn.Linear))


def test_an_empty_layer_is_refused() -> None:
    with pytest.raises(FedReproError, match="at least 1 value"):
        discriminator(16, 3, hidden=(0,))
