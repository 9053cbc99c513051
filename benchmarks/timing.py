"""Seconds a round on made federations of the papers' shapes, their floor, and the machine's rates.

It has no command; gpu.py asks.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedrepro import methods
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.engine import in_order
from fedrepro.engine.graphs import WARM_UP
from fedrepro.models import build_model
from fedrepro.protocol import Protocol, parse_protocol
from fedrepro.rng import seeded_modules
from fedrepro.rounds import Training

if __package__:
    from benchmarks.field_loop import FieldLoop
    from benchmarks.rounds import CLASSES, MIB, made_samples, peak_resident
else:  # run as a file: this folder is on the path, the one above may not be
    from field_loop import FieldLoop
    from rounds import CLASSES, MIB, made_samples, peak_resident

PATIENCE = 120.0  # seconds after which two measured rounds are enough
SHORT = (1, 2)  # local epochs of the slow sides' rounds; the shape's own are reckoned from them


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
        return parse_protocol(
            {
                "data": {"dataset": "made", "size": self.image, "normalise": "half"},
                "model": self.model,
                "rounds": rounds,
                "local_epochs": epochs or self.epochs,
                "batch_size": self.batch,
                "optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
            }
        )

    def federation(self) -> Federation:
        """Made images, a domain a client; tests of a few images, whose time is taken off."""
        names = tuple(f"client{i}" for i in range(len(self.sizes)))
        clients = tuple(
            ClientData(name, name, made_samples(n, self.image, 12.0 * (i % 8), i), None)
            for i, (name, n) in enumerate(zip(names, self.sizes, strict=True))
        )
        return Federation(
            dataset="made",
            size=self.image,
            classes=tuple(str(k) for k in range(CLASSES)),
            domains=names,
            clients=clients,
            tests={c.name: Samples(c.train.images[:4], c.train.labels[:4]) for c in clients},
            hashes={},
            standins=(),
            deviations={},
        )


SHAPES = {
    # ADCOL, Sec. 5.1 and App. B.1; the digit CNN is Table 20's
    "adcol-digits": Shape("adcol-resnet50", 28, (743,) * 5, batch=64),
    "digit-cnn": Shape("digit-cnn", 28, (743,) * 5, batch=64),
    # I2PFL, Table 2: clients a domain; 1 % (Digits) and a fifth (Office) of a domain's images each
    "i2pfl-digits": Shape(
        "resnet10", 32, (600,) * 6 + (72,) * 4 + (732,) * 3 + (100,) * 7, batch=32
    ),
    "i2pfl-office": Shape(
        "resnet10", 32, (179,) * 3 + (153,) * 2 + (47,) * 1 + (25,) * 4, batch=32
    ),
}
TINY = {name: Shape("tiny-cnn", 16, (21, 21, 13), batch=8, epochs=3) for name in SHAPES}


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, least, greatest and all."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "all": list(values),
    }


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def clear(device: torch.device) -> None:
    """Forget what earlier measurements held."""
    gc.collect()  # recorded steps refer to themselves
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


def training(
    shape: Shape, method: str, engine: str, device: torch.device, seed: int = 0, **changes: Any
) -> Training:
    """A run that is stepped by hand."""
    protocol = shape.protocol().changed(**changes)
    return Training(methods.create(method), protocol, shape.federation(), seed, device, engine)


def warm_rounds(epochs: int, captured: bool) -> int:
    """Rounds before every step is recorded: the rest of an epoch comes once an epoch."""
    return -(-(WARM_UP + 1) // epochs) + 1 if captured else 1


def rounds(run: Training, warm: int, repeat: int) -> dict[str, Any]:
    """Seconds a round without tests, of fewer rounds than `repeat` where they are slow. `setup`:
    what the first rounds cost beyond that, recording included."""
    begun = time.perf_counter()
    while run.round < warm + repeat:
        if time.perf_counter() - begun > PATIENCE and run.round >= warm + 2:
            break
        run.one_round()
    rows = [r for r in run.log.rows if r[1] == "seconds" and r[2] != "evaluate"]
    whole = [sum(r[5] for r in rows if r[0] == n) for n in range(1, run.round + 1)]
    seconds = summary(whole[warm:])
    phases = {
        phase: statistics.median(r[5] for r in rows if r[2] == phase and r[0] > warm)
        for phase in dict.fromkeys(r[2] for r in rows)
    }
    return {
        "seconds": seconds,
        "setup": sum(whole[:warm]) - warm * seconds["median"],
        "phases": phases,
        "max_stack": getattr(run.engine, "max_stack", None),
    }


def from_short(one: float, two: float, epochs: int) -> float:
    """Seconds of a round of `epochs` local epochs from rounds of one and of two."""
    return one + (epochs - 1) * (two - one)


def time_library(
    shape: Shape,
    method: str,
    mode: str,
    engine: str,
    device: torch.device,
    repeat: int,
    **changes: Any,
) -> dict[str, Any]:
    """The library's rounds. Captured rounds are whole; the others are reckoned from short ones."""
    clear(device)
    captured = mode == "captured"
    if captured or shape.epochs <= max(SHORT):
        run = training(shape, method, engine, device, **changes)
        found = rounds(run, warm_rounds(shape.epochs, captured), repeat)
        return {**found, "epochs_run": [shape.epochs], "peak_mib": peak_mib(device)}
    short = []
    for epochs in SHORT:
        run = training(shape, method, engine, device, local_epochs=epochs, **changes)
        short.append(rounds(run, 1, repeat))
    return {
        "seconds": _extrapolated([s["seconds"]["all"] for s in short], shape.epochs),
        "short": short,
        "epochs_run": list(SHORT),
        "max_stack": short[-1]["max_stack"],
        "peak_mib": peak_mib(device),
    }


