"""Clients between rounds: what each keeps, and where that lies."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from torch import Tensor

from fedrepro.data.federation import ClientData, Samples
from fedrepro.engine import Engine
from fedrepro.messages import Message
from fedrepro.protocol import Augmentation

Groups = dict[str, dict[str, Tensor]]
SHARE = 0.4  # of the memory free at the start that clients' own tensors may take
ALIGNED = 64  # bytes; every tensor of a file starts at a multiple


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
    def twin(self) -> dict[str, Tensor]:
        return self.groups.get("twin", {})

    @property
    def trained(self) -> dict[str, Tensor]:
        return self.groups.get("trained", {})


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


class Shelf:
    """Holds clients' tensors: on their device, in pinned memory beside a GPU, or in files.

    Decided once, when the first client comes back, by what all clients will need: a GPU keeps them
    where they take less than `SHARE` of its free memory, else the host does, else memory-mapped
    files of which the operating system keeps in memory what it can. A file is written in place.

    folder: where files go; a temporary one where None.
    """

    def __init__(self, device: torch.device, clients: int, folder: Path | None = None) -> None:
        self._device, self._clients, self._folder = device, clients, folder
        self._place = ""
        self._files: dict[int, tuple[Tensor, Groups]] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def in_files(self) -> bool:
        """Whether tensors are written in place: what was there before is gone."""
        return self._place == "files"

    def put(self, client: int, groups: Groups) -> Groups:
        """The same values at the place where this shelf holds them."""
        size = sum(v.nbytes for named in groups.values() for v in named.values())
        if size == 0:
            return groups
        self._place = self._place or self._choose(size * self._clients)
        if self._place == "device":
            return groups
        if self._place == "host":
            return {g: {n: _pinned(v) for n, v in named.items()} for g, named in groups.items()}
        return self._to_file(client, groups)

    def _choose(self, total: int) -> str:
        if self._device.type == "cuda" and total < SHARE * torch.cuda.mem_get_info()[0]:
            return "device"
        if total < SHARE * psutil.virtual_memory().available:
            return "host" if self._device.type == "cuda" else "device"
        return "files"

    def _to_file(self, client: int, groups: Groups) -> Groups:
        shapes = {(g, n): v for g, named in groups.items() for n, v in named.items()}
        needed = sum(math.ceil(v.nbytes / ALIGNED) * ALIGNED for v in shapes.values())
        whole, places = self._files.get(client, (None, {}))
        if whole is None or whole.numel() != needed or _forms(places) != _forms(groups):
            places = self._map(client, groups, needed)
        for group, named in groups.items():
            for name, value in named.items():
                places[group][name].copy_(value)
        return places

    def _map(self, client: int, groups: Groups, size: int) -> Groups:
        """A file's tensors, of the groups' names and shapes."""
        file = self._path(client)
        file.unlink(missing_ok=True)  # another shape than before
        whole = torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)
        places: Groups = {}
        start = 0
        for group, named in groups.items():
            places[group] = {}
            for name, value in named.items():
                part = whole[start : start + value.nbytes]
                places[group][name] = part.view(value.dtype).view(value.shape)
                start += math.ceil(value.nbytes / ALIGNED) * ALIGNED
        self._files[client] = whole, places
        return places

    def _path(self, client: int) -> Path:
        if self._folder is None:
            if self._temporary is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="fedrepro-clients-")
            return Path(self._temporary.name) / f"{client}.bin"
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{client}.bin"


def _forms(groups: Groups) -> dict[str, dict[str, tuple[torch.Size, torch.dtype]]]:
    return {g: {n: (v.shape, v.dtype) for n, v in named.items()} for g, named in groups.items()}


def _pinned(value: Tensor) -> Tensor:
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value)


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
    shelf: Shelf,
    twins: Shelf,
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
        second = {"twin": groups.pop("twin", {})}
        client.groups = {**shelf.put(client.index, groups), **twins.put(client.index, second)}
