"""What the clients of a stack received, side by side: one copy of what they share, else stacked."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedrepro.methods.messages import Message, Network, Payload

Module = TypeVar("Module", bound=nn.Module)
APART = "\n"  # between a payload's kind and a tensor's name


class StackedNetwork(Network):
    """A received network whose weights may differ from client to client."""

    def __init__(self, skeleton: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self._skeleton = skeleton
        self.tensors = {name: tensors[name] for name in skeleton.state_dict()}


class Received:
    """The messages of a stack's clients.

    tensors: by kind and name, (clients, ...) where dims says 0, one for all where it says None, so
    that weights all clients got are multiplied with once.
    """

    def __init__(self, messages: Sequence[Message], device: torch.device) -> None:
        self._first = messages[0]
        self._skeletons = {
            kind: callable_under_vmap(payload._skeleton)
            for kind, payload in messages[0].items()
            if isinstance(payload, Network)
        }
        self.tensors: dict[str, Tensor] = {}
        self.dims: dict[str, int | None] = {}
        named = [flat(message) for message in messages]
        for name, first in named[0].items():
            all_of = [tensors[name] for tensors in named]
            shared = all(other is first or torch.equal(other, first) for other in all_of[1:])
            self.dims[name] = None if shared else 0
            self.tensors[name] = (first if shared else torch.stack(all_of)).to(device)

    def rows(self, part: slice) -> dict[str, Tensor]:
        """The tensors of some of the clients (views)."""
        return {n: v if self.dims[n] is None else v[part] for n, v in self.tensors.items()}

    def message(self, tensors: Mapping[str, Tensor]) -> Message:
        """The message as one client's loss reads it, from that client's tensors."""
        return {kind: self._payload(kind, tensors) for kind in self._first}

    def _payload(self, kind: str, tensors: Mapping[str, Tensor]) -> Payload:
        payload = self._first[kind]
        named = {name: tensors[kind + APART + name] for name in parts(payload)}
        if isinstance(payload, Tensor):
            return named[""]
        return StackedNetwork(self._skeletons[kind], named) if kind in self._skeletons else named


def parts(payload: Payload) -> Mapping[str, Tensor]:
    """The tensors of a payload by name; a single tensor's name is empty."""
    if isinstance(payload, Tensor):
        return {"": payload}
    return payload.tensors if isinstance(payload, Network) else payload


def flat(message: Message) -> dict[str, Tensor]:
    """All tensors of a message by kind and name."""
    return {
        kind + APART + name: value
        for kind, payload in message.items()
        for name, value in parts(payload).items()
    }


def placed(message: Message, device: torch.device) -> Message:
    """The message with every tensor on the device; a client's own memory may lie elsewhere."""

    def place(payload: Payload) -> Payload:
        if isinstance(payload, Tensor):
            return payload.to(device)
        if isinstance(payload, Network):
            return payload  # networks are made where the run's server is
        return {name: value.to(device) for name, value in payload.items()}

    return {kind: place(payload) for kind, payload in message.items()}


def form(message: Message) -> Hashable:
    """Equal for messages that can be stacked: kinds, names, shapes, types, architectures."""
    return tuple(
        (
            kind,
            str(payload._skeleton) if isinstance(payload, Network) else type(payload).__name__,
            isinstance(payload, Network) and payload._skeleton.training,
            tuple((name, value.shape, value.dtype) for name, value in parts(payload).items()),
        )
        for kind, payload in sorted(message.items())
    )


def callable_under_vmap(skeleton: Module) -> Module:
    """A network without batch counters, which vmap cannot write. One that uses batch statistics
    keeps no running ones either: nobody reads them, and clients that share it cannot all write."""
    skeleton = copy.deepcopy(skeleton)
    for layer in norms(skeleton):
        layer.num_batches_tracked = None
        if skeleton.training:
            layer.running_mean = layer.running_var = None
    return skeleton


def norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The BatchNorm layers of a network."""
    return [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
