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

Named = dict[str, Tensor]
# A client's fields by the names that a checkpoint has for them.
GROUPS = {name: name for name in ("kept", "optimizer", "memory", "trained")}
GROUPS["twin"] = "personal_model"


@dataclass
class Client:
    """One client, and the tensors it keeps by name.

    kept: of its network, what the server's tensors do not replace. optimizer: momenta. memory: what
    its method remembers. personal_model: its second network, where a method trains one. trained:
    the rest of its network as it was after training, where that is tested.
    """

    index: int
    data: ClientData
    kept: Named = field(default_factory=dict)
    optimizer: Named = field(default_factory=dict)
    memory: Named = field(default_factory=dict)
    personal_model: Named = field(default_factory=dict)
    trained: Named = field(default_factory=dict)

    def personal(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its network: the server's tensors where it loads them, else its own."""
        return {n: self.kept.get(n, value) for n, value in model.items()}

    def network(self, subject: str, model: Mapping[str, Tensor]) -> Named:
        """Its network of one of the kinds of `Method.evaluated_models`."""
        if subject == "twin":
            return self.personal_model
        return self.personal(model) | (self.trained if subject == "trained" else {})

    @property
    def groups(self) -> dict[str, Named]:
        """What it keeps, as `GROUPS` names it."""
        return {group: getattr(self, attribute) for group, attribute in GROUPS.items()}


@dataclass(frozen=True)
class TrainedView:
    """A client after local training, as a method's `upload` and `remember` see it: see
    `methods.base.TrainedClient`."""

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
        return self._samples.images

    def features(self, training: bool = False, augmentation: Augmentation | None = None) -> Tensor:
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


def restore(clients: Sequence[Client], flat: Mapping[str, Tensor], device: torch.device) -> None:
    """Put a checkpoint's tensors back, each read once."""
    for client in clients:
        for group, attribute in GROUPS.items():
            start = f"client/{client.index}/{group}/"
            names = [name for name in flat if name.startswith(start)]
            setattr(client, attribute, {n.removeprefix(start): flat[n].to(device) for n in names})
