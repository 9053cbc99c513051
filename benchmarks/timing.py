"""Made federations of the papers' shapes, and how seconds and memory on them are taken.

It has no command; other benchmarks use it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rounds import MIB, made, made_protocol, made_samples, peak_resident, synchronize

from fedrepro.base.protocol import Protocol
from fedrepro.data.federation import ClientData, Federation


@dataclass(frozen=True)
class Shape:
    """What a round trains on: image is the side in pixels, sizes the images of each client."""

    model: str
    image: int
    sizes: tuple[int, ...]
    batch: int
    epochs: int = 10

    def protocol(self, rounds: int = 1, epochs: int | None = None) -> Protocol:
        """A protocol with the papers' optimiser."""
        facts = {"model": self.model, "rounds": rounds, "batch_size": self.batch}
        return made_protocol(self.image, local_epochs=epochs or self.epochs, **facts)

    def federation(self) -> Federation:
        """Made images, a domain a client; tests of a few images, whose time is taken off."""
        clients = [
            ClientData(name, name, made_samples(n, self.image, 12.0 * (i % 8), i), None)
            for i, n in enumerate(self.sizes)
            for name in [f"client{i}"]
        ]
        return made(self.image, clients, 4)


SHAPES = {
    # ADCOL, Sec. 5.1 and App. B.1; the digit CNN is Table 20's
    "adcol-digits": Shape("adcol-resnet50", 28, (743,) * 5, batch=64),
    "digit-cnn": Shape("digit-cnn", 28, (743,) * 5, batch=64),
    # I2PFL, Table 2: clients a domain; 1 % (Digits) and a fifth (Office) of a domain's images each
    "i2pfl-digits": Shape(
        "resnet10", 32, (600,) * 6 + (72,) * 4 + (732,) * 3 + (100,) * 7, batch=32
    ),
    "i2pfl-office": Shape("resnet10", 32, (179,) * 3 + (153,) * 2 + (47,) + (25,) * 4, batch=32),
}
TINY = {name: Shape("tiny-cnn", 16, (21, 21, 13), batch=8, epochs=3) for name in SHAPES}


def clear(device: torch.device) -> None:
    """Forget what earlier measurements held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> float:
    """The most memory held: on the device since `clear`, or by the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    return peak_resident()


def clocked(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of some work, the device's included."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start
