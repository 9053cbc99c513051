"""Which tensors a network has, and of what kind: the basis of every sharing rule and byte count."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedrepro.models.adapter import FrozenHead
from fedrepro.models.base import FLModel

Part = Literal["encoder", "projection", "predictor", "own"]  # own: tensors a method added


class TensorInfo(NamedTuple):
    """One entry of a network's state dict.

    is_bn: it belongs to a BatchNorm module, told by the module's type (a shortcut's BatchNorm is
    called ``downsample.1``; no name would tell).
    is_counter: BatchNorm's ``num_batches_tracked``. bytes: size as stored. is_fixed: of a head that
    every client was given before the first round; it never travels.
    """

    name: str
    part: Part
    is_bn: bool
    is_buffer: bool
    is_counter: bool
    bytes: int
    is_fixed: bool = False


def layout(model: FLModel) -> dict[str, TensorInfo]:
    """Every tensor of the state dict by name, in its order."""
    bn = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    fixed = {name for name, module in model.named_modules() if isinstance(module, FrozenHead)}
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    infos = {}
    for name, tensor in model.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        is_bn = owner in bn
        infos[name] = TensorInfo(
            name=name,
            part=_part(name),
            is_bn=is_bn,
            is_buffer=name not in parameters,
            is_counter=is_bn and leaf == "num_batches_tracked",
            bytes=tensor.numel() * tensor.element_size(),
            is_fixed=owner in fixed,
        )
    return infos


def _part(name: str) -> Part:
    head = name.split(".", 1)[0]
    return cast(Part, head) if head in get_args(Part) else "own"


def parameter_count(model: nn.Module) -> int:
    """Trainable values of a module."""
    return sum(p.numel() for p in model.parameters())
