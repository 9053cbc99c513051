"""What networks share: three parts, their tensors by name and kind; a network wrapped with a
method's own parts; and how a network runs with other tensors than its own."""

import copy
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

Module = TypeVar("Module", bound=nn.Module)
Part = Literal["encoder", "projection", "predictor", "own"]  # own: tensors added by a method


class Output(NamedTuple):
    """The result of a forward pass: features z (b, d) and class logits (b, K)."""

    features: Tensor
    logits: Tensor


class FLModel(nn.Module):
    """A classifier in three named parts, so that a method can choose which of them are sent.
    z = projection(encoder(x)) has ``feature_size`` values per image; logits = predictor(z).
    Without a projection head, ``nn.Identity`` is there. ``memory_format``: the fastest one."""

    def __init__(
        self,
        encoder: nn.Module,
        projection: nn.Module,
        predictor: nn.Module,
        feature_size: int,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection
        self.predictor = predictor
        self.feature_size = feature_size
        self.memory_format = memory_format

    def forward(self, x: Tensor) -> Output:
        """Images (b, 3, H, W), floating point and normalised -> features (b, d), logits (b, K)."""
        z: Tensor = self.projection(self.encoder(x))
        return Output(z, self.predictor(z))

    def scores(self, out: Output) -> Tensor:
        """Class scores (b, K), by default the logits; the highest one is the predicted class."""
        return out.logits


class WrappedModel(FLModel):
    """A protocol's network with a method's own parts; `Method.network` may return it."""

    def __init__(self, module: FLModel) -> None:
        parts = module.encoder, module.projection, module.predictor
        super().__init__(*parts, module.feature_size, module.memory_format)

    @torch.no_grad()
    def classes(self) -> int:
        predictor = architecture(self.predictor, training=False)
        return int(predictor(torch.zeros(1, self.feature_size)).shape[1])


class Shifted(Output):
    """Features z, logits of z + m, and the inputs of DBE's regulariser: the running mean (d,), with
    this batch's gradient, and whether m is used yet, 0 or 1."""

    running: Tensor
    started: Tensor


class ShiftedModel(WrappedModel):
    """A network whose predictor reads z + m, where m is a client's own trained vector (DBE).
    running_mean: r <- (1 - momentum) r + momentum mean(z) at every training batch."""

    running_mean: Tensor
    started: Tensor

    def __init__(self, module: FLModel, momentum: float) -> None:
        super().__init__(module)
        self.momentum = momentum
        self.client_mean = nn.Parameter(torch.zeros(module.feature_size))
        self.register_buffer("running_mean", torch.zeros(module.feature_size))
        self.register_buffer("started", torch.zeros(()))

    def forward(self, x: Tensor) -> Shifted:
        z: Tensor = self.projection(self.encoder(x))
        out = Shifted(z, self.predictor(z + self.started * self.client_mean))
        batch_mean = z.to(self.running_mean.dtype).mean(dim=0)
        out.running = (1 - self.momentum) * self.running_mean + self.momentum * batch_mean
        out.started = self.started
        if self.training:
            self.running_mean.copy_(out.running.detach())
        return out


class FrozenHead(nn.Module):
    """Logits W z / |z| with a W (K, d) that is given, never trained and never sent."""

    weight: Tensor

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(classes, size))

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(F.normalize(z, dim=-1), self.weight)


class TensorInfo(NamedTuple):
    """One entry of a network's state dict.
    is_bn: it belongs to a BatchNorm module, by type (a shortcut's is called ``downsample.1``).
    is_counter: BatchNorm's ``num_batches_tracked``. bytes: size as stored. is_fixed: part of a
    head that every client got before the first round; it is never sent."""

    name: str
    part: Part
    is_bn: bool
    is_buffer: bool
    is_counter: bool
    bytes: int
    is_fixed: bool = False


def layout(model: FLModel) -> dict[str, TensorInfo]:
    """Every tensor of the state dict by name, in its order."""
    modules = dict(model.named_modules())
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    infos = {}
    for name, tensor in model.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        head, is_bn = name.partition(".")[0], isinstance(modules.get(owner), _BatchNorm)
        infos[name] = TensorInfo(
            name=name,
            part=cast(Part, head) if head in get_args(Part) else "own",
            is_bn=is_bn,
            is_buffer=name not in parameters,
            is_counter=is_bn and leaf == "num_batches_tracked",
            bytes=tensor.nbytes,
            is_fixed=isinstance(modules.get(owner), FrozenHead),
        )
    return infos


def parameter_count(model: nn.Module) -> int:
    """The number of trainable values of a module."""
    return sum(p.numel() for p in model.parameters())


def norms(module: nn.Module) -> list[_BatchNorm]:
    return [m for m in module.modules() if isinstance(m, _BatchNorm)]


def seen_twice(module: Module) -> Module:
    """The network, whose BatchNorm statistics move at each batch as if it had passed twice."""
    for layer in norms(module):
        layer.momentum = 1 - (1 - (layer.momentum or 0.0)) ** 2
    return module


def architecture(module: Module, training: bool) -> Module:
    """A copy in a mode, to be run with other tensors, also under vmap, which cannot write batch
    counters: it has none. With batch statistics it has no running ones either: they are never
    read, and clients that share it cannot all write them."""
    module = copy.deepcopy(module).train(training).requires_grad_(False)
    for layer in norms(module):
        layer.num_batches_tracked = None
        if training:
            layer.running_mean = layer.running_var = None
    return module


def run_with(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Any:
    """The output of an `architecture` for x, with those of the tensors that it has."""
    own = module.state_dict()  # once: it costs as much as a small layer
    used = {name: value for name, value in tensors.items() if name in own}
    # no network of ours ties weights
    return functional_call(module, used, (x,), tie_weights=False, strict=True)
