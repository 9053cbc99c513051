"""Everything needed to write a method, in one import; also for methods outside fedrepro."""

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import Augmentation, OptimizerSpec, Protocol
from fedrepro.methods.base import (
    CLOSING,
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    Phase,
    Shots,
    Terms,
    TrainedClient,
    Upload,
    hyper,
)
from fedrepro.methods.losses import cross_entropy
from fedrepro.methods.messages import Message, network_of, tensor_of, tensors_of
from fedrepro.methods.prototypes import PrototypeMessages, class_means, empty_table, received_table
from fedrepro.methods.server import Server
from fedrepro.models import FLModel, Output, TensorInfo, discriminator

__all__ = [
    "CLOSING", "Augmentation", "BNPolicy", "Batch", "FLModel", "FedReproError", "LocalModel",
    "Message", "Method", "OptimizerSpec", "Output", "Phase", "Protocol", "PrototypeMessages",
    "Server", "Shots", "TensorInfo", "Terms", "TrainedClient", "Upload", "class_means",
    "cross_entropy", "discriminator", "empty_table", "hyper", "network_of", "received_table",
    "tensor_of", "tensors_of",
]  # fmt: skip
