"""The networks: sizes the papers' printed traffic fixes, shapes, parts, and learning at all."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.models import build_model, discriminator, layout, parameter_count
from tests import embedded
from tests.data.made import one_line


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
    amplifier = parameter_count(discriminator(2048, 4, batch_norm=True))
    assert parameter_count(model) == encoder + classifier
    assert round(encoder / 1e6, 1) == 23.5 and round(classifier / 1e6, 2) == 1.32
    assert round(100 * classifier / encoder, 2) == 5.61
    assert round(100 * amplifier / encoder, 2) == 5.59
    assert round(100 * (amplifier + classifier) / (encoder + classifier), 1) == 10.6


# Layers added by hand; of the digit CNN 6,272 values are flattened at 28 pixels.
SIZES = [
    ("resnet10", 32, 512, 4_903_242),
    ("resnet18", 32, 512, 11_173_962),
    ("narrow-resnet", 32, 128, 464 + 4_672 + 14_528 + 57_728 + 230_144 + 1_290),
    ("digit-cnn", 28, 512, 312_768 + 6_273 * 2048 + 4_096 + 2_049 * 512 + 1_024 + 5_130),
]


@pytest.mark.parametrize(("name", "size", "features", "values"), SIZES)
def test_networks_of_public_code_have_the_known_sizes(name, size, features, values):
    model = build_model(name, 10, size).eval()
    assert parameter_count(model) == values
    with torch.no_grad():
        z = model(torch.randn(2, 3, size, size)).features
    assert z.shape == (2, features) and float(z.min()) >= 0


@pytest.mark.parametrize(
    ("name", "size"),
    [("adcol-resnet50", 28), ("fedpall-resnet50", 64), ("small-cnn", 8), ("tiny-cnn", 33),
     ("narrow-resnet", 8)],
)  # fmt: skip
def test_networks_take_small_images_and_train(name, size):
    model = build_model(name, 7, size)
    out = model(torch.randn(2, 3, size, size))
    assert out.features.shape == (2, model.feature_size) and out.logits.shape == (2, 7)
    assert model.feature_size == 2048 or "50" not in name
    out.logits.sum().backward()
    assert next(model.encoder.parameters()).grad is not None


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
        ("adcol-resnet50", 28, {"representation": 2.5}, "whole number of 1 or more"),
        ("tiny-cnn", 7, {}, "8 pixels or more, not 7"),
    ],
)
def test_wrong_names_arguments_and_sizes_are_one_clear_line(name, size, args, says):
    with one_line(says):
        build_model(name, 10, size, **args)


def test_the_import_door_leaves_torchvision_whole_in_a_fresh_process():
    code = "from fedrepro.base._torchvision import load_torchvision as load; tv = load()"
    code += "; import torchvision; assert torchvision is tv is load() and tv.models.resnet18"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_papers_discriminator_is_an_mlp_of_three_layers():
    net = discriminator(2048, 5)
    # its 4-byte values are the 5.01 MiB of a round's traffic that are not representations
    assert round(4 * parameter_count(net) / 2**20, 2) == 5.01
    assert [type(m) for m in net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    with one_line("at least 1 value"):
        discriminator(16, 3, hidden=(0,))


def test_the_adapter_has_the_half_mebibyte_of_the_papers_table_3():
    model = build_model("adapter", 7, 512)
    assert 4 * parameter_count(model) == 2**19
    fixed = [name for name, info in layout(model).items() if info.is_fixed]
    assert fixed == ["predictor.weight"]
    with one_line("reduction = 40 leaves none of 12"):
        build_model("adapter", 7, 12, reduction=40)


def heads(run):
    return [client.personal(run.server.model)["predictor.weight"] for client in run.clients]


def directions(run):
    found = []
    for x, y in ((c.data.train.images.double(), c.data.train.labels) for c in run.clients):
        found.append(100 * F.normalize(torch.stack([x[y == k].mean(0) for k in range(3)]), dim=1))
    return found


def test_the_common_head_is_the_mean_of_the_clients_class_directions_and_an_own_one_theirs():
    run = embedded.start("FedAvg")
    expected = torch.stack(directions(run)).mean(0).float()
    torch.testing.assert_close(run.server.model["predictor.weight"], expected)
    torch.testing.assert_close(heads(run), [expected] * 3)
    own = embedded.start("SOLO", head="own")
    expected = [direction.float() for direction in directions(own)]
    own.run(Silent())
    torch.testing.assert_close(heads(own), expected)
    ditto = embedded.start("Ditto", head="own")
    ditto.run(Silent())
    torch.testing.assert_close([c.twin["predictor.weight"] for c in ditto.clients], expected)
    for name in ("FedPall", "FedRep"):
        with pytest.raises(FedReproError, match="predictor is frozen"):
            embedded.start(name).one_round()


def test_a_head_in_words_goes_before_class_means():
    texts = {f"domain{i}": torch.full((3, embedded.VALUES), i + 1.0) for i in range(3)}
    given = replace(embedded.federation(), texts=texts)
    run = embedded.start("FedAvg", given=given)
    assert (run.server.model["predictor.weight"] == 2).all()
    own = embedded.start("SOLO", given=given, head="own")
    assert (heads(own)[2] == 3).all()
