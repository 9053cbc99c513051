"""FADA's parts: networks that split features into a domain-invariant and a domain-specific part;
what travels; and what its server does."""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedrepro.methods.api as fl
from fedrepro.data.transforms import normalise, slices
from fedrepro.models import norms
from fedrepro.models.networks import Panel

IMAGES = 256  # in a batch, when extractors are compared
STEPS = 20  # of k-means


class Disentangled(fl.Output):
    """Features z, logits of z's domain-invariant part, and further outputs for training.

    guessed, confused (b, K): the class identifier's logits of the domain-specific part; the first
    trains only the identifier, the second everything else. joint, marginal (b,): the estimator's
    values for the parts of one image and of different images. rebuilt (b, d): z from both parts.
    """

    guessed: Tensor
    confused: Tensor
    joint: Tensor
    marginal: Tensor
    rebuilt: Tensor


class Estimator(nn.Module):
    """T of MINE: two features (b, d) each -> (b,)."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(size, hidden), nn.Linear(size, hidden)
        self.last = nn.Linear(hidden, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        value: Tensor = self.last(F.leaky_relu(self.first(a) + self.second(b)))
        return value[:, 0]


class DisentanglingModel(fl.WrappedModel):
    """A network whose predictor reads the domain-invariant part of z, with the networks that
    separate the parts. against: weight with which the two parts lower the estimate of their
    information."""

    def __init__(self, module: fl.FLModel, against: float, hidden: int) -> None:
        super().__init__(module)
        self.against = against
        size, classes = module.feature_size, self.classes()
        self.invariant = nn.Sequential(nn.Linear(size, size), nn.ReLU())
        self.specific = nn.Sequential(nn.Linear(size, size), nn.ReLU())
        self.identifier = nn.Linear(size, classes)
        self.estimator = Estimator(size, hidden)
        self.reconstructor = nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Disentangled:
        z: Tensor = self.projection(self.encoder(x))
        out = Disentangled(z, self.predictor(self.invariant(z)))
        if not self.training:
            return out
        specific = self.specific(z)
        weight, bias = self.identifier.weight, self.identifier.bias
        out.guessed = F.linear(specific.detach(), weight, bias)
        out.confused = F.linear(specific, weight.detach(), bias.detach())
        parts = self.invariant(z.detach()), self.specific(z.detach())
        out.rebuilt = self.reconstructor(torch.cat(parts, dim=1))
        one, other = (opposed(part, self.against) for part in parts)
        out.joint = self.estimator(one, other)
        out.marginal = self.estimator(one, other.roll(1, 0))
        return out


def extractor(module: fl.FLModel) -> nn.Module:
    """Only encoder and projection; BatchNorm uses only the batch's statistics."""
    parts = OrderedDict(encoder=module.encoder, projection=module.projection)
    for layer in norms(module):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    return nn.Sequential(parts)


class Candidates(nn.Module):
    """Several extractors: uint8 images (n, 3, H, W) -> features (extractors, n, d)."""

    def __init__(self, members: Sequence[nn.Module], how: str) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.how = how

    def forward(self, images: Tensor) -> Tensor:
        dtype = next(self.parameters()).dtype
        batches = [normalise(images[part], self.how, dtype) for part in slices(len(images), IMAGES)]
        return torch.stack([torch.cat([one(x) for x in batches]) for one in self.members])

    def hold(self, networks: Sequence[Mapping[str, Tensor]]) -> None:
        """Take the extractors' values from networks, one each."""
        for member, tensors in zip(self.members, networks, strict=True):
            member.load_state_dict({name: tensors[name] for name in member.state_dict()})


def information_bound(joint: Tensor, marginal: Tensor) -> Tensor:
    """Donsker and Varadhan's lower bound of a mutual information in nats: E T - log E' exp T. joint
    (b,): T of pairs that belong together; marginal (b,): of others. A poor T gives less than 0.
    Belghazi et al., MINE (2018)."""
    spread = torch.logsumexp(fl.losses.wide(marginal), dim=0) - math.log(len(marginal))
    return fl.losses.wide(joint).mean() - spread


def opposed(x: Tensor, by: float = 1.0) -> Tensor:
    """x with its gradient multiplied by -`by`: the layers before it are trained against those after
    it. Ganin and Lempitsky (2015)."""
    return x.detach() + by * (x.detach() - x)


