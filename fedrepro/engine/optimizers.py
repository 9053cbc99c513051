"""Torch's optimisers of clients' parameters, with what they remember of earlier rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedrepro.base.protocol import OptimizerSpec

Named = Mapping[str, Tensor]


def slots(spec: OptimizerSpec, name: str) -> dict[str, str]:
    """What an optimiser remembers of a parameter: torch's word by the name it is kept under."""
    if spec.kind == "adamw":
        return {f"{slot}/{name}": slot for slot in ("exp_avg", "exp_avg_sq", "step")}
    return {name: "momentum_buffer"} if spec.momentum else {}


def build(
    spec: OptimizerSpec,
    moving: Sequence[Mapping[str, nn.Parameter]],
    kept: Sequence[Named],
    round: int,
) -> torch.optim.Optimizer:
    """The optimiser of some clients' parameters, with what each remembers of earlier rounds."""
    values = [value for named in moving for value in named.values()]
    rate, decay = spec.rate(round), spec.weight_decay
    optimizer: torch.optim.Optimizer
    if spec.kind == "adamw":
        optimizer = torch.optim.AdamW(values, lr=rate, weight_decay=decay, fused=True)
    else:
        # Fused steps need a momentum of all parameters or of none; clients begin apart.
        optimizer = torch.optim.SGD(
            values, lr=rate, momentum=spec.momentum, weight_decay=decay, fused=len(moving) == 1
        )
    for named, memory in zip(moving, kept, strict=True):
        for name, value in named.items():
            for key, slot in slots(spec, name).items():
                if key in memory:
                    # In the parameter's own memory format: a fused step reads both as they lie.
                    like = value if slot != "step" else memory[key]
                    place = torch.empty_like(like, device=value.device, requires_grad=False)
                    optimizer.state[value][slot] = place.copy_(memory[key])
    return optimizer


def remembered(
    spec: OptimizerSpec, optimizer: torch.optim.Optimizer, moving: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """What the optimiser has come to remember, under the names it is kept under."""
    found = {}
    for name, value in moving.items():
        for key, slot in slots(spec, name).items():
            if slot in optimizer.state[value]:
                found[key] = optimizer.state[value][slot].contiguous()
    return found
