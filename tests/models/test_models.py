"""The networks: sizes the papers' printed traffic fixes, shapes, parts, and learning at all."""

import subprocess
import sys
from itertools import product

import pytest
import torch
from torch import nn

from fedrepro.base.rng import seeded_modules
from fedrepro.models import build_model, discriminator, layout, parameter_count
from tests.data.made import one_line


def images(n: int, size: int) -> torch.Tensor:
    return torch.randn(n, 3, size, size)


def test_adcol_network_has_the_values_its_printed_traffic_implies():
    model = build_model("adcol-resnet50", 10, 28)
    state = model.state_dict()
    travelling = sum(state[i.name].numel() for i in layout(model).values() if not i.is_counter)
    assert travelling == 37_231_050
    # 2 x 4 bytes a value = 284.05 MiB a round, as printed volumes over rounds give
    assert round(2 * 4 * travelling / 2**20, 2) == 284.05


def test_fedpalls_network_has_the_printed_parameter_counts_and_shares():
    """The shares are those of ten classes and four clients."""
    model = build_model("fedpall-resnet50", 10, 28)
    encoder, classifier = parameter_count(model.encoder), parameter_count(model.predictor)
    assert parameter_count(model.projection) == 0 and isinstance(model.projection, nn.Identity)
    assert round(encoder / 1e6, 1) == 23.5
    # 2048*512 + 512*512 + 512*10 weights, biases of all three, two BatchNorms of 512
    assert classifier == 1_048_576 + 262_144 + 5_120 + 512 + 512 + 10 + 2 * 1_024
    assert round(classifier / 1e6, 2) == 1.32
    assert round((encoder + classifier) / 1e6, 1) == 24.8
    amplifier = parameter_count(discriminator(2048, 4, batch_norm=True))
    assert round(100 * classifier / encoder, 2) == 5.61
    assert round(100 * amplifier / encoder, 2) == 5.59
    assert round(amplifier / 1e6, 2) == 1.31  # the paper prints 1.33
    assert round(100 * (amplifier + classifier) / (encoder + classifier), 1) == 10.6


# conv + BN + blocks + shortcuts + linear, added by hand
@pytest.mark.parametrize(("name", "values"), [("resnet10", 4_903_242), ("resnet18", 11_173_962)])
def test_basic_resnets_have_the_known_sizes(name, values):
    model = build_model(name, 10, 32).eval()
    assert parameter_count(model) == values
    with torch.no_grad():
        features = model(images(2, 32)).features
        maps = nn.Sequential(*list(model.encoder.children())[:-2])(images(1, 32))
    assert features.shape == (2, 512) and float(features.min()) >= 0
    assert maps.shape == (1, 512, 4, 4)  # stride 1 stem, no max-pool


def test_digit_cnn_flattens_6272_values_and_follows_the_size():
    linears = [m for m in build_model("digit-cnn", 10, 28).modules() if isinstance(m, nn.Linear)]
    sizes = [(m.in_features, m.out_features) for m in linears]
    assert sizes == [(6272, 2048), (2048, 512), (512, 10)]
    assert build_model("digit-cnn", 7, 32)(images(2, 32)).features.shape == (2, 512)


def test_pfl_cnn_has_the_public_sizes_no_batch_norm_and_starts_glorot_uniform():
    with seeded_modules(0):
        model = build_model("pfl-cnn", 10, 32)
    # 3*32*9 + 32, 32*64*9 + 64, 64*14*14*128 + 128, 128*10 + 10
    assert parameter_count(model) == 896 + 18_496 + 1_605_760 + 1_290
    assert not any(info.is_bn or info.is_buffer for info in layout(model).values())
    bound = (6 / (12_544 + 128)) ** 0.5
    assert bound * 0.999 < float(model.encoder[6].weight.detach().abs().max()) <= bound
    out = model(images(2, 32))
    assert out.features.shape == (2, 128) and float(out.features.detach().min()) >= 0
    assert build_model("pfl-cnn", 4, 6)(images(2, 6)).logits.shape == (2, 4)


