"""Federated adversarial domain adaptation."""

from typing import Literal

import torch.nn.functional as F

import fedrepro.methods.api as fl
from fedrepro.extras import fada_parts as parts

SOURCE, TARGET = 0, 1  # a discriminator's classes, in the order of `fit`


class FADA(parts.AttendedSources, fl.Method):
    """Labelled sources teach one unlabelled target: an extractor whose features do not tell source
    from target, a disentangler, and an attention to the sources that help the target cluster.

    A source minimises CE of the predictor on the domain-invariant part of its features; the term
    that fools its discriminator; KL from uniform of a class identifier on the domain-specific part;
    the mutual information of the parts; and their squared error in rebuilding the features. The
    target, whose labels reach no loss, trains its extractor to fool all discriminators, in mean.
    The server trains one discriminator per source. The new network is the sources' mean, weighted
    by how much less the target's features scatter within k-means clusters after a source's update,
    plus the target's own update. Each client is tested with it on its own domain.

    Peng et al. 2020, whose text was not at hand, after ADCOL App. C, secondary sources and the
    authors' code of an earlier method (DAL). Departures: all moves by rounds, not by batches, so
    discriminators and attention are a round late, and round 1 weighs all alike; sources start each
    round from the common network; only the disentangler's domain-invariant half travels; the
    players of a game step together, on one batch, through reversed gradients; softplus(I) stands
    for I, which may be below 0; the target trains no disentangler, whose terms would need labels.
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
        0,
        "ADCOL App. C: each client in turn, its labels unused; -1 is the last",
        "stated",
        low=None,
    )
    alignment: float = fl.hyper(
        1.0, "not stated", "decided", (0.01, 0.1), code="DAL code has 0.01, under Adam"
    )
    confusion: float = fl.hyper(1.0, "1 in DAL code", "code", (0.1, 0.0), text="not stated")
    information: float = fl.hyper(
        1e-4, "DAL code; not stated. The estimator itself has weight 1", "code", (0.01, 0.0)
    )
    reconstruction: float = fl.hyper(
        0.01, "not stated; 0.01 in DAL code, of the mean over features", "code", (1.0, 0.0)
    )
    estimator_hidden: int = fl.hyper(512, "512 in DAL code", "code", low=1, text="not stated")
    discriminator_hidden: tuple[int, ...] = fl.hyper(
        (256,), "not stated; 256 in DAL code, leaky ReLU there, ReLU here", "code", ((512, 512),)
    )
    discriminator_epochs: int = fl.hyper(1, "not stated; as ADCOL's", "decided", (3,), low=1)
    discriminator_lr: float = fl.hyper(
        0.01, "not stated; as ADCOL's", "decided", (0.001,), low=1e-6
    )
    discriminator_momentum: float = fl.hyper(
        0.9, "not stated; as ADCOL's", "decided", (0.0,), high=0.999
    )
    attention: Literal["relative", "absolute", "equal"] = fl.hyper(
        "relative",
        "Peng et al.: softmax of W - W_i, which grow until one source has all the weight; divided "
        "by W here, of squared distances (not stated); equal leaves it out",
        "decided",
    )
    target_share: float = fl.hyper(
        1.0, "not stated; 0 is a network of the sources alone", "decided", (0.0,), high=1
    )
    bn_policy: Literal["recompute", "average"] = fl.hyper(
        "recompute", "not stated; average takes the sources', by attention", "decided"
    )

    def network(self, module: fl.FLModel) -> fl.FLModel:
        return parts.DisentanglingModel(module, self.information, self.estimator_hidden)

    def shares(self, tensor: fl.TensorInfo) -> bool:
        return tensor.part != "own" or tensor.name.startswith("invariant.")

    def travels(self, tensor: fl.TensorInfo) -> bool:
        return False  # `upload` sends the tensors that `server_step` weights per client

    def broadcast(self, tensor: fl.TensorInfo) -> bool:
        return super().travels(tensor)

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        assert isinstance(out, parts.Disentangled)
        if "discriminators" in received:  # only the target gets them all
            guess = received["discriminators"](out.features)
            return {"fool": self.alignment * parts.cross_entropy_to(SOURCE, guess)}
        guess = received["discriminator"](out.features)
        error = (out.rebuilt - out.features.detach()).square().mean()
        terms = {
            "ce": fl.cross_entropy(out.logits, batch.y),
            "fool": self.alignment * parts.cross_entropy_to(TARGET, guess),
            "identify": fl.cross_entropy(out.guessed, batch.y),
            "confuse": self.confusion * fl.losses.kl_from_uniform(out.confused),
            "rebuild": self.reconstruction * error,
        }
        if self.information:
            bound = parts.information_bound(out.joint, out.marginal)
            terms["information"] = parts.opposed(F.softplus(bound))
        return terms