def within_clusters(z: Tensor, clusters: int) -> Tensor:
    """Sum over clusters r of sum_{i,j in r} ||z_i - z_j||^2 / (2 n_r), a float64 scalar: the lower,
    the better the features (n, d) cluster. k-means that starts from the first rows."""
    z = z.double()
    centres = z[:clusters]
    for _ in range(STEPS):
        nearest = torch.cdist(z, centres).argmin(dim=1)
        own = F.one_hot(nearest, len(centres)).to(z)
        counts = own.sum(dim=0)[:, None]
        centres = torch.where(counts > 0, own.T @ z / counts.clamp(min=1), centres)
    return (z - centres[nearest]).square().sum()


def cross_entropy_to(domain: int, logits: Tensor) -> Tensor:
    """Cross-entropy of a discriminator's logits (b, 2) to a domain that is not the features' own:
    it is low once the discriminator is fooled."""
    return -F.log_softmax(logits, dim=1)[:, domain].mean()


class AttendedSources:
    """Sources that are weighted by how well the target clusters after each one's update, and one
    discriminator per source; written before `Method` among FADA's bases. Its fields are FADA's.
    At a client: the target is who gets all the discriminators."""

    target: int
    target_share: float
    attention: str
    discriminator_hidden: tuple[int, ...]
    discriminator_epochs: int
    discriminator_lr: float
    discriminator_momentum: float

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        received, names = client.received, list(client.received["model"])
        message: fl.Message = {"features": client.features()}
        if "discriminators" in received:  # its predictor and disentangler stand where they stood
            names = [name for name in names if name.startswith(("encoder.", "projection."))]
        if "discriminators" not in received or self.target_share:
            message["network"] = {name: client.state[name] for name in names}
        if "candidates" in received:
            message["scatter"] = self.scatter(client)
        return message

    @torch.no_grad()
    def scatter(self, client: fl.TrainedClient) -> Tensor:
        """W of the client's features under every candidate, k-means from the same images."""
        order = torch.randperm(len(client.inputs), generator=client.generator)
        images = client.inputs[order.to(client.inputs.device)]
        features = client.received["candidates"](images)
        return torch.stack([within_clusters(z, client.classes) for z in features])

    def sources(self, server: fl.Server) -> list[int]:
        target = range(server.clients)[self.target]
        return [client for client in range(server.clients) if client != target]

    def init_server(self, server: fl.Server) -> None:
        protocol, clients = server.protocol, server.clients
        if not -clients <= self.target < clients or clients < 2:
            choice = f"choose one of 0 to {clients - 1}, with at least two clients"
            raise fl.FedReproError(f"FADA target = {self.target}: {choice}")
        if protocol.participation < 1:
            raise fl.FedReproError("FADA needs its target in every round; set participation to 1")
        sizes = server.feature_size, 2, self.discriminator_hidden
        for source in self.sources(server):
            server.add_module(f"discriminator{source}", fl.discriminator(*sizes))
        server.add_module("discriminators", Panel(server.modules.values()))
        members = [extractor(server.new_network()) for _ in range(clients)]
        server.add_module("candidates", Candidates(members, protocol.data.normalise))

    def download(self, server: fl.Server, client: int) -> fl.Message:
        if client in self.sources(server):
            return {"discriminator": server.network(f"discriminator{client}")}
        message: fl.Message = {"discriminators": server.network("discriminators")}
        if server.round > 1 and self.attention != "equal":
            message["candidates"] = server.network("candidates")
        return message

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        messages = {upload.client: upload.message for upload in uploads}
        sources = self.sources(server)
        (target,) = messages.keys() - set(sources)
        networks = [messages[i]["network"] for i in sources]
        before = {name: server.model[name] for name in networks[0]}
        weights = self.attended(messages[target], len(sources)).to(server.device, server.dtype)
        for name in before:
            stack = torch.stack([network[name] for network in networks])
            server.model[name] = torch.tensordot(weights, stack, dims=1)
        if self.target_share:
            for name, value in messages[target]["network"].items():
                if not server.layout[name].is_buffer:  # a variance must stay positive
                    update = self.target_share * (value - before[name])
                    server.model[name] = server.model[name] + update
        server.log |= {f"attention{i}": float(w) for i, w in zip(sources, weights, strict=True)}
        z = {i: message["features"] for i, message in messages.items()}
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
        before, *after = message["scatter"]
        gain = before - torch.stack(after)
        if self.attention == "relative":
            gain = gain / before.clamp(min=fl.losses.TINY)
        return torch.softmax(gain, dim=0)
