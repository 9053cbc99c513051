"""Clients between rounds: what each keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from typing import Protocol as Interface

import torch
from torch import Tensor

from fedrepro.base.protocol import Augmentation
from fedrepro.data.federation import ClientData, Samples
from fedrepro.engine import Engine
from fedrepro.methods.messages import Message

Groups = dict[str, dict[str, Tensor]]


@dataclass
class Client:
    """One client.

    groups: its tensors by kind and name. ``kept``: of its network, what the server's tensors do not
    replace; ``optimizer``: momenta; ``memory``: what its method remembers; ``twin``: its second
    network; ``trained``: the rest of its network as it was after training, where that is tested.
    """

    index: int
    data: ClientData
    groups: Groups = field(default_factory=dict)

    @property
    def kept(self) -> dict[str, Tensor]:
        return self.groups.get("kept", {})

    @property
    def optimizer(self) -> dict[str, Tensor]:
        return self.groups.get("optimizer", {})

    @property
    def memory(self) -> dict[str, Tensor]:
        return self.groups.get("memory", {})

    @property
    def personal_model(self) -> dict[str, Tensor]:
        return self.groups.get("twin", {})

    @property
    def trained(self) -> dict[str, Tensor]:
        return self.groups.get("trained", {})

    def personal(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its network: the server's tensors where it loads them, else its own."""
        return {n: self.kept.get(n, value) for n, value in model.items()}

    def network(self, subject: str, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its network of one of the kinds of `Method.evaluated_models`."""
        if subject == "twin":
            return self.personal_model
        return self.personal(model) | (self.trained if subject == "trained" else {})


@dataclass(frozen=True)
class TrainedView:
    """A client after local training, as a method's `upload` and `remember` see it."""

    index: int
    classes: int
    labels: Tensor
    state: Mapping[str, Tensor]
    received: Message
    augmentation: Augmentation
    generator: torch.Generator
    _engine: Engine
    _samples: Samples

    @property
    def inputs(self) -> Tensor:
        """See `methods.base.TrainedClient`."""
        return self._samples.images

    def features(self, training: bool = False, augmentation: Augmentation | None = None) -> Tensor:
        """See `methods.base.TrainedClient`."""
        return self._engine.features(
            self.state, self._samples, training, augmentation, self.generator
        )


class Checkpoint(Interface):
    """Where a run's unfinished state goes."""

    def load(self) -> tuple[Mapping[str, Tensor], dict[str, Any]] | None: ...

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None: ...

    def due(self) -> bool: ...


def flatten(clients: Sequence[Client]) -> dict[str, Tensor]:
    """All clients' tensors under flat names, for a checkpoint."""
    return {
        f"client/{client.index}/{group}/{name}": value
        for client in clients
        for group, named in client.groups.items()
        for name, value in named.items()
    }


def restore(
    clients: Sequence[Client],
    flat: Mapping[str, Tensor],
    device: torch.device,
) -> None:
    """Put a checkpoint's tensors back, one client at a time."""
    names: dict[int, list[str]] = {}
    for name in flat:
        if name.startswith("client/"):
            names.setdefault(int(name.split("/", 2)[1]), []).append(name)
    for client in clients:
        groups: Groups = {}
        for name in names.get(client.index, ()):
            _, _, group, key = name.split("/", 3)
            groups.setdefault(group, {})[key] = flat[name].to(device)
        client.groups = groups
