"""Networks by name."""

from fedrepro.models.base import (
    FLModel,
    Output,
    Shifted,
    ShiftedModel,
    TensorInfo,
    WrappedModel,
    architecture,
    layout,
    norms,
    parameter_count,
    run_with,
    seen_twice,
)
from fedrepro.models.networks import MODELS, build_model, discriminator

__all__ = [
    "MODELS", "FLModel", "Output", "Shifted", "ShiftedModel", "TensorInfo",
    "WrappedModel", "architecture", "build_model", "discriminator", "layout", "norms",
    "parameter_count", "run_with", "seen_twice",
]  # fmt: skip
