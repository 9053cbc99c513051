"""Federated adversarial domain adaptation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.extras.disentangling import (
    Candidates,
    Disentangled,
    DisentanglingModel,
    Extractor,
    information_bound,
    opposed,
    within_clusters,
)
from fedrepro.methods.losses import TINY, kl_from_uniform
from fedrepro.models.discriminators import Panel

SOURCE, TARGET = 0, 1  # a discriminator's classes, in the order of `fit`


@dataclass(frozen=True)
class FADA(fl.Method):
    """Labelled sources and one unlabelled target: an extractor for which no discriminator can
    separate source and target, a disentangler, and an attention to the sources that help the
    target.

    A source minimises CE of the predictor on the domain-invariant part of its features; the term
    that fools its discriminator; KL from uniform of a class identifier on the domain-specific part;
    the mutual information of the parts; and their squared error in rebuilding the features. The
    target's labels are in no loss; it trains its extractor to fool all discriminators on average.
    The server trains one discriminator per source. The new network is the sources' weighted mean
    plus the target's own update. A source's weight is higher if its update reduces the scatter of
    the target's features within k-means clusters. Each client is tested with it on its own domain;
    the target's number counts.

    Peng et al. 2020, whose text was not available, after ADCOL App. C, secondary sources and the
    authors' code of an earlier method (DAL). Differences: everything is exchanged per round instead
    of per batch, so discriminators and attention are one round late, and round 1 has equal weights;
    sources start each round from the common network, not from their own; only the domain-invariant
    half of the disentangler is sent; adversaries step together, on one batch, with reversed
    gradients; softplus(I) replaces I, which may be negative; the target trains no disentangler,
    whose terms would not reach the extractor or would need labels.
    """

    name = "FADA"
    reference = "peng2020fada"
    equations = (
        r"\text{source } i: \; \mathrm{CE}\big(h(d(z)), y\big) - \lambda_a \log D_i(T \mid z) + "
        r"\lambda_c \, \mathrm{KL}\big(U \,\Vert\, c(s(z))\big) + \lambda_m \, I\big(d(z); "
        r"s(z)\big) + \frac{\lambda_r}{\dim z} \lVert r(d(z), s(z)) - z \rVert^2",
        r"\text{target: } \; -\lambda_a \, \mathrm{mean}_i \log D_i(S \mid z)",
        r"W = \sum_k \frac{1}{2 n_k} \sum_{a, b \in C_k} \lVert z_a - z_b \rVert^2, \quad "
        r"\alpha = \mathrm{softmax}_i\big((W - W_i) / W\big)",
        r"w \leftarrow \sum_i \alpha_i w_i + \gamma \, (w_T - w)",
    )

    target: int = fl.hyper(
        0, "ADCOL App. C: each client in turn, its labels unused; -1 is the last", "stated"
    )
    alignment: float = fl.hyper(
        1.0, "not stated; DAL code has 0.01, under Adam", "decided", (0.01, 0.1), low=0
    )
    confusion: float = fl.hyper(1.0, "not stated; 1 in DAL code", "code", (0.1, 0.0), low=0)
    information: float = fl.hyper(
        1e-4, "DAL code; not stated. The estimator itself has weight 1", "code", (0.01, 0.0), low=0
    )
    reconstruction: float = fl.hyper(
        0.01, "not stated; 0.01 in DAL code, of the mean over features", "code", (1.0, 0.0), low=0
    )
    estimator_hidden: int = fl.hyper(512, "not stated; 512 in DAL code", "code", low=1)
    discriminator_hidden: tuple[int, ...] = fl.hyper(
        (256,), "not stated; 256 in DAL code, leaky ReLU there, ReLU here", "code", ((512, 512),)
    )
    discriminator_epochs: int = fl.hyper(1, "not stated; as ADCOL's", "decided", (3,), low=1)
    discriminator_lr: float = fl.hyper(0.01, "not stated; as ADCOL's", "decided", (0.001,), low=0)
    discriminator_momentum: float = fl.hyper(
        0.9, "not stated; as ADCOL's", "decided", (0.0,), low=0
    )
    attention: Literal["relative", "absolute", "equal"] = fl.hyper(
        "relative",
        "Peng et al.: softmax of W - W_i, which grow until one source has all the weight; divided "
        "by W here, of squared distances (not stated); equal leaves it out",
        "decided",
        ("absolute", "equal"),
    )
    target_share: float = fl.hyper(
        1.0, "not stated; 0 is a network of the sources alone", "decided", (0.0,), low=0, high=1
    )
    bn_policy: Literal["recompute", "average"] = fl.hyper(
        "recompute", "not stated; average takes the sources', by attention", "decided", ("average",)
    )

    def network(self, module: fl.FLModel) -> fl.FLModel:
        return DisentanglingModel(module, self.information, self.estimator_hidden)

    def shares(self, tensor: fl.TensorInfo) -> bool:
        return tensor.part != "own" or tensor.name.startswith("invariant.")

    def travels(self, tensor: fl.TensorInfo) -> bool:
        return False  # `upload` sends the tensors that `server_step` weights per client

    def broadcast(self, tensor: fl.TensorInfo) -> bool:
        return super().travels(tensor)

    # Clients. The target is the client that gets all discriminators.

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        assert isinstance(out, Disentangled)
        if "discriminators" in received:
            guess = fl.network_of(received, "discriminators")(out.features)
            return {"fool": self.alignment * _cross_entropy_to(SOURCE, guess)}
        guess = fl.network_of(received, "discriminator")(out.features)
        error = (out.rebuilt - out.features.detach()).square().mean()
        terms = {
            "ce": fl.cross_entropy(out.logits, batch.y),
            "fool": self.alignment * _cross_entropy_to(TARGET, guess),
            "identify": fl.cross_entropy(out.guessed, batch.y),
            "confuse": self.confusion * kl_from_uniform(out.confused),
            "rebuild": self.reconstruction * error,
        }
        if self.information:
            estimate = information_bound(out.joint, out.marginal)
            terms["information"] = opposed(F.softplus(estimate))
        return terms

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        names = fl.tensors_of(client.received, "model").keys()
        message: fl.Message = {"features": client.features()}
        if "discriminators" not in client.received:
            message["network"] = {name: client.state[name] for name in names}
            return message
        if self.target_share:  # its predictor and disentangler did not change
            own = (name for name in names if name.startswith(("encoder.", "projection.")))
            message["network"] = {name: client.state[name] for name in own}
        if "candidates" in client.received:
            message["scatter"] = self.scatter(client)
        return message

    @torch.no_grad()
    def scatter(self, client: fl.TrainedClient) -> Tensor:
        """W of the client's features for every candidate, with k-means from the same images."""
        order = torch.randperm(len(client.inputs), generator=client.generator)
        images = client.inputs[order.to(client.inputs.device)]
        features = fl.network_of(client.received, "candidates")(images)
        return torch.stack([within_clusters(z, client.classes) for z in features])

    # The server.

    def sources(self, server: fl.Server) -> list[int]:
        """All clients but the target."""
        target = range(server.clients)[self.target]
        return [client for client in range(server.clients) if client != target]

    def init_server(self, server: fl.Server) -> None:
        protocol, clients = server.protocol, server.clients
        if not -clients <= self.target < clients or clients < 2:
            choice = f"choose one of 0 to {clients - 1}, with at least two clients"
            raise fl.FedReproError(f"FADA target = {self.target}: {choice}")
        if protocol.participation < 1:
            raise fl.FedReproError("FADA needs its target in every round; set participation to 1")
        sizes, sources = (server.feature_size, 2, self.discriminator_hidden), self.sources(server)
        pairs = {source: fl.discriminator(*sizes) for source in sources}
        for source, made in pairs.items():
            server.add_module(f"discriminator{source}", made)
        given = iter(pairs.values())
        server.add_module("discriminators", Panel(lambda: next(given), len(pairs)))
        members = [Extractor(server.new_network()) for _ in range(clients)]
        server.add_module("candidates", Candidates(members, protocol.data.normalise))

    def download(self, server: fl.Server, client: int) -> fl.Message:
        if client in self.sources(server):
            return {"discriminator": server.network(f"discriminator{client}")}
        message: fl.Message = {"discriminators": server.network("discriminators")}
        if server.round > 1 and self.attention != "equal":
            message["candidates"] = server.network("candidates")
        return message

    def server_step(self, server: fl.Server, uploads: Sequence[fl.Upload]) -> None:
        messages = {upload.client: upload.message for upload in uploads}
        sources = self.sources(server)
        (target,) = messages.keys() - set(sources)
        networks = [fl.tensors_of(messages[i], "network") for i in sources]
        before = {name: server.model[name] for name in networks[0]}
        weights = self.attended(messages[target], len(sources)).to(server.device, server.dtype)
        for name in before:
            stack = torch.stack([network[name] for network in networks])
            server.model[name] = torch.tensordot(weights, stack, dims=1)
        if self.target_share:
            for name, value in fl.tensors_of(messages[target], "network").items():
                if not server.layout[name].is_buffer:  # a variance must stay positive
                    update = self.target_share * (value - before[name])
                    server.model[name] = server.model[name] + update
        server.log |= {f"attention{i}": float(w) for i, w in zip(sources, weights, strict=True)}
        z = {i: fl.tensor_of(message, "features") for i, message in messages.items()}
        lr, momentum = self.discriminator_lr, self.discriminator_momentum
        decay = server.protocol.optimizer.weight_decay
        spec = fl.OptimizerSpec(lr=lr, momentum=momentum, weight_decay=decay)
        for i in sources:  # each source's discriminator, on its features and the target's
            both = z[i], z[target]
            domain = torch.cat([torch.full((len(part),), n) for n, part in enumerate(both)])
            epochs = self.discriminator_epochs
            server.fit(f"discriminator{i}", torch.cat(both), domain, epochs=epochs, optimizer=spec)
        cast(Candidates, server.modules["candidates"]).hold([before, *networks])

    def attended(self, message: fl.Message, sources: int) -> Tensor:
        """The sources' weights (sources,) in the new network."""
        if "scatter" not in message:
            return torch.full((sources,), 1 / sources, dtype=torch.float64)
        before, *after = fl.tensor_of(message, "scatter")
        gain = before - torch.stack(after)
        if self.attention == "relative":
            gain = gain / before.clamp(min=TINY)
        return torch.softmax(gain, dim=0)


def _cross_entropy_to(domain: int, logits: Tensor) -> Tensor:
    """Cross-entropy of a discriminator's logits (b, 2) with a domain that is not the features' own:
    it is low if the discriminator is fooled."""
    return -F.log_softmax(logits, dim=1)[:, domain].mean()
