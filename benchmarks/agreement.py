"""Does an engine give the plain loop's numbers on this device, and the same bits twice?

Small made federations are trained in float64 by both; messages, networks, momenta and curves are
compared. It has no command; gpu.py asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedrepro import methods
from fedrepro.engine import ENGINES
from fedrepro.engine.fused import FusedEngine
from fedrepro.messages import Message, Network
from fedrepro.progress import Silent
from fedrepro.protocol import Protocol
from fedrepro.rounds import Training

if __package__:
    from benchmarks.timing import Shape
else:  # run as a file: this folder is on the path, the one above may not be
    from timing import Shape

MODES = ("reference", "eager", "lanes", "captured")
LANES = 5
TOLERANCE = 1e-8
# Deep networks turn the last bits of float64 into more, the faster the larger the step and the
# smaller the batch: ResNet-50 into 1e-8 in a round of these, into 1e-6 at ten times the step.
TOLERANCE_LARGE = 1e-6
SMALL_STEP = {"optimizer__lr": 1e-3}

EQUAL = Shape("tiny-cnn", 16, (21, 21, 21, 13), batch=8, epochs=4)  # enough steps to be recorded
UNEQUAL = Shape("tiny-cnn", 16, (21, 13, 9, 13, 16), batch=8, epochs=2)
CALM = {"data__normalise": "half", "precision": "float64"}


def _do_again(work: Any) -> Any:
    """A recorder where there are no graphs: a replay is the work itself."""
    return work


@contextmanager
def engine(mode: str, max_stack: int | None = None, lanes: int = 1) -> Iterator[str]:
    """Inside, the name an engine is asked for by. All modes of the fused engine go by its own
    name: `captured` replays recorded steps, `eager` takes each anew; `lanes` replays stacks of one
    client on streams side by side, where `lanes` does not say how many."""
    if mode == "lanes":
        max_stack, lanes = max_stack or 1, max(lanes, LANES)
    before = ENGINES["fused"]

    def build(module: Any, protocol: Protocol, device: torch.device) -> FusedEngine:
        again = (lambda: None) if mode == "eager" else (lambda: _do_again)
        own_choice = mode != "eager" and device.type == "cuda"
        return FusedEngine(
            module, protocol, device, max_stack, None if own_choice else again, lanes
        )

    if mode != "reference":
        ENGINES["fused"] = build  # type: ignore[assignment]
    try:
        yield "reference" if mode == "reference" else "fused"
    finally:
        ENGINES["fused"] = before


@dataclass
class Heard:
    """What a run said and became: messages in order, final tensors by name, its curve.

    recorded: steps that were replayed at the end.
    """

    messages: dict[tuple[int, int, str], dict[str, Tensor]]
    tensors: dict[str, Tensor]
    curve: pd.DataFrame
    recorded: int


def play(method: str, mode: str, device: str, shape: Shape, protocol: Protocol) -> Heard:
    """Train and listen."""
    with engine(mode) as name:
        run = Training(
            methods.create(method), protocol, shape.federation(), 0, torch.device(device), name
        )
    messages: dict[tuple[int, int, str], dict[str, Tensor]] = {}
    download, upload = run._download, run._upload

    def down(client: Any) -> Message:
        message = download(client)
        key = run.server.round, client.index
        nth = sum(k[:2] == key for k in messages)  # a second one before a test
        messages[*key, f"down {nth}"] = _flat(message)
        return message

    def up(client: Any, *args: Any) -> Any:
        sent = upload(client, *args)  # in any order
        messages[run.server.round, client.index, "up"] = _flat(sent.message)
        return sent

    run._download, run._upload = down, up  # type: ignore[method-assign]
    curve = run.run(Silent())
    tensors = run.server.state()
    for client in run.clients:
        for group, named in client.groups.items():
            tensors |= {f"{client.index}/{group}/{k}": v for k, v in named.items()}
    courses = [c for s in getattr(run.engine, "_stacks", {}).values() for c in s._courses]
    recorded = sum(g._replay is not None for c in courses for g in c.graphs.values())
    numbers = curve[curve.measure != "seconds"].reset_index(drop=True)
    return Heard(messages, tensors, numbers, recorded)


def _flat(message: Message) -> dict[str, Tensor]:
    """All tensors of a message by name, as copies."""
    tensors: dict[str, Tensor] = {}
    for kind, payload in message.items():
        named = payload.tensors if isinstance(payload, Network) else payload
        named = {"": named} if isinstance(named, Tensor) else named
        tensors |= {f"{kind}/{name}": value.clone() for name, value in named.items()}
    return tensors


def gap(one: Heard, two: Heard) -> float:
    """The largest |a - b| / (1 + |a|) of anything; infinite where the two do not even correspond
    or a value is not finite."""
    keys = ["round", "measure", "subject", "domain", "split"]
    if one.messages.keys() != two.messages.keys() or not one.curve[keys].equals(two.curve[keys]):
        return math.inf
    pairs = [(message, two.messages[key]) for key, message in one.messages.items()]
    pairs.append((one.tensors, two.tensors))
    curves = ({"": torch.tensor(c.value.to_numpy())} for c in (one.curve, two.curve))
    return max(_gap(a, b) for a, b in [*pairs, tuple(curves)])


def _gap(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    if one.keys() != two.keys():
        return math.inf
    worst = 0.0
    for name, a in one.items():
        a, b = a.double(), two[name].double()  # masks and counts are among them
        if a.shape != b.shape or not bool((torch.isfinite(a) & torch.isfinite(b)).all()):
            return math.inf
        if a.numel():
            worst = max(worst, float(((a - b).abs() / (1 + a.abs())).max()))
    return worst


def check(method: str, mode: str, device: str, what: str = "method") -> dict[str, Any]:
    """One engine mode against the plain loop, and against itself.

    what: `method` on small federations, equal and unequal clients; `augmentation` with flips and
    turns; else the name of a network. `ok`: the gap is within the limit, and
    where steps ought to be recorded, some were. `same_bits`: two runs gave equal bits.
    """
    limit = TOLERANCE
    if what == "method":
        plans = [(EQUAL, CALM), (UNEQUAL, CALM)]
    elif what == "augmentation":
        plans = [(UNEQUAL, {**CALM, "data__flip": True, "data__rotate": 30.0})]
    else:
        # of five full batches the last four are stepped by the same two clients: one is recorded
        shape = Shape(what, 28, (136, 136, 40), batch=24, epochs=1)
        plans = [(shape, {**CALM, **SMALL_STEP})]
        limit = TOLERANCE_LARGE
    worst, same, recorded = 0.0, True, 0
    for shape, changes in plans:
        protocol = shape.protocol(rounds=3 if limit == TOLERANCE else 1).changed(**changes)
        first, again = (play(method, mode, device, shape, protocol) for _ in range(2))
        same = same and gap(first, again) == 0
        recorded += first.recorded
        if mode != "reference":
            worst = max(worst, gap(play(method, "reference", device, shape, protocol), first))
    found: dict[str, Any] = {"gap": worst, "limit": limit, "same_bits": same, "recorded": recorded}
    if limit == TOLERANCE_LARGE and mode != "reference":
        found["gap_float32"] = _float32_gap(method, mode, device, plans[0][0])
    replayed = recorded > 0 or mode != "captured" or what == "augmentation"
    return {**found, "ok": worst <= limit and replayed}


def _float32_gap(method: str, mode: str, device: str, shape: Shape) -> float:
    """The same in float32, for the reader: rounding, grown by one round of a deep network."""
    shape = replace(shape, sizes=shape.sizes[:2])
    protocol = shape.protocol(rounds=1).changed(**{**CALM, **SMALL_STEP, "precision": "float32"})
    runs = [play(method, name, device, shape, protocol) for name in ("reference", mode)]
    return gap(runs[0], runs[1])
