"""Prototype-based adversarial and collaborative learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.methods.base import (
    CLOSING,
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    Phase,
    TrainedClient,
    Upload,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, fedpall_contrast, kl_from_uniform, kl_to_uniform
from fedrepro.methods.messages import Message, network_of, tensor_of
from fedrepro.methods.prototypes import class_means, count_weighted_mean, fedpall_mix, unit_mean
from fedrepro.methods.server import Server
from fedrepro.models import TensorInfo, build_model, discriminator


def is_linear_head(tensor: TensorInfo) -> bool:
    """Whether a tensor is of the predictor's layers other than BatchNorm."""
    return tensor.part == "predictor" and not tensor.is_bn


@dataclass(frozen=True)
class FedPall(Method):
    """Encoders stay with their clients; features, masked and mixed with prototypes, go up.

    Clients minimise CE + mu KL + delta contrast (Eq. 8): features that the received amplifier
    cannot tell apart by client (Eq. 6), close to the global prototype of their class (Eq. 7). The
    server trains a global classifier and the amplifier on the uploads (Eqs. 12, 13) and joins the
    prototypes (Eq. 4). A round starts with the global classifier's linear layers in place of the
    client's own, BatchNorm aside, from the first round on; encoder and classifier then train
    together. Tested is each client's network as its training left it.

    A departure from the code: uploads are mixed with the prototypes received at the round's start,
    in the order of Fig. 2 (zeros in the first round), where the code takes those of the same round;
    one of length 1 at most, of which a fifth at most is mixed in, makes little difference.
    """

    name: ClassVar[str] = "FedPall"
    reference: ClassVar[str] = "zhang2025fedpall"
    equations: ClassVar[tuple[str, ...]] = (
        r"\mathrm{CE} + \mu \, \mathrm{KL}\big(U \,\Vert\, A(z)\big) - \delta \log \frac{e^{z "
        r"\cdot G^y / \tau}}{\sum_k e^{z \cdot G^k / \tau}}",
        r"r = m \odot \big(\alpha z + (1 - \alpha) G^y\big)",
        r"G^k = \sum_i n_i^k c_i^k \Big/ \sum_i n_i^k",
    )

    reading: Literal["code", "paper"] = hyper(
        "code",
        source="where text and code differ, the code. code: KL(U || A), all prototypes in the "
        "contrast's denominator as long as sent, joined from unit-length ones, a mask that keeps "
        "an exact share; paper: KL(A || U), own class left out, plain means, Bernoulli mask",
        status="code",
        alternatives=("paper",),
    )
    mu: float = hyper(
        0.1,
        source="Sec. 5.1 (Office-10, PACS); on Digits the text has 0.7, the code 0.3; 0 leaves the "
        "term and the amplifier out (Fig. 3)",
        status="stated",
        alternatives=(0.0, 0.2, 0.3, 0.5, 0.7, 1.0),
        low=0,
    )
    delta: float = hyper(
        0.1,
        source="Sec. 5.1 (Office-10, PACS); on Digits the text has 0.3, the code 0.7; 0 leaves the "
        "term out (Fig. 3)",
        status="stated",
        alternatives=(0.0, 0.2, 0.3, 0.5, 0.7, 1.0),
        low=0,
    )
    temperature: float = hyper(3.0, source="code; Eq. 7 names no value", status="code", low=0.001)
    global_classifier: bool = hyper(
        True,
        source="Sec. 3.2.4; Fig. 6 compares with the client's own",
        status="stated",
        alternatives=(False,),
    )
    sent_as: Literal["mixed-masked", "mixed", "masked", "gaussian", "raw"] = hyper(
        "mixed-masked",
        source="Eqs. 9 to 11; Sec. 5.3 compares the others; its Gaussian noise has variance 1",
        status="stated",
        alternatives=("mixed", "masked", "gaussian", "raw"),
    )
    mix_low: float = hyper(0.8, source="code; Eq. 9 names no value", status="code", low=0, high=1)
    mix_high: float = hyper(1.0, source="code; Eq. 9 names no value", status="code", low=0, high=1)
    keep: float = hyper(0.9, source="code; Eq. 10 names no value", status="code", low=0, high=1)
    closing_pass: bool = hyper(
        True,
        source="code: after training one more pass in training mode, which BatchNorm follows, and "
        "features taken in that mode; False leaves it out and takes them in evaluation mode",
        status="code",
        alternatives=(False,),
    )
    server_epochs: int = hyper(
        3,
        source="code: 3 on Office-10 and PACS, 1 on Digits",
        status="code",
        alternatives=(1,),
        low=1,
    )
    server_lr: float = hyper(0.01, source="Sec. 5.1, one value for all", status="stated", low=0)
    server_momentum: float = hyper(0.9, source="code, at the server only", status="code", low=0)
    server_weight_decay: float = hyper(
        1e-5, source="code, at the server only", status="code", low=0
    )
    bn_policy: BNPolicy = hyper(
        "local", source="nothing is averaged; classifiers keep their own", status="inferred"
    )

    def shares(self, tensor: TensorInfo) -> bool:
        return False

    def broadcast(self, tensor: TensorInfo) -> bool:
        return self.global_classifier and is_linear_head(tensor)

    def evaluated_models(self, layout: Mapping[str, TensorInfo]) -> tuple[str, ...]:
        return ("trained",)

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        return (*super().phases(protocol), *([CLOSING] if self.closing_pass else []))

    def client_loss(self, model: LocalModel, batch: Batch, received: Message) -> dict[str, Tensor]:
        out = model(batch.x)
        terms = {"ce": cross_entropy(out.logits, batch.y)}
        if self.mu:
            kl = kl_from_uniform if self.reading == "code" else kl_to_uniform
            terms["kl"] = self.mu * kl(network_of(received, "amplifier")(out.features))
        if self.delta:
            prototypes, present = (tensor_of(received, kind) for kind in ("prototypes", "present"))
            terms["contrast"] = self.delta * fedpall_contrast(
                out.features, batch.y, prototypes, present, self.temperature, self.reading
            )
        return terms

    def upload(self, client: TrainedClient) -> Message:
        z = client.features(self.closing_pass, client.augmentation)
        means, counts = class_means(z, client.labels, client.classes)
        return {
            "features": self.disguised(z, client),
            "labels": client.labels,
            "prototypes": means,
            "counts": counts,
        }

    def disguised(self, z: Tensor, client: TrainedClient) -> Tensor:
        """Features (n, d) as they are sent."""
        if self.sent_as == "raw":
            return z
        if self.sent_as == "gaussian":
            return z + torch.randn(z.shape, generator=client.generator).to(z)
        return fedpall_mix(
            z,
            client.labels,
            tensor_of(client.received, "prototypes"),
            client.generator,
            low=1.0 if self.sent_as == "masked" else self.mix_low,
            high=1.0 if self.sent_as == "masked" else self.mix_high,
            keep=1.0 if self.sent_as == "mixed" else self.keep,
            mask="exact" if self.reading == "code" else "bernoulli",
        )

    def init_server(self, server: Server) -> None:
        protocol, size = server.protocol, server.protocol.data.size
        built = build_model(protocol.model, server.classes, size, **protocol.model_args)
        server.add_module("classifier", built.predictor)
        if self.mu:
            amplifier = discriminator(server.feature_size, server.clients, batch_norm=True)
            server.add_module("amplifier", amplifier)
        server.tensors["prototypes"] = torch.zeros(
            server.classes, server.feature_size, device=server.device, dtype=server.dtype
        )
        server.tensors["present"] = server.tensors["prototypes"].any(dim=1)
        self.publish(server)

    def publish(self, server: Server) -> None:
        """Put the global classifier where the clients load theirs from."""
        for name, value in server.modules["classifier"].named_parameters(prefix="predictor"):
            if self.broadcast(server.layout[name]):
                server.model[name] = value.detach().clone()

    def download(self, server: Server, client: int) -> Message:
        message: Message = {kind: server.tensors[kind] for kind in ("prototypes", "present")}
        if self.mu:
            # in training mode: its BatchNorm uses the batch's own statistics, as in the code
            message["amplifier"] = server.network("amplifier", training=True)
        return message

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        z, labels, means, counts = (
            [tensor_of(upload.message, kind) for upload in uploads]
            for kind in ("features", "labels", "prototypes", "counts")
        )
        join = unit_mean if self.reading == "code" else count_weighted_mean
        new, present = join(torch.stack(means), torch.stack(counts))
        old = server.tensors["prototypes"]
        server.tensors["prototypes"] = torch.where(present[:, None], new, old)
        server.tensors["present"] = server.tensors["present"] | present
        owner = [torch.full_like(y, u.client) for y, u in zip(labels, uploads, strict=True)]
        targets = {"classifier": labels, "amplifier": owner}
        for name in server.modules:
            if name != "classifier" or self.global_classifier:
                server.fit(
                    name,
                    torch.cat(z).to(server.dtype),
                    torch.cat(targets[name]),
                    epochs=self.server_epochs,
                    optimizer=OptimizerSpec(
                        lr=self.server_lr,
                        momentum=self.server_momentum,
                        weight_decay=self.server_weight_decay,
                    ),
                )
        self.publish(server)
