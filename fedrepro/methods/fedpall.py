"""Prototype-based adversarial and collaborative learning."""

import torch
from torch import Tensor

import fedrepro.methods.api as fl

TRIED = (0.0, 0.2, 0.3, 0.5, 0.7, 1.0)  # weights of the two terms


class FedPall(fl.PrototypeMessages, fl.Method):
    """Encoders stay at their clients; features, masked and mixed with prototypes, are sent.

    Clients minimise CE + mu KL + delta contrast (Eq. 8): features that the received amplifier
    cannot tell apart by client (Eq. 6), close to the global prototype of their class (Eq. 7). The
    server trains a global classifier and the amplifier on the uploads (Eqs. 12, 13) and combines
    the prototypes (Eq. 4). At the start of a round the global classifier's linear layers replace
    the client's own. At its end a pass in training mode gives the features, which are mixed with
    the last round's prototypes (the code: this round's). The trained networks are tested. The
    equations are the code's, which is trained by default; ``reading`` "paper" has the text's.
    """

    name = "FedPall"
    reference = "zhang2025fedpall"
    averages = False
    tells, sends_all, decay = "counts", True, 0.0
    equations = (
        r"\mathrm{CE} + \mu \, \mathrm{KL}\big(U \,\Vert\, A(z)\big) - \delta \log \frac{e^{\cos"
        r"(z,\, G^y) / \tau}}{\sum_k e^{(z/|z|) \cdot G^k / \tau}}",
        r"r = m \odot \big(\alpha z + (1 - \alpha) G^y\big)",
        r"G^k = \sum_i n_i^k \, c_i^k/|c_i^k| \Big/ \sum_i n_i^k",
    )

    mu: float = fl.hyper(0.1, "Sec. 5.1; Digits .7, code .3; 0: Fig. 3", "stated", TRIED)
    delta: float = fl.hyper(0.1, "Sec. 5.1; Digits .3, code .7; 0: Fig. 3", "stated", TRIED)
    temperature: float = fl.hyper(3.0, "code", "code", low=0.001, text="Eq. 7 names no value")
    mix_low: float = fl.hyper(0.8, "code", "code", high=1, text="Eq. 9 names no value")
    mix_high: float = fl.hyper(1.0, "code", "code", high=1, text="Eq. 9 names no value")
    keep: float = fl.hyper(0.9, "code", "code", high=1, text="Eq. 10 names no value")
    global_classifier: bool = fl.hyper(True, "Sec. 3.2.4; Fig. 6: the client's", "stated")
    closing_pass: bool = fl.hyper(True, "code; its mode is the features' too", "code")
    server_epochs: int = fl.hyper(3, "code: Office-10, PACS; Digits 1", "code", (1,), low=1)
    server_lr: float = fl.hyper(0.01, "Sec. 5.1, one value for all", "stated", low=1e-6)
    server_momentum: float = fl.hyper(0.9, "code, at the server only", "code", high=0.999)
    server_weight_decay: float = fl.hyper(1e-5, "code, at the server only", "code")
    bn_policy: fl.BNPolicy = fl.hyper("local", "nothing is averaged", "inferred", ())

    def broadcast(self, tensor: fl.TensorInfo) -> bool:
        return self.global_classifier and tensor.part == "predictor" and not tensor.is_bn

    def evaluated_models(self, layout: fl.Layout) -> tuple[str, ...]:
        return ("trained",)

    def phases(self, protocol: fl.Protocol) -> tuple[fl.Phase, ...]:
        return (*super().phases(protocol), *([fl.CLOSING] if self.closing_pass else []))

    def client_loss(self, model: fl.LocalModel, batch: fl.Batch, received: fl.Message) -> fl.Terms:
        out = model(batch.x)
        terms = {"ce": fl.cross_entropy(out.logits, batch.y)}
        if self.mu:
            guess = received["amplifier"](out.features)
            terms["kl"] = self.mu * fl.losses.kl_from_uniform(guess)
        if self.delta:
            known = *fl.received_table(received), self.temperature
            contrast = fl.losses.fedpall_contrast(out.features, batch.y, *known)
            terms["contrast"] = self.delta * contrast
        return terms

    def upload(self, client: fl.TrainedClient) -> fl.Message:
        z = client.features(self.closing_pass, client.augmentation)
        sent = {"features": self.disguised(z, client), "labels": client.labels}
        return {**sent, **self.means_of(client, z)}

    def disguised(self, z: Tensor, client: fl.TrainedClient) -> Tensor:
        """The sent form of features (n, d)."""
        known = client.labels, client.received["prototypes"], client.generator
        return fl.prototypes.fedpall_mix(z, *known, self.mix_low, self.mix_high, self.keep)

    def init_server(self, server: fl.Server) -> None:
        super().init_server(server)
        server.add_module("classifier", server.new_network().predictor)
        if self.mu:
            amplifier = fl.discriminator(server.feature_size, server.clients, batch_norm=True)
            server.add_module("amplifier", amplifier)
        server.publish("classifier", "predictor", self.broadcast)

    def download(self, server: fl.Server, client: int) -> fl.Message:
        message = super().download(server, client)
        if self.mu:
            message["amplifier"] = server.network("amplifier", training=True)  # as in the code
        return message

    def server_step(self, server: fl.Server, uploads: fl.Uploads) -> None:
        super().server_step(server, uploads)
        z = [upload.message["features"] for upload in uploads]
        labels = [upload.message["labels"] for upload in uploads]
        owner = [torch.full_like(y, u.client) for y, u in zip(labels, uploads, strict=True)]
        targets = {"classifier": labels, "amplifier": owner}
        lr, momentum, decay = self.server_lr, self.server_momentum, self.server_weight_decay
        optimizer = fl.OptimizerSpec(lr=lr, momentum=momentum, weight_decay=decay)
        for name in server.modules:
            if name != "classifier" or self.global_classifier:
                data = torch.cat(z).to(server.dtype), torch.cat(targets[name])
                server.fit(name, *data, epochs=self.server_epochs, optimizer=optimizer)
        server.publish("classifier", "predictor", self.broadcast)

    def joined(self, stack: Tensor, told: Tensor) -> tuple[Tensor, Tensor]:
        return fl.prototypes.unit_mean(stack, told)
