"""ADCOL with differential privacy (its Section B.12)."""

from dataclasses import dataclass

from torch import Tensor

import fedrepro.methods.api as fl
from fedrepro.extras.dp import Noise, fit, into_unit_range, noise
from fedrepro.methods.adcol_variants import ADCOLVariants


@dataclass(frozen=True)
class PrivateADCOL(ADCOLVariants):
    """A trusted server trains D with DP-SGD (`epsilon`); a curious one gets noisy representations
    (`local_epsilon`)."""

    epsilon: float | None = fl.hyper(
        None,
        "Sec. B.12, trusted server: DP-SGD on D within this budget for the whole run; None is no "
        "privacy",
        "stated",
        (2.0, 5.0, 10.0),
        low=0,
        later=True,
    )
    delta: float = fl.hyper(0.01, "Sec. B.12: at most 0.01", "stated", low=0, high=1, later=True)
    clip: float = fl.hyper(
        1.0, "Sec. B.12: default parameters, no number", "decided", (0.1, 10.0), low=0, later=True
    )
    local_epsilon: float | None = fl.hyper(
        None,
        "Sec. B.12, curious server: normalised representations with noise of scale 1/epsilon a "
        "value; the normalisation is not stated (to [0, 1] here, and D reads them so)",
        "stated",
        (2.0, 5.0, 10.0),
        low=0,
        later=True,
    )
    local_noise: Noise = fl.hyper(
        "laplace", "Sec. B.12 writes Gau, describes Laplace", "inferred", ("gaussian",), later=True
    )

    def shown(self, z: Tensor) -> Tensor:
        return z if self.local_epsilon is None else into_unit_range(z)

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        message = super().upload(client)
        if self.local_epsilon is not None and message:
            z = self.shown(fl.tensor_of(message, "representations"))
            z = z + noise(z, 1 / self.local_epsilon, self.local_noise, client.generator)
            message["representations"] = z
        return message

    def learn(self, server: fl.Server, z: Tensor, owner: Tensor) -> None:
        if self.epsilon is None:
            return super().learn(server, z, owner)
        budget = {"epsilon": self.epsilon, "delta": self.delta, "clip": self.clip}
        epochs, optimizer = self.discriminator_epochs, self.optimizer(server.protocol)
        fit(server, "discriminator", z, owner, epochs=epochs, optimizer=optimizer, **budget)
