"""Multi-domain prototypes that the server trains one adapter on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor, nn

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.base.rng import seeded_modules, torch_stream
from fedrepro.methods.base import (
    Batch,
    BNPolicy,
    LocalModel,
    Method,
    Phase,
    Shots,
    TrainedClient,
    Upload,
    hyper,
)
from fedrepro.methods.losses import cross_entropy, distill_kl
from fedrepro.methods.messages import Message, tensor_of, tensors_of
from fedrepro.methods.server import Server
from fedrepro.models import TensorInfo, build_model

DROP = 10  # prototypes in a batch at the server; a smaller last batch is left out


@dataclass(frozen=True)
class MPFT(Method):
    """Clients send embeddings of their images, or what stands for them; the server trains the
    adapter on all of them as if they were data, and sends it. One round.

    Prototypes of a client and class k: the mean of its embeddings, ceil(rate n_k) of them drawn
    without replacement, or as many k-means centres. The server minimises cross-entropy by AdamW
    until the losses of its last batches hardly differ. Zhang et al. 2025, Alg. 1 and 2. Clients
    train nothing, unless they adapt the adapter they got to a few images of their own: CE + lambda
    KL(p_received || p), Alg. 3; then each client's is tested.

    The adapter a client begins with is counted as the one it gets: it is the same number of bytes.
    """

    name: ClassVar[str] = "MPFT"
    reference: ClassVar[str] = "zhang2025mpft"
    equations: ClassVar[tuple[str, ...]] = (
        r"\min_A \sum_{p} \mathrm{CE}\big(h(p + A(p)), y_p\big) \ \text{over all prototypes } p",
        r"p' = p + q\,\varepsilon, \quad \varepsilon \sim \mathcal{N}(0, s^2 I)",
        r"\mathrm{CE} + \lambda \, \mathrm{KL}\big(p_{global} \,\Vert\, p_{local}\big)",
    )
    needs_embeddings: ClassVar[bool] = True

    prototypes: Literal["mean", "cluster", "random"] = hyper(
        "mean", source="Alg. 1: three rules", status="stated", alternatives=("cluster", "random")
    )
    rate: float = hyper(
        0.1,
        source="Table 1: 0.1 and 0.3 of a class; of no effect for the mean",
        status="stated",
        alternatives=(0.3, 0.2),
        low=0.0001,
        high=1,
    )
    starts: int = hyper(
        1,
        source="k-means: scikit-learn's today; 10 when the paper was written, which is what its "
        "code took without naming it",
        status="inferred",
        alternatives=(10,),
        low=1,
        later=True,
    )
    server_lr: float = hyper(
        0.001,
        source="Sec. C.1; an earlier script has 0.00001",
        status="stated",
        alternatives=(1e-5,),
        low=0,
    )
    server_epochs: int = hyper(
        200, source="authors' code: at most 200, the cosine's end", status="code", low=1
    )
    server_warmup: int = hyper(
        10, source="authors' code: epochs, as the clients' rounds", status="code", low=0
    )
    threshold: float = hyper(
        0.001,
        source="authors' code; App. D recommends 0.01 or 0.001 and tries four",
        status="code",
        alternatives=(0.1, 0.01, 0.0001),
        low=0,
    )
    last_losses: int = hyper(
        20, source="authors' code: standard deviation of as many batch losses", status="code", low=2
    )
    noise_scale: float = hyper(
        0.0,
        source="Sec. 5.6, s: standard deviation of the noise; none in Tables 1 to 3",
        status="stated",
        alternatives=(0.05, 0.1, 0.5, 1.0, 5.0),
        low=0,
    )
    noise_share: float = hyper(
        0.1,
        source="Sec. 5.6, q: what the noise is multiplied by",
        status="stated",
        alternatives=(0.2, 0.5, 0.8),
        low=0,
    )
    shots: int | None = hyper(
        None,
        source="Sec. 5.4: no adaptation in the tables; Figure 4 has 1 to 64 images a class",
        status="stated",
        alternatives=(1, 2, 4, 8, 16, 32, 64),
        low=1,
    )
    distillation: float = hyper(
        0.0,
        source="Eq. 5, lambda; authors' code tries four values",
        status="decided",
        alternatives=(10.0, 100.0, 1000.0),
        low=0,
    )
    adaptation_lr: float = hyper(
        1e-4, source="authors' code: 0.001 at the first of ten warm-up epochs", status="code", low=0
    )
    adaptation_batch: int = hyper(8, source="authors' code", status="code", low=2)
    bn_policy: BNPolicy = hyper("average", source="the adapter has no BatchNorm", status="inferred")

    def shares(self, tensor: TensorInfo) -> bool:
        return False

    def broadcast(self, tensor: TensorInfo) -> bool:
        return not (tensor.is_fixed or tensor.is_counter)

    def evaluated_models(self, layout: Mapping[str, TensorInfo]) -> tuple[str, ...]:
        return ("global",) if self.shots is None else ("personal",)

    def phases(self, protocol: Protocol) -> tuple[Phase, ...]:
        return ()

    # Prototypes.

    def upload(self, client: TrainedClient) -> Message:
        if client.inputs.ndim != 2:
            raise FedReproError("MPFT works on embeddings; choose a protocol with data.encoder")
        z = client.inputs.to(next(iter(client.state.values())).dtype)
        rows = [
            self.chosen(z[client.labels == label], client.generator)
            for label in range(client.classes)
        ]
        prototypes = torch.cat(rows)
        if self.noise_scale:
            noise = torch.randn(prototypes.shape, generator=client.generator, dtype=z.dtype)
            prototypes = prototypes + self.noise_share * self.noise_scale * noise.to(z.device)
        return {"prototypes": prototypes, "counts": torch.tensor([len(part) for part in rows])}

    def chosen(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """One class's prototypes (m, d) of its embeddings (n, d)."""
        if len(z) == 0:
            return z
        count = math.ceil(self.rate * len(z))
        if self.prototypes == "mean":
            return z.mean(dim=0, keepdim=True)
        if self.prototypes == "random":
            return z[torch.randperm(len(z), generator=generator)[:count].to(z.device)]
        means = KMeans(count, random_state=0, n_init=self.starts).fit(z.cpu().numpy())
        return torch.from_numpy(means.cluster_centers_).to(z)

    # The server.

    def server_step(self, server: Server, uploads: Sequence[Upload]) -> None:
        z = torch.cat([tensor_of(upload.message, "prototypes") for upload in uploads])
        counts = [tensor_of(upload.message, "counts").cpu() for upload in uploads]
        labels = torch.cat([torch.repeat_interleave(part) for part in counts]).to(z.device)
        with seeded_modules(server.seed):  # whose values are replaced at once
            module = build_model(
                server.protocol.model, server.classes, z.shape[1], **server.protocol.model_args
            ).to(server.device, server.dtype)
        module.load_state_dict(server.model)
        stream = torch_stream(server.seed, "server", round=server.round)
        order = torch.randperm(len(z), generator=stream)
        full = len(z) - len(z) % DROP or len(z)
        losses = self._fit(module, z, labels, order[:full].to(z.device))
        server.model |= {name: value.detach() for name, value in module.state_dict().items()}
        steps = math.ceil(full / DROP)
        server.log["server_epochs"] = len(losses) / steps
        server.log["server_loss"] = float(np.mean(losses[-steps:]))

    def _fit(self, module: nn.Module, z: Tensor, labels: Tensor, order: Tensor) -> list[float]:
        """Train the adapter on prototypes, in one order in every epoch; the batches' losses."""
        spec = OptimizerSpec(
            kind="adamw",
            lr=self.server_lr,
            warmup=min(self.server_warmup, self.server_epochs - 1),
            cosine=self.server_epochs,
        )
        parameters = list(module.parameters())
        optimizer = torch.optim.AdamW(
            parameters, lr=spec.lr, weight_decay=spec.weight_decay, fused=True
        )
        batches = [(z[index], labels[index]) for index in order.split(DROP)]
        losses: list[float] = []
        for epoch in range(1, self.server_epochs + 1):
            optimizer.param_groups[0]["lr"] = spec.rate(epoch)
            seen = []
            for x, y in batches:
                optimizer.zero_grad(set_to_none=True)
                loss = F.cross_entropy(module(x).logits, y)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                seen.append(loss.detach())
            losses += torch.stack(seen).tolist()
            enough = len(losses) > self.last_losses
            if enough and np.std(losses[-self.last_losses :]) < self.threshold:
                break
        return losses

    # Few-shot adaptation.

    def before_test(self, protocol: Protocol, last_round: bool) -> tuple[Phase, ...]:
        if self.shots is None:
            return ()
        spec = OptimizerSpec(kind="adamw", lr=self.adaptation_lr, clip=1.0)
        return (Phase("adapt", 1, optimizer=spec, loss="adaptation_loss"),)

    def adapts_on(self, protocol: Protocol) -> Shots | None:
        return None if self.shots is None else Shots(self.shots, self.adaptation_batch)

    def first_memory(self, server: Server) -> dict[str, Tensor]:
        fixed = {n: v for n, v in server.model.items() if server.layout[n].is_fixed}
        return {} if self.shots is None else fixed

    def remember(self, client: TrainedClient) -> dict[str, Tensor]:
        return dict(tensors_of(client.received, "memory"))

    def adaptation_loss(
        self, model: LocalModel, batch: Batch, received: Message
    ) -> dict[str, Tensor]:
        """CE + lambda KL(p_received || p), Eq. 5."""
        whole = {**tensors_of(received, "memory"), **tensors_of(received, "model")}
        logits, teacher = model(batch.x).logits, model.run(whole, batch.x).logits
        distance = distill_kl(logits, teacher.detach(), "from_teacher", "mean")
        return {
            "ce": cross_entropy(logits, batch.y),
            "distillation": self.distillation * distance,
        }
