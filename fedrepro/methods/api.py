"""Everything needed to write a method, in one import; also for methods outside fedrepro. Below
`losses` and `prototypes` are the functions of single equations."""

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import Augmentation, OptimizerSpec, Protocol
from fedrepro.methods import losses as losses, prototypes as prototypes
from fedrepro.methods.base import (
    CLOSING,
    Batch,
    BNPolicy,
    Layout,
    LocalModel,
    Method,
    Phase,
    Terms,
    TrainedClient,
    Upload,
    Uploads,
    hyper,
)
from fedrepro.methods.losses import cross_entropy
from fedrepro.methods.prototypes import PrototypeMessages, class_means, empty_table, received_table
from fedrepro.methods.server import Message, Server
from fedrepro.models import FLModel, Output, TensorInfo, WrappedModel, discriminator, seen_twice

__all__ = [
    "CLOSING", "Augmentation", "BNPolicy", "Batch", "FLModel", "FedReproError", "Layout",
    "LocalModel", "Message", "Method", "OptimizerSpec", "Output", "Phase", "Protocol",
    "PrototypeMessages", "Server", "TensorInfo", "Terms", "TrainedClient", "Upload",
    "Uploads", "WrappedModel", "class_means", "cross_entropy", "discriminator", "empty_table",
    "hyper", "received_table", "seen_twice",
]  # fmt: skip
