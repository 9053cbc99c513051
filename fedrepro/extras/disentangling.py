"""Networks that take features apart into a domain-invariant and a domain-specific part."""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.data.transforms import normalise, slices
from fedrepro.models.base import FLModel, Output, WrappedModel

IMAGES = 256  # in a batch, when extractors are compared
STEPS = 20  # of k-means


class Disentangled(Output):
    """features z, logits of z's domain-invariant part, and what else training reads.

    guessed, confused (b, K): the class identifier's logits of the domain-specific part; the first
    trains the identifier alone, the second everything else. joint, marginal (b,): the estimator's
    values of the two parts of one image and of different ones. rebuilt (b, d): z from both parts.
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


class DisentanglingModel(WrappedModel):
    """A network whose predictor reads the domain-invariant part of z, with what tells the parts
    apart. against: weight of the two parts' share in lowering the estimate of their information."""

    def __init__(self, module: FLModel, against: float, hidden: int) -> None:
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


class Extractor(nn.Module):
    """Encoder and projection alone; BatchNorm has no statistics but the batch's."""

    def __init__(self, module: FLModel) -> None:
        super().__init__()
        self.encoder, self.projection = module.encoder, module.projection
        for layer in self.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.projection(self.encoder(x))
        return z


class Candidates(nn.Module):
    """Extractors side by side: uint8 images (n, 3, H, W) -> features (extractors, n, d)."""

    def __init__(self, members: Sequence[Extractor], how: str) -> None:
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
    """Donsker and Varadhan's lower bound of a mutual information: E T - log E' exp T.

    joint (b,): T of pairs as they belong together; marginal (b,): of pairs that do not. A scalar in
    nats, in float32 at least; a poor T gives less than 0. Belghazi et al., MINE (2018).
    """
    wide = torch.promote_types(joint.dtype, torch.float32)
    spread = torch.logsumexp(marginal.to(wide), dim=0) - math.log(len(marginal))
    return joint.to(wide).mean() - spread


def opposed(x: Tensor, by: float = 1.0) -> Tensor:
    """x, whose gradient is multiplied by -`by`: what lies before it works against what lies behind.
    Ganin and Lempitsky (2015)."""
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