@pytest.mark.parametrize("name", ["digit-cnn", "small-cnn", "tiny-cnn", "pfl-cnn"])
def test_pooling_before_relu_makes_no_difference(name):
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
    x, y = images(16, 28), torch.arange(16) % 10
    gradients = []
    for logits in (ours(x).logits, usual(x)):
        ours.zero_grad()
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in ours.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


DEEP = [("adcol-resnet50", 28), ("fedpall-resnet50", 28), ("fedpall-resnet50", 64)]


@pytest.mark.parametrize(
    ("name", "size"),
    [*DEEP, *product(["small-cnn", "tiny-cnn", "narrow-resnet"], [8, 16, 28, 33, 64])],
)
def test_networks_take_small_images_and_train(name, size):
    model = build_model(name, 7, size)
    out = model(images(2, size))
    assert out.features.shape == (2, model.feature_size) and out.logits.shape == (2, 7)
    assert model.feature_size == 2048 or "50" not in name
    out.logits.sum().backward()
    assert next(model.encoder.parameters()).grad is not None


def test_narrow_resnet_has_resnet_10s_features_at_one_16th_of_its_size():
    model = build_model("narrow-resnet", 10, 32)
    z = model(images(4, 32)).features
    assert z.shape == (4, 128) and (z >= 0).all() and (z > 0).any()
    widths, full = (
        [m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d)]
        for network in (model, build_model("resnet10", 10, 32))
    )
    assert [4 * width for width in widths] == full
    with_pool = build_model("narrow-resnet", 7, 64)
    assert sum(isinstance(m, nn.MaxPool2d) for m in with_pool.modules()) == 1


def test_layout_tells_batch_norm_by_type_even_in_shortcuts():
    model = build_model("resnet10", 10, 32)
    infos = layout(model)
    assert list(infos) == list(model.state_dict())
    plain = {n for n, i in infos.items() if "downsample" in n and not i.is_bn}
    assert plain == {f"encoder.layer{stage}.0.downsample.0.weight" for stage in (2, 3, 4)}
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    kinds = [(i.is_bn, i.is_counter, i.is_buffer) for i in infos.values()]
    assert [sum(kind) for kind in zip(*kinds, strict=True)] == [5 * norms, norms, 3 * norms]


@pytest.mark.parametrize(
    ("name", "size", "args", "says"),
    [
        ("resnet51", 28, {}, "choose from .*resnet"),
        ("small-cnn", 28, {"depth": 3}, "it takes width"),
        ("resnet10", 28, {"width": 3}, "it takes none"),
        ("narrow-resnet", 28, {"width": 0}, "whole number of 1 or more"),
        ("adcol-resnet50", 28, {"representation": 2.5}, "whole number of 1 or more"),
        ("adcol-resnet50", 28, {"representation": True}, "whole number of 1 or more"),
        ("tiny-cnn", 7, {}, "8 pixels or more, not 7"),
        ("small-cnn", 7, {}, "8 pixels or more, not 7"),
    ],
)
def test_wrong_names_arguments_and_sizes_are_one_clear_line(name, size, args, says):
    with one_line(says):
        build_model(name, 10, size, **args)


def test_the_import_door_leaves_torchvision_whole_in_a_fresh_process():
    code = (
        "from fedrepro.base._torchvision import load_torchvision as load\n"
        "tv = load()\n"
        "assert tv is load()\n"
        "import torchvision\n"
        "assert torchvision is tv and torchvision.models.resnet18 is tv.models.resnet18\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_discriminators():
    """By default the paper's MLP of three layers; with BatchNorm its linears have no biases."""
    net = discriminator(2048, 5)
    # its 4-byte values are the 5.01 MiB of a round's traffic that are not representations
    assert round(4 * parameter_count(net) / 2**20, 2) == 5.01
    layers = [nn.Linear, nn.ReLU]
    assert [type(m) for m in net] == [*layers, *layers, nn.Linear]
    net = discriminator(16, 3, hidden=(8, 4), batch_norm=True)
    layers.insert(1, nn.BatchNorm1d)
    assert [type(m) for m in net] == [*layers, *layers, nn.Linear]
    assert all(m.bias is None for m in net if isinstance(m, nn.Linear))
    with one_line("at least 1 value"):
        discriminator(16, 3, hidden=(0,))
