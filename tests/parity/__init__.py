"""Golden numbers of the methods: what their official codes make of small inputs. A JSON file per
method has its cases: a check, the reading under which it is to agree, inputs, what is expected."""

import contextlib
import copy
import itertools
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro import methods
from fedrepro.base.protocol import parse_protocol
from fedrepro.data.federation import ClientData, Federation, Samples
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.methods.server import Message, Network
from fedrepro.models import MODELS, FLModel, build_model, discriminator

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """One case of a file. reading: `fields` of the method, `protocol`, a `note`. differs: why it
    does not agree, "" where it does."""

    file: str
    method: str
    name: str
    check: str
    reading: dict[str, Any]
    source: dict[str, Any]
    tolerance: float
    inputs: dict[str, Any]
    expected: dict[str, Any]
    differs: str

    @property
    def trained(self) -> str:
        """The name of the method; FedAvg's case stands in FedBN's file."""
        return self.reading.get("protocol", {}).get("method", self.method)

    @property
    def built(self) -> Method:
        return methods.create(self.trained, **self.reading["fields"])


def cases() -> list[Case]:
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        for raw in file["cases"]:
            keys = "name", "check", "reading", "tolerance", "inputs", "expected"
            values = {key: raw[key] for key in keys}
            source, differs = raw.get("source", file["source"]), raw.get("expected_to_differ", "")
            found.append(Case(path.stem, file["method"], source=source, differs=differs, **values))
    return found


def far(found: Any, expected: Any) -> float:
    """The largest difference among all that is expected; infinite where a shape differs or a value
    is not a number."""
    if isinstance(expected, Mapping):
        return max(_far_named(key, found[key], value) for key, value in expected.items())
    if isinstance(expected, list) and any(isinstance(part, Mapping) for part in expected):
        return max(far(a, b) for a, b in zip(found, expected, strict=True))
    a, b = _as_double(found), _as_double(expected)
    if a.shape != b.shape:
        return float("inf")
    gaps = (a - b).abs() / b.abs().clamp(min=1)
    return float(gaps.nan_to_num(nan=float("inf")).max()) if gaps.numel() else 0.0


def _as_double(x: Any) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64).detach()


def _far_named(key: str, found: Any, expected: Any) -> float:
    if key != "prototypes_by_class":
        return far(found, expected)
    gaps = [0.0]  # rows of a class come in any order
    for a, b in zip(found, expected, strict=True):
        if len(a) != len(b):
            return float("inf")
        orders = itertools.permutations(range(len(b)))
        gaps.append(min(far(a[list(order)], b) for order in orders) if b else 0.0)
    return max(gaps)


def tensors(x: Any) -> Any:
    """The numbers of a file as float64 tensors; masks and labels stay what they are."""
    if isinstance(x, Mapping):
        exact = ("labels", "owner")
        return {k: torch.tensor(v) if k in exact else tensors(v) for k, v in x.items()}
    found = torch.from_numpy(np.asarray(x))
    return found if found.dtype == torch.bool else found.double()


class Unit(nn.Module):
    """Rows scaled to length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


LAYERS: dict[str, Any] = {
    "linear": nn.Linear,
    "linear-nobias": lambda a, b: nn.Linear(a, b, bias=False),
    "batchnorm": nn.BatchNorm1d,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "unit": Unit,
}


def loaded(module: nn.Module, values: Mapping[str, Any]) -> Any:
    """A network in float64 with these values; BatchNorm's counters stay."""
    missing, unknown = module.double().load_state_dict(tensors(values), strict=False)
    assert not unknown and all("." in n and n.endswith("num_batches_tracked") for n in missing)
    return module


def bare(architecture: Mapping[str, Any]) -> FLModel:
    parts = (architecture.get(part, []) for part in ("encoder", "projection", "predictor"))
    built = [nn.Sequential(*(LAYERS[kind](*sizes) for kind, *sizes in part)) for part in parts]
    size = next(layer.in_features for layer in built[2] if isinstance(layer, nn.Linear))
    return FLModel(*built, size)


def network(inputs: Mapping[str, Any]) -> FLModel:
    return loaded(bare(inputs["architecture"]), inputs["network"])


def adapter(values: Mapping[str, Any]) -> FLModel:
    classes, size = np.shape(values["predictor.weight"])
    return loaded(build_model("adapter", classes, size), values)


def judge(values: Mapping[str, Any]) -> nn.Module:
    layers = [v for name, v in values.items() if "linear" in name and "weight" in name]
    inputs, *widths = len(layers[0][0]), *map(len, layers)
    made = discriminator(inputs, widths[-1], widths[:-1], batch_norm="bn1.weight" in values)
    return loaded(made, values)


def start(case: Case, module: FLModel, clients: list[Samples], **settings: Any) -> Training:
    """A run of the case's method on this network and these clients, one batch an epoch."""
    method = settings.pop("method", case.built)
    largest = max(2, *(len(samples) for samples in clients))
    reading = {"weighting": case.reading.get("protocol", {}).get("weighting", "samples")}
    protocol = parse_protocol(
        {"data": {"dataset": "golden", "size": 4}, "model": "golden", "precision": "float64"}
        | {"rounds": 1, "local_epochs": 1, "batch_size": largest, "scale": "smoke"}
        | reading
        | settings
    )
    outputs = [layer.out_features for layer in module.predictor if isinstance(layer, nn.Linear)]
    names = tuple(str(k) for k in range(outputs[-1]))
    own = tuple(ClientData(f"c{i}", "d", samples, None) for i, samples in enumerate(clients))
    data = Federation("golden", 4, names, ("d",), own, {"d": clients[0]})
    with patch.dict(MODELS, golden=lambda classes, size: copy.deepcopy(module)):
        run = Training(method, protocol, data, 0)
    run.engine.lanes = 1  # given batches are read in the clients' order
    return run


def samples(inputs: Mapping[str, Any]) -> Samples:
    return Samples(tensors(inputs["inputs"]), torch.tensor(inputs["labels"]))


def empty(n: int, width: int) -> Samples:
    """n samples where only their number matters."""
    return Samples(torch.zeros(n, width, dtype=torch.float64), torch.zeros(n, dtype=torch.long))


def server_of(case: Case, clients: int, classes: int, width: int, **settings: Any) -> Training:
    """A run with a server of that many clients, classes and features; its round is the first."""
    module = bare({"predictor": [["linear", width, classes]]}).double()
    run = start(case, module, [empty(2, width)] * clients, **settings)
    run.server.round = 1
    return run


def received(inputs: Mapping[str, Any]) -> Message:
    """What a client has got, of all that a case gives."""
    message: Message = {}
    for kind in ("prototypes", "present", "shares", "anchors", "schedule"):
        if kind in inputs:
            message[kind] = tensors(inputs[kind])
    for kind in ("discriminator", "amplifier"):
        if kind in inputs:
            message[kind] = Network(judge(inputs[kind]), inputs[f"{kind}_in_training_mode"])
    for kind, named in (("model", "received"), ("memory", "previous")):
        if f"features_of_{named}_network" in inputs:
            message[kind] = {"w": tensors(inputs[f"features_of_{named}_network"])}
    return message


def in_given_order(batches: list[Any] | None) -> AbstractContextManager[Any]:
    """Inside, the batches of each client's epochs in place of the shuffle, again in every round."""
    if batches is None:
        return contextlib.nullcontext()
    given = itertools.cycle([list(map(torch.tensor, epoch)) for own in batches for epoch in own])
    return patch("fedrepro.engine.base.epoch_batches", lambda *_: next(given))
