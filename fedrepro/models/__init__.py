"""Networks by name: encoder, projection head and predictor; and the discriminators."""

import inspect
from collections.abc import Callable
from typing import Any

from fedrepro.base.errors import choices, need, one_of
from fedrepro.models import networks
from fedrepro.models.base import FLModel, Output, TensorInfo, layout, parameter_count
from fedrepro.models.networks import discriminator

__all__ = [
    "MODELS", "FLModel", "Output", "TensorInfo", "build_model", "discriminator", "layout",
    "parameter_count",
]  # fmt: skip

_BUILDERS: tuple[Callable[..., FLModel], ...] = (
    networks.adcol_resnet50, networks.adapter, networks.digit_cnn, networks.fedpall_resnet50,
    networks.narrow_resnet, networks.resnet10, networks.resnet18, networks.small_cnn,
    networks.tiny_cnn,
)  # fmt: skip
# Protocols, and so run ids, have a function's name: none of these may be renamed.
MODELS = {build.__name__.replace("_", "-"): build for build in _BUILDERS}


def build_model(name: str, classes: int, size: int, **args: Any) -> FLModel:
    """A fresh network of ``classes`` classes for images (b, 3, size, size) or embeddings (b, size).
    Initial values come from torch's global generator; build inside ``rng.seeded_modules``.
    FedReproError: unknown name, unknown or wrong argument."""
    build = MODELS[one_of(name, MODELS, "network")]
    known = [p for p in inspect.signature(build).parameters if p not in ("classes", "size")]
    for key, value in args.items():
        near = choices(key, known) or "none"
        need(key in known, f"{name} has no argument {key!r}; it takes {near}")
        whole = type(value) is int and value >= 1
        need(whole, f"{name}: {key} = {value!r} must be a whole number of 1 or more")
    return build(classes, size, **args)
