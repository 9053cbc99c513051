"""Networks by name: encoder, projection head and predictor; and the discriminators."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fedrepro.base.errors import FedReproError
from fedrepro.models.base import FLModel, Output, Part, TensorInfo, layout, parameter_count
from fedrepro.models.cnn import digit_cnn, pfl_cnn, small_cnn, tiny_cnn
from fedrepro.models.discriminators import MLPDiscriminator, discriminator
from fedrepro.models.mlp import adapter
from fedrepro.models.resnet import (
    adcol_resnet50,
    fedpall_resnet50,
    narrow_resnet,
    resnet10,
    resnet18,
)

__all__ = [
    "MODELS",
    "FLModel",
    "MLPDiscriminator",
    "Output",
    "Part",
    "TensorInfo",
    "build_model",
    "discriminator",
    "layout",
    "parameter_count",
]

MODELS: dict[str, Callable[..., FLModel]] = {
    "adcol-resnet50": adcol_resnet50,
    "adapter": adapter,
    "digit-cnn": digit_cnn,
    "fedpall-resnet50": fedpall_resnet50,
    "narrow-resnet": narrow_resnet,
    "pfl-cnn": pfl_cnn,
    "resnet10": resnet10,
    "resnet18": resnet18,
    "small-cnn": small_cnn,
    "tiny-cnn": tiny_cnn,
}


def build_model(name: str, classes: int, size: int, **args: Any) -> FLModel:
    """A fresh network for images (b, 3, size, size), or embeddings (b, size), and ``classes``
    classes.

    Initial values come from torch's global generator; build inside ``rng.seeded_modules``.

    Raises:
        FedReproError: unknown name, unknown or wrong argument, fewer than 2 classes.
    """
    if name not in MODELS:
        raise FedReproError(f"no network is called {name!r}; choose one of {', '.join(MODELS)}")
    if classes < 2:
        raise FedReproError(f"a network needs at least 2 classes, not {classes}")
    build = MODELS[name]
    known = [p for p in inspect.signature(build).parameters if p not in ("classes", "size")]
    for key, value in args.items():
        if key not in known:
            choices = ", ".join(known) or "none"
            raise FedReproError(f"{name} has no argument {key!r}; its arguments: {choices}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise FedReproError(f"{name}: {key} = {value!r} must be a whole number of 1 or more")
    return build(classes, size, **args)
