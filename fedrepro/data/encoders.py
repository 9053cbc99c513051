"""Frozen encoders: their properties, and their tensors from the released files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedrepro.data.cache import cache_root, data_root
from fedrepro.data.manifest import Manifest, default_manifest, verify
from fedrepro.data.readers.common import check, reading

if TYPE_CHECKING:
    from torch import Tensor

ENCODER_VERSION = 1  # raised whenever the tensors made from the same file change


@dataclass(frozen=True)
class Recipe:
    """The input and the features of a network.

    size: side of its input in pixels. normalise: as in DataSpec. features: length of the feature
    vector. architecture: torchvision's function for the empty network.
    """

    size: int
    normalise: str
    features: int
    architecture: str


# MobileNetV2's BatchNorm is folded into its weights and its statistics are not the data's, so it
# runs in evaluation mode only. The feature is the mean over space of torchvision's `features(x)`.
# It was trained with TensorFlow's padding: its five 3x3 convolutions of stride 2 are padded by one
# at the bottom and on the right only. Else up to three in ten predictions change.
ENCODERS: dict[str, Recipe] = {
    "mobilenetv2-imagenet": Recipe(224, "half", 1280, "mobilenet_v2"),
}


@dataclass(frozen=True)
class Encoder:
    """A network's tensors by torchvision's names, on the CPU. hash: sha256 hex over (name, the
    file's sha256, version). deviations: clauses to print with numbers made with it."""

    name: str
    recipe: Recipe
    tensors: dict[str, Tensor]
    hash: str
    deviations: tuple[str, ...]


def load_encoder(
    name: str,
    root: Path | str | None = None,
    cache: Path | str | None = None,
    manifest: Manifest | None = None,
) -> Encoder:
    """An encoder's tensors. The file is verified by its hash, and read in a way that cannot run
    code.

    Raises FedReproError (one line) for a missing, truncated or changed file.
    """
    import torch  # costs seconds to import

    folder = data_root(root)
    located = (manifest or default_manifest()).locate(name, folder)
    hashes, _ = verify(located, folder, cache_root(cache))
    path = located.found["weights"][1]
    with reading(path):
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        fits = all(isinstance(value, torch.Tensor) for value in tensors.values())
    check(fits, path, "is not a mapping of tensors")
    key = json.dumps([name, sorted(hashes.items()), ENCODER_VERSION])
    hash = hashlib.sha256(key.encode()).hexdigest()
    return Encoder(name, ENCODERS[name], tensors, hash, located.source.deviations)
