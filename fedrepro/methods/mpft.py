import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

import fedrepro.methods.api as fl
from fedrepro.base.rng import seeded_modules, torch_stream


class MPFT(fl.Method):
    """Clients send prototypes of their images' embeddings; the server trains the adapter on all of
    them as if they were data, and sends it. One round.

    Prototypes of a client and class k: the mean of its embeddings, ceil(rate n_k) of them drawn
    without replacement, or as many k-means centres. The server minimises cross-entropy with AdamW
    until the losses of its last batches hardly differ. Zhang et al. 2025, Alg. 1 and 2. Clients
    train nothing. The initial adapter at a client is counted as the one it receives.
    """

    name = "MPFT"
    reference = "zhang2025mpft"
    averages = False
    needs_embeddings = True
    equations: ClassVar[tuple[str, ...]] = (
        r"\min_A \sum_{p} \mathrm{CE}\big(h(p + A(p)), y_p\big) \ \text{over all prototypes } p",
    )

    prototypes: Literal["mean", "cluster", "random"] = fl.hyper(
        "mean", "Alg. 1: three rules", "stated"
    )
    rate: float = fl.hyper(
        0.1, "Table 1: of a class; the mean ignores it", "stated", (0.3, 0.2), low=0.0001, high=1
    )
    starts: int = fl.hyper(
        1, "of k-means: today's default; earlier 10", "inferred", (10,), low=1, later=True
    )
    server_lr: float = fl.hyper(0.001, "Sec. C.1; earlier 0.00001", "stated", (1e-5,), low=1e-6)
    server_epochs: int = fl.hyper(200, "authors' code: at most; the cosine's end", "code", low=1)
    server_warmup: int = fl.hyper(10, "authors' code: epochs, as the clients'", "code")
    threshold: float = fl.hyper(
        0.001, "authors' code", "code", (0.1, 0.01, 0.0001), text="App. D tries four"
    )
    server_batch: int = fl.hyper(
        10, "authors' code; a smaller last one is left out", "code", low=1, later=True
    )
    last_losses: int = fl.hyper(20, "authors' code: batches whose deviation ends it", "code", low=2)
    bn_policy: fl.BNPolicy = fl.hyper("average", "the adapter has no BatchNorm", "inferred", ())

    def broadcast(self, tensor: fl.TensorInfo) -> bool:
        return not (tensor.is_fixed or tensor.is_counter)

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        return ()

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        z = client.embeddings()
        own = (z[client.labels == label] for label in range(client.classes))
        rows = [self.chosen(part, client.generator) for part in own]
        counts = torch.tensor([len(part) for part in rows])
        return {"prototypes": torch.cat(rows), "counts": counts}

    def chosen(self, z: Tensor, generator: torch.Generator) -> Tensor:
        """The prototypes (m, d) of one class from its embeddings (n, d)."""
        if len(z) == 0:
            return z
        count = math.ceil(self.rate * len(z))
        if self.prototypes == "mean":
            return z.mean(dim=0, keepdim=True)
        if self.prototypes == "random":
            return z[torch.randperm(len(z), generator=generator)[:count].to(z.device)]
        from sklearn.cluster import KMeans  # takes a second

        means = KMeans(count, random_state=0, n_init=self.starts).fit(z.cpu().numpy())
        return torch.from_numpy(means.cluster_centers_).to(z)

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        z = torch.cat([upload.message["prototypes"] for upload in uploads])
        counts = [upload.message["counts"].cpu() for upload in uploads]
        labels = torch.cat([torch.repeat_interleave(part) for part in counts]).to(z.device)
        with seeded_modules(server.seed):  # whose values are replaced at once
            module = server.new_network()
        module.to(server.device, server.dtype).load_state_dict(server.model)
        stream = torch_stream(server.seed, "server", round=server.round)
        order = torch.randperm(len(z), generator=stream)
        size = self.server_batch
        full = len(z) - len(z) % size or len(z)
        losses = self.fit(module, z, labels, order[:full].to(z.device))
        server.model |= {name: value.detach() for name, value in module.state_dict().items()}
        steps = math.ceil(full / size)
        server.log["server_epochs"] = len(losses) / steps
        server.log["server_loss"] = float(np.mean(losses[-steps:]))

    def fit(self, module: nn.Module, z: Tensor, labels: Tensor, order: Tensor) -> list[float]:
        """Train the adapter on prototypes, in the same order in every epoch, until the last losses
        deviate by less than the threshold, or the schedule ends. Returns the batches' losses."""
        rise = {"warmup": min(self.server_warmup, self.server_epochs - 1)}
        spec = fl.OptimizerSpec(kind="adamw", lr=self.server_lr, cosine=self.server_epochs, **rise)
        batches = [(z[index], labels[index]) for index in order.split(self.server_batch)]
        parameters, decay = list(module.parameters()), spec.weight_decay
        optimizer = torch.optim.AdamW(parameters, lr=spec.lr, weight_decay=decay, fused=True)
        losses: list[float] = []
        for epoch in range(1, self.server_epochs + 1):
            optimizer.param_groups[0]["lr"] = spec.rate(epoch)
            seen = []
            for x, y in batches:
                optimizer.zero_grad(set_to_none=True)
                loss = fl.cross_entropy(module(x).logits, y)
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                seen.append(loss.detach())
            losses += torch.stack(seen).tolist()
            last = losses[-self.last_losses :]
            if len(losses) > len(last) and np.std(last) < self.threshold:
                break
        return losses
