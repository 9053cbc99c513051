"""Class prototypes on their way: clients' means up, one table of the server's down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedrepro.methods.base import TrainedClient, Upload
from fedrepro.methods.messages import Message, tensor_of
from fedrepro.methods.prototypes import class_means, count_weighted_mean, ema, plain_mean
from fedrepro.methods.server import Server

HELD = ("prototypes", "present")


class PrototypeMessages:
    """What methods have in common whose clients send the mean feature of each class they have, and
    are sent prototypes; written before `Method` among a class's bases.

    The server keeps a table ``prototypes`` (P, d) and a mask ``present`` (P,) of the rows in use,
    at first zeros and none; both go down. Up go ``prototypes``, one row per class the client has,
    and what `tells` of the classes (K,): their numbers of images, or a mask.

    Three fields a method may have: whether the features of the means are taken in training mode,
    and of images augmented as in training; whether the server weights a class's means by "images"
    or takes "clients" alike.
    """

    tells: ClassVar[Literal["counts", "present"]] = "present"
    prototypes_in_training_mode: bool = False
    prototypes_of_augmented_images: bool = False
    prototype_weighting: str = "clients"

    def sent_features(self, client: TrainedClient) -> Tensor:
        """Features (n, d), in the order of the client's labels, whose class means go up."""
        augmentation = client.augmentation if self.prototypes_of_augmented_images else None
        return client.features(self.prototypes_in_training_mode, augmentation)

    def joined(self, server: Server, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        """The server's next prototypes and mask, from the clients' means (N, K, d), zeros where
        there is none, and what they told of their classes (N, K)."""
        mean = count_weighted_mean if self.prototype_weighting == "images" else plain_mean
        return mean(stack, told)

    def renewed(self, server: Server, new: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """New prototypes (P, d) where there are some (P,), else those the server has."""
        return ema(server.tensors["prototypes"], new, 0, server.tensors["present"], there)

    def init_server(self, server: Server) -> None:
        self.hold(server, *empty_table(server, server.classes))

    def hold(self, server: Server, prototypes: Tensor, present: Tensor) -> None:
        """Make these the server's."""
        server.tensors |= dict(zip(HELD, (prototypes, present), strict=True))

    def download(self, server: Server, client: int) -> Message:
        return {kind: server.tensors[kind] for kind in HELD}

    def upload(self, client: TrainedClient) -> Message:
        means, counts = class_means(self.sent_features(client), client.labels, client.classes)
        owned = counts > 0
        told = counts if self.tells == "counts" else owned
        return {"prototypes": means[owned], self.tells: told}

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        self.hold(server, *self.joined(server, *self.stacked(server, uploads)))

    def stacked(self, server: Server, uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
        """The uploads as `joined` takes them, a row an upload."""
        told = torch.stack([tensor_of(upload.message, self.tells) for upload in uploads])
        sent = torch.cat([tensor_of(upload.message, "prototypes") for upload in uploads])
        stack = sent.new_zeros(*told.shape, sent.shape[1])
        stack[told > 0] = sent
        return stack, told


def empty_table(server: Server, *rows: int) -> tuple[Tensor, Tensor]:
    """A table (rows, d) of zeros, and a mask (rows,) of none."""
    size = *rows, server.feature_size
    table = torch.zeros(size, dtype=server.dtype, device=server.device)
    return table, torch.zeros(rows, dtype=torch.bool, device=server.device)


def received_table(received: Message) -> tuple[Tensor, Tensor]:
    """The prototypes (P, d) a client was sent and their mask (P,)."""
    return tensor_of(received, "prototypes"), tensor_of(received, "present")
