"""What travels in FADA, and what its server does."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.extras.disentangling import Candidates, Extractor, within_clusters
from fedrepro.methods.losses import TINY
from fedrepro.models.discriminators import Panel


class AttendedSources:
    """Sources that are weighted by how well the target clusters after each one's update, and one
    discriminator per source; written before `Method` among FADA's bases. Its fields are FADA's."""

    target: int
    target_share: float
    attention: str
    discriminator_hidden: tuple[int, ...]
    discriminator_epochs: int
    discriminator_lr: float
    discriminator_momentum: float

    # Clients. The target is who gets all the discriminators.

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        names = fl.tensors_of(client.received, "model").keys()
        message: fl.Message = {"features": client.features()}
        if "discriminators" not in client.received:
            message["network"] = {name: client.state[name] for name in names}
            return message
        if self.target_share:  # its predictor and disentangler stand where they stood
            own = (name for name in names if name.startswith(("encoder.", "projection.")))
            message["network"] = {name: client.state[name] for name in own}
        if "candidates" in client.received:
            message["scatter"] = self.scatter(client)
        return message

    @torch.no_grad()
    def scatter(self, client: fl.TrainedClient) -> Tensor:
        """W of the client's features under every candidate, k-means from the same images."""
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
        for i in sources:  # each one's discriminator, on its features and the target's
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
