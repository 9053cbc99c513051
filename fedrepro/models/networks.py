"""The networks: convolutional ones, plain or residual (built from torchvision's classes); MPFT's on
embeddings; and discriminators, which predict which client features come from."""

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedrepro.base._torchvision import load_torchvision
from fedrepro.base.errors import choices, need, one_of
from fedrepro.models.base import FLModel, FrozenHead

FASTEST = torch.channels_last  # saves 5 to 33 % of a training step on CPU cores
# from this size on small-cnn's first convolution halves, narrow-resnet pools after it
BIG_IMAGE = 48
POOLED_50 = 2048  # ResNet-50's last channels, pooled to one value each
HIDDEN = 512


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, pool: int | None = None
) -> list[nn.Module]:
    """A convolution with BatchNorm, ReLU and, optionally, max-pooling, which comes before the ReLU:
    the same values and gradients bit for bit with less work."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    pooling = [nn.MaxPool2d(pool)] if pool else []
    return [convolution, nn.BatchNorm2d(outputs), *pooling, nn.ReLU()]


def bn_linear(*widths: int, relu: bool = True) -> list[nn.Module]:
    """Layers of Linear, BatchNorm and ReLU: (b, first width) -> (b, last). relu: after the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return layers if relu else layers[:-1]


def digit_cnn(classes: int, size: int) -> FLModel:
    """The digit CNN of FedBN, ADCOL's local model in Table 20: three 5x5 convolutions, and 6,272
    values at 28x28 into two hidden layers. z (b, 512) is the last linear layer's input; no head."""
    need(size >= 4, f"digit-cnn needs images of 4 pixels or more, not {size}")
    encoder = nn.Sequential(
        *_conv(3, 64, 5, pool=2),
        *_conv(64, 64, 5, pool=2),
        *_conv(64, 128, 5),
        nn.Flatten(),
        *bn_linear(128 * (size // 4) ** 2, 2048, 512),
    )
    return FLModel(encoder, nn.Identity(), nn.Linear(512, classes), 512, FASTEST)


def small_cnn(classes: int, size: int, width: int = 16, representation: int = 128) -> FLModel:
    """The network of scale ``reduced``: ADCOL's three parts at a size one CPU core can train. z (b,
    representation) is the projection's output, without ReLU."""
    need(size >= 8, f"small-cnn needs images of 8 pixels or more, not {size}")
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
    projection = nn.Sequential(*bn_linear(d, d, d, relu=False))
    predictor = nn.Sequential(*bn_linear(d, 64), nn.Linear(64, classes))
    return FLModel(encoder, projection, predictor, d, FASTEST)


def tiny_cnn(classes: int, size: int) -> FLModel:
    """The network of scale ``smoke`` tests the code; its accuracy means nothing. z (b, 16)."""
    need(size >= 8, f"tiny-cnn needs images of 8 pixels or more, not {size}")
    side = max(1, -(-size // 2) // 4)
    encoder = nn.Sequential(*_conv(3, 8, 5, 2, pool=4), nn.Flatten(), *bn_linear(8 * side**2, 32))
    projection = nn.Sequential(*bn_linear(32, 16, relu=False))
    return FLModel(encoder, projection, nn.Linear(16, classes), 16)


# Residual.


def _resnet50() -> Any:
    encoder = load_torchvision().models.resnet50(weights=None)
    encoder.fc = nn.Identity()
    return encoder


def adcol_resnet50(classes: int, size: int, representation: int = 2048) -> FLModel:
    """ADCOL's network: ResNet-50 from scratch, projection head, predictor; z (b, representation).
    Head: three fully connected layers with BatchNorm on each, as the paper says. It prints an input
    of 4096; ResNet-50 pools to 2048 and only 2048 explains the printed traffic (37,231,050 values
    at 10 classes). Where the paper is silent: ReLU between the layers, none after the last, as in
    SimSiam, which it cites. ``representation`` is the width of the last layer only (Table 11: 512,
    1024, 2048). Images: 28 pixels or more; at 28 the last map is 1x1, so a batch needs two."""
    encoder = _resnet50()  # first, and predictors last: the initial values depend on the order
    head = bn_linear(POOLED_50, POOLED_50, POOLED_50, representation, relu=False)
    predictor = nn.Sequential(*bn_linear(representation, HIDDEN), nn.Linear(HIDDEN, classes))
    return FLModel(encoder, nn.Sequential(*head), predictor, representation, FASTEST)


def fedpall_resnet50(classes: int, size: int) -> FLModel:
    """FedPall's network (Section 5.1): ResNet-50 from scratch and a three-layer classifier.
    z (b, 2048) is the pooled vector, never negative; there is no projection head. BatchNorm and
    ReLU follow both hidden layers, as in the paper's public code. 23.51 M and, at 10 classes,
    1.32 M parameters, as printed in the paper. Images: as for ADCOL's."""
    encoder = _resnet50()
    predictor = nn.Sequential(*bn_linear(POOLED_50, HIDDEN, HIDDEN), nn.Linear(HIDDEN, classes))
    return FLModel(encoder, nn.Identity(), predictor, POOLED_50, FASTEST)


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


def small_image_resnet(blocks: int, classes: int, size: int) -> FLModel:
    """ResNet-10 or -18 of the FPL code family, for 32x32 images: one (FedAPC, I2PFL) or two (I2PFL
    on PACS) basic blocks per stage, a stem of stride 1, no max-pool. z (b, 512) is the average of
    the last map after its ReLU. The family's class also has an MLP without any loss; it is left
    out. Initial values are PyTorch's layer defaults, as there, not torchvision's."""
    resnet = load_torchvision().models.resnet
    encoder = resnet.ResNet(resnet.BasicBlock, [blocks] * 4)
    encoder.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    encoder.maxpool = nn.Identity()
    encoder.fc = nn.Identity()
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d):
            layer.reset_parameters()
    return FLModel(encoder, nn.Identity(), nn.Linear(512, classes), 512, FASTEST)


# On embeddings.


class Residual(nn.Module):
    """z + A(z), A two layers without biases, a ReLU after each: (b, size) -> (b, size)."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        down, up = nn.Linear(size, hidden, bias=False), nn.Linear(hidden, size, bias=False)
        self.fc = nn.Sequential(down, nn.ReLU(), up, nn.ReLU())

    def forward(self, z: Tensor) -> Tensor:
        return z + self.fc(z)  # type: ignore[no-any-return]


def adapter(classes: int, size: int, reduction: int = 4) -> FLModel:
    """MPFT's network on embeddings (b, size): the feature z + A(z), then a frozen head on its
    direction. A is size -> size / reduction -> size: 131,072 values at 512, the 0.5 MiB of the
    paper's Table 3. The head is zero until its values are set."""
    need(size >= reduction, f"adapter: reduction = {reduction} leaves none of {size} values")
    encoder = Residual(size, size // reduction)
    return FLModel(encoder, nn.Identity(), FrozenHead(size, classes), size)


# Protocols, and so run ids, have these names: none may change.
MODELS: dict[str, Callable[..., FLModel]] = {
    "adapter": adapter,
    "adcol-resnet50": adcol_resnet50,
    "digit-cnn": digit_cnn,
    "fedpall-resnet50": fedpall_resnet50,
    "narrow-resnet": narrow_resnet,
    "resnet10": partial(small_image_resnet, 1),
    "resnet18": partial(small_image_resnet, 2),
    "small-cnn": small_cnn,
    "tiny-cnn": tiny_cnn,
}


# Discriminators.


def discriminator(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (512, 512),
    batch_norm: bool = False,
    activation: bool = True,
) -> nn.Sequential:
    """ADCOL's discriminator: features (b, inputs) -> logits (b, outputs) of the client they come
    from. 2048-512-512-N by default (Sec. 5.1 of the paper).
    hidden: widths of the hidden layers; ``()`` is a single linear layer. batch_norm: BatchNorm
    after each hidden layer and no biases at all, as in third-party code; the paper has neither.
    activation: ReLU after each hidden layer; not in Table 19. FedReproError: a width below 1."""
    widths = [inputs, *hidden, outputs]
    need(min(widths) >= 1, f"discriminator widths {widths}: give every layer at least 1 value")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (a, b) in enumerate(pairwise(widths), start=1):
        layers[f"linear{i}"] = nn.Linear(a, b, bias=not batch_norm)
        if i <= len(hidden) and batch_norm:
            layers[f"bn{i}"] = nn.BatchNorm1d(b)
        if i <= len(hidden) and activation:
            layers[f"relu{i}"] = nn.ReLU()
    return nn.Sequential(layers)


class ResNetDiscriminator(nn.Module):
    """A ResNet-50 that reads features (b, d) as a picture of one channel: logits (b, outputs).
    The picture is as near to a square as d allows, 32x64 for 2048 values, row by row. How the
    paper's ResNet-50 reads a vector is not stated (App. B.6)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        rows = next(r for r in range(math.isqrt(inputs), 0, -1) if inputs % r == 0)
        self.shape = 1, rows, inputs // rows
        self.resnet = load_torchvision().models.resnet50(weights=None, num_classes=outputs)
        self.resnet.conv1 = nn.Conv2d(1, 64, kernel_size=7, stride=2, padding=3, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.resnet(z.unflatten(1, self.shape)))


class Panel(nn.Module):
    """Discriminators that are evaluated together, such as the last states of one, the newest
    first (at first unrelated ones): features (b, d) -> logits (members * b, outputs)."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([member(z) for member in self.members])

    def take(self, newest: nn.Module, first: bool) -> None:
        """Put a new state in front; the first trained state fills all places."""
        states = [newest.state_dict(), *(member.state_dict() for member in self.members)]
        for i in reversed(range(len(self.members))):
            self.members[i].load_state_dict(states[0] if first else states[i])


def build_model(name: str, classes: int, size: int, **args: Any) -> FLModel:
    """A fresh network of ``classes`` classes for images (b, 3, size, size) or embeddings (b, size).
    Initial values come from torch's global generator; build inside ``rng.seeded_modules``.
    FedReproError: unknown name, unknown or wrong argument."""
    build = MODELS[one_of(name, MODELS, "network")]
    known = [p for p in inspect.signature(build).parameters if p not in ("classes", "size")]
    for key, value in args.items():
        near = choices(key, known) or "none"
        need(key in known, f"{name} has no argument {key!r}; it takes {near}")
        whole = type(value) is int and value >= 1
        need(whole, f"{name}: {key} = {value!r} must be a whole number of 1 or more")
    return build(classes, size, **args)
