"""Clients between rounds: what each keeps, and the frozen head it is given before the first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from typing import Protocol as Interface

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.data.federation import ClientData, Federation
from fedrepro.methods.prototypes import class_means
from fedrepro.models import FLModel, layout

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


SCALE = 100.0  # CLIP's own, to which its training limits it


def give_head(module: FLModel, federation: Federation, own: bool) -> list[dict[str, Tensor]]:
    """Fill the network's frozen head with the mean of the clients' heads.

    A client's head is its domain's, in words, where the encoder knows words; else the directions
    of its class means. Returned are, by client, the tensors in which its network departs from the
    common one: none, or its own head.
    """
    names = [name for name, info in layout(module).items() if info.is_fixed]
    if not names:
        return [{} for _ in federation.clients]
    classes = len(federation.classes)
    heads = [_head(client, federation.texts, classes) for client in federation.clients]
    common = torch.stack(heads).mean(dim=0)
    place = module.state_dict()
    for name in names:
        place[name].copy_(common)
    type_of = place[names[0]].dtype
    return [{name: head.to(type_of) for name in names} if own else {} for head in heads]


def _head(client: ClientData, texts: dict[str, Tensor], classes: int) -> Tensor:
    if client.domain in texts:
        return texts[client.domain]
    if texts:  # several domains pooled
        return torch.stack(list(texts.values())).mean(dim=0)
    means, _ = class_means(client.train.images.double(), client.train.labels, classes)
    return SCALE * F.normalize(means, dim=1)
