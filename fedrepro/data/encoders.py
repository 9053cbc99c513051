"""Frozen encoders: released weights -> one safetensors file in the cache, as arrays have theirs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from fedrepro.base.errors import FedReproError
from fedrepro.data.cache import cache_path, is_whole, write_signed
from fedrepro.data.manifest import Located, Manifest, default_manifest
from fedrepro.data.readers.common import check, reading
from fedrepro.data.roots import cache_root, data_root
from fedrepro.data.verify import verify

if TYPE_CHECKING:
    from torch import Tensor

ENCODER_VERSION = 1  # raised whenever the tensors made from the same file change


@dataclass(frozen=True)
class Recipe:
    """How a network takes images and where its features lie.

    size: side of its input in pixels. normalise: as in DataSpec. features: length of the feature
    vector. architecture: torchvision's function for the empty network.
    """

    size: int
    normalise: str
    features: int
    architecture: str


# MobileNetV2's BatchNorm is folded into its weights and its statistics are not the data's: it runs
# in evaluation mode alone. The feature is the mean over space of torchvision's `features(x)`. It
# was trained with TensorFlow's padding: its five 3x3 convolutions of stride 2 are to be padded by
# one at the bottom and on the right only, else up to three in ten of its answers change.
ENCODERS: dict[str, Recipe] = {
    "mobilenetv2-imagenet": Recipe(224, "half", 1280, "mobilenet_v2"),
}


@dataclass(frozen=True)
class Encoder:
    """A network's tensors by torchvision's names, on the CPU, memory-mapped. hash: sha256 hex over
    (name, the file's sha256, version). deviations: clauses to print beside numbers made with it."""

    name: str
    recipe: Recipe
    tensors: dict[str, Tensor]
    hash: str
    deviations: tuple[str, ...]


@dataclass(frozen=True)
class EncoderPlan:
    """Where an encoder's tensors come from and go to."""

    name: str
    located: Located
    hash: str
    path: Path


def encoder_plan(
    name: str,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
) -> EncoderPlan:
    """Find and verify an encoder's file; reads nothing of it but its hash."""
    if name not in ENCODERS:
        raise FedReproError(f"unknown encoder {name!r}; choose from {', '.join(ENCODERS)}")
    folder, store = data_root(root), cache_root(cache)
    located = (manifest or default_manifest()).locate(name, folder)
    hashes, _ = verify(located, folder, store)
    key = json.dumps([name, sorted(hashes.items()), ENCODER_VERSION])
    hash = hashlib.sha256(key.encode()).hexdigest()
    return EncoderPlan(name, located, hash, cache_path(store, name, ENCODERS[name].size, hash))


def load_encoder(
    name: str,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
) -> Encoder:
    """An encoder's tensors, converted into the cache where they are not there yet.

    Raises FedReproError (one line) for an unknown name, or a missing, cut or altered file.
    """
    plan = encoder_plan(name, root, cache, manifest)
    tensors = opened(plan)
    if tensors is None:
        convert(plan)
        tensors = opened(plan)
    if tensors is None:
        raise FedReproError(f"{plan.path} cannot be read back; delete it and prepare again")
    deviations = plan.located.source.deviations
    return Encoder(name, ENCODERS[name], tensors, plan.hash, deviations)


def opened(plan: EncoderPlan) -> dict[str, Tensor] | None:
    """The converted tensors; None if they are absent or damaged, which means: convert again."""
    from safetensors.torch import load_file  # brings torch, which costs seconds to import

    try:
        return load_file(plan.path) if is_whole(plan.path) else None
    except (OSError, SafetensorError):
        return None


def convert(plan: EncoderPlan) -> None:
    """Read the released file, which can hold nothing but tensors, and write it as safetensors."""
    import torch

    path = plan.located.found["weights"][1]
    with reading(path):
        # verified by its hash before, and read without the power to run code all the same
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    check(
        isinstance(tensors, dict) and all(isinstance(v, torch.Tensor) for v in tensors.values()),
        path,
        "is no mapping of tensors",
    )
    arrays = {name: value.numpy() for name, value in tensors.items()}
    write_signed(plan.path, arrays, {"encoder": plan.name, "hash": plan.hash})
