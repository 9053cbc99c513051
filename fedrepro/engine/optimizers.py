"""What a step does to the weights: one client's optimiser as torch has it, and the same step on
stacked clients, each with its own rate, gradient length and step count."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from fedrepro.protocol import OptimizerSpec

Named = Mapping[str, Tensor]
BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch.optim.AdamW's defaults
SHORTEST = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to a length before it divides by it


def slots(spec: OptimizerSpec, name: str) -> dict[str, str]:
    """What an optimiser remembers of a parameter: torch's word by the name it is kept under."""
    if spec.kind == "adamw":
        return {f"{slot}/{name}": slot for slot in ("exp_avg", "exp_avg_sq", "step")}
    return {name: "momentum_buffer"} if spec.momentum else {}


def build(
    spec: OptimizerSpec, moving: Mapping[str, nn.Parameter], kept: Named, round: int
) -> torch.optim.Optimizer:
    """The optimiser of one client's parameters, with what it remembers of earlier rounds."""
    values, rate, decay = list(moving.values()), spec.rate(round), spec.weight_decay
    optimizer: torch.optim.Optimizer
    if spec.kind == "adamw":
        optimizer = torch.optim.AdamW(values, lr=rate, weight_decay=decay, fused=True)
    else:
        optimizer = torch.optim.SGD(
            values, lr=rate, momentum=spec.momentum, weight_decay=decay, fused=True
        )
    for name, value in moving.items():
        for key, slot in slots(spec, name).items():
            if key in kept:
                # In the parameter's own memory format: a fused step reads both as they lie.
                place = torch.empty_like(
                    value if slot != "step" else kept[key], device=value.device
                )
                optimizer.state[value][slot] = place.copy_(kept[key])
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


def blank(slot: str, stacked: Tensor) -> Tensor:
    """What stacked clients remember of a parameter (clients, ...) before their first step."""
    if slot == "step":
        return torch.zeros(len(stacked), device=stacked.device)
    return torch.zeros_like(stacked)


@torch.no_grad()
def step_together(
    spec: OptimizerSpec,
    weights: Named,
    gradients: Named,
    memory: Mapping[str, Named],
    rates: Tensor | None,
    late: Named | None = None,
) -> None:
    """One step of stacked clients (clients, ...), in place.

    memory: tensors by parameter and torch's word; zeros before the first step. rates (clients,):
    None where all of them are spec.lr. late: added to the gradients once these were shortened.
    """
    if not gradients:
        return
    if spec.clip is not None:
        gradients = _shortened(gradients, spec.clip)
    if late:
        gradients = {n: g + late[n] if n in late else g for n, g in gradients.items()}
    if spec.kind == "adamw":
        for name, gradient in gradients.items():
            _adamw(spec, weights[name], gradient, memory[name], rates)
    elif rates is None:
        # A buffer of zeros makes a first step's momentum the gradient itself, as torch has it.
        sgd(
            [weights[name] for name in gradients],
            list(gradients.values()),
            [memory[name].get("momentum_buffer") for name in gradients],
            weight_decay=spec.weight_decay,
            momentum=spec.momentum,
            lr=spec.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
    else:
        for name, gradient in gradients.items():
            _sgd(spec, weights[name], gradient, memory[name], rates)


def _shortened(gradients: Named, longest: float) -> dict[str, Tensor]:
    """Gradients whose length over all parameters is at most `longest`, client by client."""
    parts = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients.values()]
    length = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    factor = (longest / (length + SHORTEST)).clamp(max=1.0)
    return {name: g * _beside(factor, g) for name, g in gradients.items()}


def _sgd(spec: OptimizerSpec, weight: Tensor, gradient: Tensor, own: Named, rates: Tensor) -> None:
    gradient = gradient.add(weight, alpha=spec.weight_decay)
    if spec.momentum:
        gradient = own["momentum_buffer"].mul_(spec.momentum).add_(gradient)
    weight.sub_(_beside(rates, weight) * gradient)


def _adamw(
    spec: OptimizerSpec, weight: Tensor, gradient: Tensor, own: Named, rates: Tensor | None
) -> None:
    """Loshchilov and Hutter 2019, Alg. 2, with the decay times the rate, as torch has it."""
    steps = own["step"].add_(1).double()
    rate = torch.full_like(steps, spec.lr) if rates is None else rates.double()
    mean = own["exp_avg"].lerp_(gradient, 1 - BETAS[0])
    square = own["exp_avg_sq"].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    spread = square.sqrt() / _beside((1 - BETAS[1] ** steps).sqrt(), weight) + EPSILON
    weight.mul_(_beside(1 - rate * spec.weight_decay, weight))
    weight.sub_(_beside(rate / (1 - BETAS[0] ** steps), weight) * mean / spread)


def _beside(values: Tensor, stacked: Tensor) -> Tensor:
    """Values (clients,) shaped to multiply stacked tensors (clients, ...), in their type."""
    return values.to(stacked.dtype).view(-1, *[1] * (stacked.dim() - 1))