def time_field(shape: Shape, method: str, device: torch.device, repeat: int) -> dict[str, Any]:
    """The field's loop, reckoned from short rounds."""
    clear(device)
    federation = shape.federation()
    short = []
    for epochs in SHORT:
        loop = FieldLoop(method, shape.protocol(epochs=epochs), federation, 0, device)
        loop.round()
        short.append([clocked(loop.round, device) for _ in range(repeat)])
    return {
        "seconds": _extrapolated(short, shape.epochs),
        "short": [summary(values) for values in short],
        "epochs_run": list(SHORT),
        "peak_mib": peak_mib(device),
    }


def _extrapolated(short: Sequence[Sequence[float]], epochs: int) -> dict[str, Any]:
    values = [from_short(one, two, epochs) for one, two in zip(*short, strict=True)]
    return {**summary(values), "extrapolated": True}


def time_seeds(
    shape: Shape, method: str, engine: str, device: torch.device, repeat: int, seeds: int = 3
) -> dict[str, Any]:
    """Local training of several seeds' clients in one call against that of one seed, in turn."""
    clear(device)
    runs = [training(shape, method, engine, device, seed) for seed in range(seeds)]
    jobs = [[run._job(c, run._download(c), 1) for c in run.clients] for run in runs]
    together = [job for part in jobs for job in part]
    train, kind = runs[0].engine.train, runs[0].method
    for _ in range(warm_rounds(shape.epochs, True)):
        in_order(train(kind, jobs[0]))
        in_order(train(kind, together))
    one, many = [], []
    for _ in range(repeat):
        one.append(clocked(lambda: in_order(train(kind, jobs[0])), device))
        many.append(clocked(lambda: in_order(train(kind, together)), device))
    ratio = summary([b / a for a, b in zip(one, many, strict=True)])
    return {"one": summary(one), "many": summary(many), "seeds": seeds, "ratio": ratio}


# The floor.


def rates(device: torch.device, repeat: int, tiny: bool) -> dict[str, Any]:
    """What this device does at best: products per second by type, bytes copied per second (read
    and written both counted)."""
    side, length = (256, 2**20) if tiny else (8192, 2**30)
    inner = 2 if tiny else 10
    products, found = torch.backends.cuda.matmul, {}
    kinds = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
    for name, dtype in kinds.items():
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        products.allow_tf32 = name == "tf32"
        seconds = _each(lambda a=a, b=b: torch.mm(a, b), inner, repeat, device)
        found[f"{name}_flops"] = 2 * side**3 / seconds
    products.allow_tf32 = False
    source = torch.randn(length, device=device)
    target = torch.empty_like(source)
    seconds = _each(lambda: target.copy_(source), inner, repeat, device)
    found["copy_bytes"] = 2 * 4 * length / seconds
    return {**found, "matrix_side": side, "copied_floats": length}


def _each(work: Callable[[], object], inner: int, repeat: int, device: torch.device) -> float:
    """Median seconds of one call of `inner` in a row."""
    many = lambda: [work() for _ in range(inner)]  # noqa: E731
    many()
    return statistics.median(clocked(many, device) for _ in range(repeat)) / inner


def floor(shape: Shape, known: dict[str, float]) -> dict[str, Any]:
    """The least a round's local training can take on a device of these rates.

    flops: forward and backward of every image, as torch counts them. bytes: a step reads the
    weights in both passes, reads and writes the momentum and writes the weights (gradients free);
    outputs of convolutions and linear layers are written once and read once.
    """
    with seeded_modules(0):
        model = build_model(shape.model, CLASSES, shape.image)
    batch = min(shape.batch, 16)
    outputs: list[int] = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda _, __, out: outputs.append(out.numel()))
    with FlopCounterMode(display=False) as counter:
        loss = model(torch.randn(batch, 3, shape.image, shape.image)).logits.square().mean()
        loss.backward()
    images = shape.epochs * sum(shape.sizes)
    steps = shape.epochs * sum(-(-n // shape.batch) for n in shape.sizes)
    parameters = sum(p.numel() for p in model.parameters())
    flops = counter.get_total_flops() / batch * images
    moved = 4 * (5 * parameters * steps + 2 * sum(outputs) / batch * images)
    arithmetic, memory = flops / known["float32_flops"], moved / known["copy_bytes"]
    return {
        "flops": flops,
        "bytes": moved,
        "parameters": parameters,
        "client_steps": steps,
        "seconds_arithmetic": arithmetic,
        "seconds_memory": memory,
        "seconds": max(arithmetic, memory),
        "seconds_tf32": max(flops / known["tf32_flops"], memory),
    }
