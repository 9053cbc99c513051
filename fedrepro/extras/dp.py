"""Differential privacy: noise and clipping of messages, DP-SGD for a network of the server, and
ADCOL with both (its Section B.12). Opacus (extra `privacy`) does the accounting and DP-SGD."""

import copy
import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Literal

import torch
from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.base.rng import stream_seed, torch_stream
from fedrepro.methods.adcol_variants import ADCOLVariants

Noise = Literal["laplace", "gaussian"]


def noise(like: Tensor, scale: float, kind: Noise, generator: torch.Generator) -> Tensor:
    """Independent noise of mean 0 and of a tensor's shape, type and device; scale: Laplace's (its
    deviation is sqrt(2) times that), or the normal distribution's deviation. Drawn on the CPU."""
    if kind == "gaussian":
        drawn = scale * torch.randn(like.shape, generator=generator)
    else:
        u = torch.rand(like.shape, generator=generator, dtype=torch.float64) - 0.5
        drawn = -scale * u.sign() * torch.log1p(-2 * u.abs().clamp(max=0.5 - 1e-16))
    return drawn.to(like)


def clipped(update: Mapping[str, Tensor], bound: float, order: float) -> dict[str, Tensor]:
    """An update, clipped over all its tensors to a norm of at most `bound`."""
    norms = [torch.linalg.vector_norm(value, order) for value in update.values()]
    whole = float(torch.linalg.vector_norm(torch.stack(norms), order))
    factor = min(1.0, bound / max(whole, 1e-12))
    return {name: factor * value for name, value in update.items()}


@lru_cache
def noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Deviation of the noise, in units of the clipping norm, with which `steps` steps of
    Poisson-sampled Gaussian noise stay within a budget. Renyi accounting. FedReproError:
    opacus is not installed, or no noise meets the budget."""
    try:
        from opacus.accountants.utils import get_noise_multiplier
    except ImportError:
        mend = "install it with `pip install 'fedrepro[privacy]'`"
        raise fl.FedReproError(f"opacus is not installed; {mend}") from None
    try:
        given = {"sample_rate": rate, "steps": steps, "accountant": "rdp"}
        return float(get_noise_multiplier(target_epsilon=epsilon, target_delta=delta, **given))
    except ValueError as error:
        raise fl.FedReproError(f"epsilon = {epsilon} in {steps} steps: {error}; raise it") from None


def spent(noise: float, delta: float, rate: float, steps: int) -> float:
    """The epsilon of this many steps."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    return float(accountant.get_epsilon(delta))


class PrivateADCOL(ADCOLVariants):
    """A trusted server trains D with DP-SGD (`epsilon`); a curious one gets noisy representations
    (`local_epsilon`)."""

    epsilon: float | None = fl.hyper(
        None,
        "Sec. B.12, trusted server: DP-SGD on D within this budget for the whole run; None is no "
        "privacy",
        "stated",
        (2.0, 5.0, 10.0),
        later=True,
    )
    delta: float = fl.hyper(0.01, "Sec. B.12: at most 0.01", "stated", high=1, later=True)
    clip: float = fl.hyper(
        1.0, "Sec. B.12: default parameters, no number", "decided", (0.1, 10.0), later=True
    )
    local_epsilon: float | None = fl.hyper(
        None,
        "Sec. B.12, curious server: normalised representations with noise of scale 1/epsilon a "
        "value; the normalisation is not stated (to [0, 1] here, and D reads them so)",
        "stated",
        (2.0, 5.0, 10.0),
        later=True,
    )
    local_noise: Noise = fl.hyper(
        "laplace", "Sec. B.12 writes Gau, describes Laplace", "inferred", later=True
    )

    def __post_init__(self) -> None:
        mlp = self.discriminator_network == "mlp" and not self.discriminator_batch_norm
        if self.epsilon is not None and (self.keep_representations or self.two_stages or not mlp):
            why = "epsilon trains one MLP in every round, on what its clients sent"
            mend = "leave out keep_representations, two_stages and another discriminator"
            raise fl.FedReproError(f"{why}; {mend}")

    def shown(self, z: Tensor) -> Tensor:
        if self.local_epsilon is None:
            return z
        low, high = z.amin(dim=1, keepdim=True), z.amax(dim=1, keepdim=True)
        return (z - low) / (high - low).clamp(min=1e-12)  # to [0, 1]; a constant row to 0

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        message = super().upload(client)
        if self.local_epsilon is not None and message:
            z = self.shown(message["representations"])
            z = z + noise(z, 1 / self.local_epsilon, self.local_noise, client.generator)
            message["representations"] = z
        return message

    def learn(self, server: fl.Server, z: Tensor, owner: Tensor) -> None:
        """By DP-SGD with a budget: batches drawn by Poisson sampling, each sample's gradient
        clipped, noise added (Abadi et al. 2016). Every round has an equal share of the budget. Also
        logs the epsilon spent so far."""
        if self.epsilon is None:
            return super().learn(server, z, owner)
        z, owner, n = z.to(server.device), owner.to(server.device), len(z)
        rate = min(1.0, server.protocol.batch_size / n)
        steps, rounds = self.discriminator_epochs * math.ceil(1 / rate), server.protocol.rounds
        sigma = noise_multiplier(self.epsilon, self.delta, rate, steps * rounds)
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        order = torch_stream(server.seed, "server", round=server.round)
        apart = stream_seed(server.seed, "draws", round=server.round)  # not of the samples
        private = partial(
            DPOptimizer,
            noise_multiplier=sigma,
            max_grad_norm=self.clip,
            expected_batch_size=rate * n,
            generator=torch.Generator(server.device).manual_seed(apart),
        )
        chosen = ((torch.rand(n, generator=order) < rate).nonzero()[:, 0] for _ in range(steps))
        indices = (index.to(server.device) for index in chosen if len(index))  # else no gradient
        # Opacus warns about inputs without gradients.
        batches = ((z[index].requires_grad_(), owner[index]) for index in indices)
        # A copy is trained: the hooks for each sample's gradient must not be sent.
        original = server.modules["discriminator"]
        module = GradSampleModule(copy.deepcopy(original).train())
        spec = self.optimizer(server.protocol)
        server.learn("discriminator", module, spec, batches, private)
        original.load_state_dict(module.to_standard_module().state_dict())
        now = spent(sigma, self.delta, rate, steps * server.round)
        server.log["discriminator_epsilon"] = now
