from typing import ClassVar

import torch
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.methods.mpft import MPFT


class MPFTVariants(MPFT):
    """With `shots` each client fine-tunes the received adapter on a few of its own images: CE +
    lambda KL(p_received || p), Alg. 3. Then each client's adapter is tested."""

    equations: ClassVar[tuple[str, ...]] = (
        *MPFT.equations,
        r"p' = p + q\,\varepsilon, \quad \varepsilon \sim \mathcal{N}(0, s^2 I)",
        r"\mathrm{CE} + \lambda \, \mathrm{KL}\big(p_{global} \,\Vert\, p_{local}\big)",
    )

    noise_scale: float = fl.hyper(
        0.0, "Sec. 5.6, s: deviation; Tables 1-3: none", "stated", (0.05, 0.1, 0.5, 1.0, 5.0)
    )
    noise_share: float = fl.hyper(
        0.1, "Sec. 5.6, q: what the noise is multiplied by", "stated", (0.2, 0.5, 0.8)
    )
    shots: int | None = fl.hyper(
        None, "Sec. 5.4; authors' code: 1 to 64", "code", (1, 2, 4, 8, 16, 32, 64), low=1
    )
    distillation: float = fl.hyper(
        0.0, "Eq. 5, lambda; authors' code tries four", "decided", (10.0, 100.0, 1000.0)
    )
    adaptation_lr: float = fl.hyper(
        1e-4, "authors' code: 0.001 at the first of ten warm-up epochs", "code", low=1e-6
    )
    adaptation_batch: int = fl.hyper(8, "authors' code", "code", low=2)

    def evaluated_models(self, layout: fl.Layout) -> tuple[str, ...]:
        return ("global",) if self.shots is None else ("personal",)

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        message = super().upload(client)
        if self.noise_scale:
            z = message["prototypes"]
            noise = torch.randn(z.shape, generator=client.generator, dtype=z.dtype).to(z.device)
            message["prototypes"] = z + self.noise_share * self.noise_scale * noise
        return message

    def before_test(self, protocol: fl.Protocol, last_round: bool) -> tuple[fl.Phase, ...]:
        if self.shots is None:
            return ()
        spec = fl.OptimizerSpec(kind="adamw", lr=self.adaptation_lr, clip=1.0)
        return (fl.Phase("adapt", 1, optimizer=spec, loss="adaptation_loss"),)

    def adapts_on(self, protocol: fl.Protocol) -> tuple[int, int] | None:
        return None if self.shots is None else (self.shots, self.adaptation_batch)

    def first_memory(self, server: fl.Server) -> dict[str, Tensor]:
        fixed = {n: v for n, v in server.model.items() if server.layout[n].is_fixed}
        return {} if self.shots is None else fixed

    def adaptation_loss(
        self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message
    ) -> fl.Terms:
        """CE + lambda KL(p_received || p), Eq. 5."""
        whole = {**received["memory"], **received["model"]}
        logits, teacher = model(batch.x).logits, model.run(whole, batch.x).logits
        distance = fl.losses.distill_kl(logits, teacher.detach())
        ce = fl.cross_entropy(logits, batch.y)
        return {"ce": ce, "distillation": self.distillation * distance}
