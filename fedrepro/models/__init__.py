"""Networks: encoder, projection head and predictor, and the discriminator."""

from fedrepro.models.base import FLModel, Output
from fedrepro.models.layout import Part, TensorInfo, layout, parameter_count
from fedrepro.models.mlp import MLPDiscriminator, discriminator
from fedrepro.models.registry import MODELS, build_model

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
