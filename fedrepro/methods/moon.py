from torch import Tensor

import fedrepro.methods.api as fl


class MOON(fl.Method):
    """FedAvg that pulls a client's features towards those of the received network, and away from
    those of its own previous network.

    Loss CE + mu times the contrast of the cosines with the features of the received network and of
    the client's network at the end of its last round; Li et al. 2021, Eq. 3 and Alg. 1. The
    previous network stays at its client, so it is no traffic. In the first round it is the received
    one. Then the term is mu log 2 and has no gradient (the authors' code has no term there), unless
    only one of the two is in training mode.

    z is the feature of the protocol's network (the authors add a projection head of 256 values).
    Two apparent mistakes of public code are left out: in RethinkFL code the previous networks of
    the first round are random, and in FedPall code the previous network is the last one of any
    client.
    """

    name = "MOON"
    reference = "li2021moon"
    equations = (
        r"\mathrm{CE} - \mu \log \frac{e^{s(z, z_g)/\tau}}{e^{s(z, z_g)/\tau} + e^{s(z, "
        r"z_p)/\tau}}",
        r"z_g, z_p:\ \text{features under the received and the client's previous network}",
    )

    mu: float = fl.hyper(
        1.0,
        "default of the authors' code, whose example has 5; FedPall code 1; RethinkFL code, which "
        "I2PFL and FedAPC follow, 5; MPFT Sec. C.2 0.001",
        "code",
        (5.0, 0.001, 0.1, 10.0),
    )
    temperature: float = fl.hyper(
        0.5, "authors' and RethinkFL code; FedPall code and MPFT: 1", "code", (1.0,), low=0.001
    )
    references_in_training_mode: bool = fl.hyper(
        False, "authors' code; RethinkFL code: both references in training mode", "code"
    )
    previous_in_training_mode: bool | None = fl.hyper(
        None,
        "the previous network alone; None: as the received one. FedPall code: in training mode "
        "beside a received one in evaluation mode, so that the first round has a contrast",
        "code",
        (True, False),
        later=True,
    )
    second_pass: bool = fl.hyper(
        False, "RethinkFL code: twice; BatchNorm's statistics see it", "code", later=True
    )
    bn_policy: fl.BNPolicy = fl.hyper("average", "authors' code", "code")

    def network(self, module: fl.FLModel) -> fl.FLModel:
        return fl.seen_twice(module) if self.second_pass else module

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        previous = received["memory"]
        # Tensors that are not sent, such as local BatchNorm, are the client's own in both.
        shared = {**previous, **received["model"]}
        out = model(batch.x)
        mode, other = self.references_in_training_mode, self.previous_in_training_mode
        ahead = model.run(shared, batch.x, training=mode).features
        behind = model.run(previous, batch.x, training=mode if other is None else other).features
        contrast = fl.losses.model_contrast(out.features, ahead, behind, self.temperature)
        return {"ce": fl.cross_entropy(out.logits, batch.y), "contrast": self.mu * contrast}

    def first_memory(self, server: fl.Server) -> dict[str, Tensor]:
        return dict(server.model)

    def remember(self, client: fl.TrainedClient) -> dict[str, Tensor]:
        return dict(client.state)
