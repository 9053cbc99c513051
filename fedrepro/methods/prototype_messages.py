"""Class prototypes on their way: clients' means up, one table of the server's down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedrepro.methods.base import TrainedClient, Upload
from fedrepro.methods.messages import Message, tensor_of
from fedrepro.methods.prototypes import class_means
from fedrepro.methods.server import Server

HELD = ("prototypes", "present")


class PrototypeMessages:
    """What methods have in common whose clients send the mean feature of each class they have, and
    are sent prototypes; written before `Method` among a class's bases.

    The server keeps a table ``prototypes`` (P, d) and a mask ``present`` (P,) of the rows in use,
    at first zeros and none; both go down. Up go ``prototypes``, a row a class the client has, and
    what `tells` of the classes (K,): their numbers of images, or a mask.
    """

    tells: ClassVar[Literal["counts", "present"]] = "present"

    def sent_features(self, client: TrainedClient) -> Tensor:
        """Features (n, d), in the order of the client's labels, whose class means go up."""
        raise NotImplementedError

    def joined(self, server: Server, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        """The server's next prototypes and mask, from the clients' means (N, K, d), zeros where
        there is none, and what they told of their classes (N, K)."""
        raise NotImplementedError

    def init_server(self, server: Server) -> None:
        self.keep(server, *empty_table(server, server.classes))

    def keep(self, server: Server, prototypes: Tensor, present: Tensor) -> None:
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
        self.keep(server, *self.joined(server, *self.stacked(server, uploads)))

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


def class_features(client: TrainedClient, training: bool, augmented: bool) -> Tensor:
    """A client's features (n, d): in training mode or not, of its images as they are or augmented
    as in training."""
    return client.features(training, client.augmentation if augmented else None)
