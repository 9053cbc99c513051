"""What the clients of a stack received, side by side: one copy of what they share, else stacked."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedrepro.messages import Message, Network, Payload

Module = TypeVar("Module", bound=nn.Module)
Tensors = dict[str, dict[str, Tensor]]  # by kind of payload, then by name


class StackedNetwork(Network):
    """A received network whose weights may differ from client to client."""

    def __init__(self, skeleton: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self._skeleton = skeleton
        self.tensors = {name: tensors[name] for name in skeleton.state_dict()}


class Received:
    """The messages of a stack's clients, with tensors that stay where they are.

    tensors: (clients, ...) where dims says 0, one for all where it says None. Equal tensors are
    found by identity, else by value, so that weights all clients got are multiplied with once.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        dims: dict[str, dict[str, int | None]],
        device: torch.device,
    ) -> None:
        self.dims = dims
        payloads = messages[0].items()
        self._single = {kind for kind, payload in payloads if isinstance(payload, Tensor)}
        self._skeletons = {
            kind: callable_under_vmap(payload._skeleton)
            for kind, payload in payloads
            if isinstance(payload, Network)
        }
        self.tensors: Tensors = {
            kind: {
                name: (
                    value.clone() if dims[kind][name] is None else _stacked(messages, kind, name)
                ).to(device)
                for name, value in parts(payload).items()
            }
            for kind, payload in payloads
        }

    def load(self, messages: Sequence[Message]) -> None:
        """Put another round's messages of the same form where the last ones were."""
        for kind, payload in messages[0].items():
            for name, value in parts(payload).items():
                shared = self.dims[kind][name] is None
                self.tensors[kind][name].copy_(value if shared else _stacked(messages, kind, name))

    def rows(self, start: int, stop: int) -> Tensors:
        """The tensors of some of the clients (views)."""
        return {
            kind: {
                name: value if self.dims[kind][name] is None else value[start:stop]
                for name, value in named.items()
            }
            for kind, named in self.tensors.items()
        }

    def message(self, tensors: Tensors) -> Message:
        """The message as one client's loss reads it, from that client's tensors."""
        return {kind: self._payload(kind, named) for kind, named in tensors.items()}

    def _payload(self, kind: str, named: dict[str, Tensor]) -> Payload:
        if kind in self._single:
            return named[""]
        if kind in self._skeletons:
            return StackedNetwork(self._skeletons[kind], named)
        return named


def parts(payload: Payload) -> Mapping[str, Tensor]:
    """The tensors of a payload by name; a single tensor's name is empty."""
    if isinstance(payload, Tensor):
        return {"": payload}
    return payload.tensors if isinstance(payload, Network) else payload


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


def shared_dims(messages: Sequence[Message]) -> dict[str, dict[str, int | None]]:
    """For every tensor None where all messages hold the same values, else 0.

    The device is asked once, and only where equal values are not the same object.
    """
    dims: dict[str, dict[str, int | None]] = {}
    unknown: list[tuple[str, str, Tensor]] = []
    for kind, payload in messages[0].items():
        dims[kind] = {}
        for name, first in parts(payload).items():
            others = [parts(message[kind])[name] for message in messages[1:]]
            dims[kind][name] = None
            if any(other is not first for other in others):
                same = torch.stack([(other == first).all() for other in others]).all()
                unknown.append((kind, name, same))
    if unknown:
        answers = torch.stack([same for _, _, same in unknown]).tolist()
        for (kind, name, _), same in zip(unknown, answers, strict=True):
            dims[kind][name] = None if same else 0
    return dims


def _stacked(messages: Sequence[Message], kind: str, name: str) -> Tensor:
    return torch.stack([parts(message[kind])[name] for message in messages])


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
