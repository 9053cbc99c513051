"""What the other sides of cross_device.py share: the work, the images, the network, the answer.

Each peer script runs in an environment of its own, so that nothing but torch and numpy is used
here. A script takes the work as one JSON argument and prints its answer as one marked line.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

MARK = "@result "
CLASSES = 10
PROBE = 500  # images a network is tested on before and after, outside the time taken


@dataclass(frozen=True)
class Work:
    """What every side does. folder: holds images.npy, uint8 (users, images, 3, size, size), and
    labels.npy, int64 (users, images). rounds: timed ones, after one that is not.
    processes: of a side that can use several; together they have `threads` threads.
    precision: what products are computed in."""

    folder: str
    users: int = 1000
    cohort: int = 50
    images: int = 50
    size: int = 32
    batch: int = 10
    lr: float = 0.1
    rounds: int = 20
    threads: int = 1
    processes: int = 1
    seed: int = 0
    device: str = "cpu"
    network: str = "public"
    precision: str = "float32"

    @classmethod
    def of(cls, text: str) -> Work:
        return cls(**json.loads(text))

    def text(self) -> str:
        return json.dumps(asdict(self))


def stored(work: Work) -> tuple[Tensor, Tensor]:
    """Images uint8 (users, images, 3, size, size) and labels (users, images)."""
    folder = Path(work.folder)
    images, labels = np.load(folder / "images.npy"), np.load(folder / "labels.npy")
    return torch.from_numpy(images), torch.from_numpy(labels)


def user_data(work: Work) -> list[tuple[Tensor, Tensor]]:
    """Each user's images and labels on the device, normalised once and for all, in float32."""
    images, labels = stored(work)
    users = []
    for x, y in zip(images, labels, strict=True):
        x = x.to(work.device).float().div_(127.5).sub_(1)
        if work.network == "tuned":
            x = x.contiguous(memory_format=torch.channels_last)
        users.append((x, y.to(work.device)))
    return users


def network(work: Work) -> nn.Sequential:
    """The public set-up's two-convolution network without its dropout.

    `public`: as published. `tuned`: as the library has it, pooling before the second ReLU and the
    channels last; the values are the same.
    """
    torch.manual_seed(work.seed)
    net = two_convolutions(CLASSES, work.size, work.network == "public")
    if work.network == "tuned":
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net.to(work.device)


def two_convolutions(classes: int, size: int, as_published: bool) -> nn.Sequential:
    """Weights are initialised Glorot-uniform, as in pfl-research's ``simple_cnn``. Its dropout is
    left out, because its masks would use the global generator."""
    last = [nn.ReLU(), nn.MaxPool2d(2)]
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3)]
    layers += last if as_published else last[::-1]
    flat = 64 * ((size - 4) // 2) ** 2
    layers += [nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, classes)]
    net = nn.Sequential(*layers)
    for module in net:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return net


def name_for_the_library() -> None:
    """Make the tuned network known to the library, which a peer's Python lacks, as `pfl-cnn`: z
    (b, 128), without BatchNorm."""
    from fedrepro.models import MODELS, FLModel

    def pfl_cnn(classes: int, size: int) -> FLModel:
        *encoder, predictor = two_convolutions(classes, size, as_published=False)
        parts = nn.Sequential(*encoder), nn.Identity(), predictor
        return FLModel(*parts, 128, torch.channels_last)

    MODELS["pfl-cnn"] = pfl_cnn


class Clock:
    """When each round ended, on a device that has done all it was asked to."""

    def __init__(self, device: str) -> None:
        self._device, self.ends = device, list[float]()

    def tick(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Of each round but the first, which warms up."""
        return [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]


class Probe:
    """Tells whether a network learns: its loss on a few users' images, and how far it has come."""

    def __init__(self, work: Work, net: nn.Module) -> None:
        images, labels = stored(work)
        few = -(-PROBE // work.images)
        self._x = images[:few].flatten(0, 1).to(work.device).float().div_(127.5).sub_(1)
        self._y = labels[:few].flatten().to(work.device)
        self._start = self._flat(net)
        self._loss = self._now(net)

    @staticmethod
    def _flat(net: nn.Module) -> Tensor:
        return torch.cat([p.detach().flatten().clone() for p in net.parameters()])

    @torch.no_grad()
    def _now(self, net: nn.Module) -> float:
        return float(F.cross_entropy(net(self._x), self._y))

    def found(self, net: nn.Module) -> dict[str, float]:
        moved = torch.linalg.vector_norm(self._flat(net) - self._start)
        return {"loss_before": self._loss, "loss_after": self._now(net), "moved": float(moved)}


def answer(
    clock: Clock,
    steps: int,
    found: dict[str, float],
    packages: list[str],
    untimed: list[float] | None = None,
) -> None:
    """Print what a side has to say. steps: local ones, of all rounds. untimed: seconds to take
    off each round."""
    versions = {name: version(name) for name in ["torch", *packages]}
    off = untimed or [0.0] * len(clock.seconds())
    seconds = [a - b for a, b in zip(clock.seconds(), off, strict=True)]
    facts: dict[str, Any] = {"seconds": seconds, "steps": steps, **found}
    print(MARK + json.dumps({**facts, "versions": versions}), file=sys.stdout, flush=True)
