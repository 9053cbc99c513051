"""Clients: which participate in a round, the tensors each keeps between rounds, its frozen head;
and the average of the networks they send."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol as Interface

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrepro.base.errors import need
from fedrepro.base.protocol import Protocol
from fedrepro.base.rng import numpy_stream
from fedrepro.data.federation import ClientData, Federation
from fedrepro.methods.prototypes import class_means
from fedrepro.methods.server import Message, flat, under
from fedrepro.models import FLModel, TensorInfo, layout

Named = dict[str, Tensor]
GROUPS = ("kept", "optimizer", "memory", "trained", "twin")  # a client's fields in a checkpoint


@dataclass
class Client:
    """One client, and the tensors it keeps by name. kept: of its network, those that the server's
    do not replace. optimizer: momenta. memory: its method's. twin: its second network, if it trains
    one. trained: its network after training, if that is tested."""

    index: int
    data: ClientData
    kept: Named = field(default_factory=dict)
    optimizer: Named = field(default_factory=dict)
    memory: Named = field(default_factory=dict)
    twin: Named = field(default_factory=dict)
    trained: Named = field(default_factory=dict)

    def personal(self, model: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its network: the server's tensors if it loads them, else its own."""
        return {n: self.kept.get(n, value) for n, value in model.items()}

    def network(self, subject: str, model: Mapping[str, Tensor]) -> Named:
        """Its network for one of the kinds in `Method.evaluated_models`."""
        if subject == "twin":
            return self.twin
        return self.personal(model) | (self.trained if subject == "trained" else {})

    def state(self) -> Named:
        """All its tensors by flat names, for a checkpoint."""
        return flat({group: getattr(self, group) for group in GROUPS})

    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        for group in GROUPS:
            setattr(self, group, under(saved, f"{group}/"))


def participants(protocol: Protocol, seed: int, number: int, clients: int) -> list[int]:
    """Indices, in order, of the clients in a round, counted from 1: all, or a share drawn for it.
    If clients take turns, every `clients // count` draws use one shuffled order of them; those left
    over do not participate in that pass."""
    count = max(1, round(protocol.participation * clients))
    if count == clients:
        return list(range(clients))
    draw = (number - 1) // protocol.stay + 1
    if not protocol.turns:
        drawn = numpy_stream(seed, "participation", round=draw)
        return sorted(drawn.choice(clients, count, replace=False).tolist())
    passes, place = divmod(draw - 1, clients // count)
    order = numpy_stream(seed, "participation", round=passes + 1).permutation(clients)
    return sorted(order[place * count : (place + 1) * count].tolist())


def turns_of(protocol: Protocol, clients: int) -> int:
    """The largest number of rounds in which one client can participate; all without turns."""
    count = max(1, round(protocol.participation * clients))
    if not protocol.turns or count == clients:
        return protocol.rounds
    passes, rest = divmod(protocol.rounds, protocol.stay * (clients // count))
    return passes * protocol.stay + min(rest, protocol.stay)


class Checkpoint(Interface):
    """Storage for a run's unfinished state."""

    def load(self) -> tuple[Mapping[str, Tensor], dict[str, Any]] | None: ...
    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None: ...
    def due(self) -> bool: ...


SCALE = 100.0  # CLIP's own, the upper limit in its training


def give_head(
    module: FLModel, federation: Federation, own: bool, device: torch.device
) -> list[dict[str, Tensor]]:
    """Fill the network's frozen head with the mean of the clients' heads: of each the text head of
    its domain if the encoder has a text part, else the directions of its class means. Returns, by
    client, the tensors in which its network differs from the common one: none, or its own head."""
    name = next((name for name, info in layout(module).items() if info.is_fixed), None)
    if name is None:
        return [{} for _ in federation.clients]
    classes, place = len(federation.classes), module.state_dict()[name]
    heads = [_head(client, federation.texts, classes) for client in federation.clients]
    known = torch.stack([head.any(dim=1) for head in heads]).sum(dim=0)  # clients with the class
    place.copy_(torch.stack(heads).sum(dim=0) / known.clamp(min=1)[:, None])
    return [{name: head.to(device, place.dtype)} if own else {} for head in heads]


def _head(client: ClientData, texts: dict[str, Tensor], classes: int) -> Tensor:
    if client.domain in texts:
        return texts[client.domain]
    if texts:  # several domains pooled
        return torch.stack(list(texts.values())).mean(dim=0)
    means, _ = class_means(client.train.images.double(), client.train.labels, classes)
    return SCALE * F.normalize(means, dim=1)


class RunningAverage:
    """Adds networks one after another, so that only the sum is in memory.
    first_statistics: BatchNorm statistics are the first client's instead of the average, as whole
    numbers always are."""

    def __init__(self, layout: Mapping[str, TensorInfo], first_statistics: bool = False) -> None:
        self._layout = layout
        self._first = first_statistics
        self.tensors: dict[str, Tensor] = {}

    def weight_tensors(self, counts: Sequence[int], batch_size: int) -> None:
        """Multiply the sum's tensor j by client j's share of all batches. MPFT's code applies the
        weights to the tensors instead of the clients. counts: of the clients' images."""
        wanted = f"weighting = tensors needs a client for each of the {len(self.tensors)} tensors"
        need(len(counts) >= len(self.tensors), f"{wanted}, not {len(counts)}; set samples")
        batches = [math.ceil(count / batch_size) for count in counts]
        for value, own in zip(self.tensors.values(), batches, strict=False):
            value.mul_(own / sum(batches))

    def take(self, position: int, message: Message, weight: float) -> None:
        """Add the shared tensors of a client's message with its weight, and remove them from it.
        Position 0 is the round's first client."""
        for name, value in message.pop("model", {}).items():
            info = self._layout[name]
            if (self._first and info.is_bn and info.is_buffer) or not value.is_floating_point():
                if position == 0:
                    self.tensors[name] = value.clone()
            elif name in self.tensors:
                self.tensors[name].add_(value, alpha=weight)
            else:
                self.tensors[name] = weight * value
