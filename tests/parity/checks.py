"""What the kinds of check run, and how far a case is from what is expected of it."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrepro.base.protocol import Augmentation
from fedrepro.engine.base import Job, Trained
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, LocalModel, Method, TrainedClient, Upload
from fedrepro.methods.fedproto_variants import NearestPrototype
from fedrepro.methods.prototypes import PrototypeMessages, class_means
from fedrepro.methods.rucr import TwoEntrances
from fedrepro.methods.server import Message
from fedrepro.models import FLModel, Output, ShiftedModel

from . import (
    Case,
    adapter,
    bare,
    empty,
    far,
    in_given_order,
    judge,
    loaded,
    network,
    received,
    samples,
    server_of,
    start,
    tensors,
)

Found = dict[str, Any]


def difference(case: Case) -> float:
    """The largest difference of a case, relative to the expected value where that is above 1."""
    return far(CHECKS[case.check](case, case.inputs), case.expected)


class Given:
    """A network whose features and logits are given; another one's are a message, `w`."""

    def __init__(self, features: Tensor, logits: Tensor, params: Any = None) -> None:
        self.out, self.params = Output(features, logits), params or {}

    def __call__(self, x: Tensor) -> Output:
        return self.out

    def run(self, tensors: Mapping[str, Tensor], x: Tensor, training: bool = False) -> Output:
        return Output(tensors["w"], tensors["w"])


def partners(inputs: Mapping[str, Any]) -> Tensor:
    """I2PFL's draws (n, 2): the share of the sample, and a number that draws the given partner."""
    labels, rows = inputs["labels"], []
    for own, j in zip(labels, inputs["partner"], strict=True):
        others = sorted((y, i) for i, y in enumerate(labels) if y != own)
        place = others.index((labels[j], j)) + 0.5 if others else 0.0
        rows.append(place / max(1, len(others)))
    return torch.stack([tensors(inputs["lam"]), tensors(rows)], dim=1)


def client_loss(case: Case, inputs: Found, loss: str = "client_loss") -> Found:
    logits = tensors(inputs["logits"]).requires_grad_()
    z = tensors(inputs["features"]).requires_grad_() if "features" in inputs else logits
    method, message = case.built, received(inputs)
    if "round" in inputs:
        weights = method.shares_of_terms(inputs["round"], method.horizon)
        message["schedule"] = tensors(weights)
    if "teacher_logits" in inputs:
        message |= {"memory": {}, "model": {"w": tensors(inputs["teacher_logits"])}}
    draws = partners(inputs) if "partner" in inputs else None
    batch = Batch(z.detach(), torch.tensor(inputs["labels"]), draws)
    terms = getattr(method, loss)(Given(z, logits), batch, message)
    total = terms[inputs["term"]] if "term" in inputs else sum(terms.values())
    by_z, by_logits = torch.autograd.grad(total, [z, logits], allow_unused=True)
    return {
        "terms": terms, "loss": total, "value": total,
        "grad_features": by_z, "grad_logits": by_logits,
    }  # fmt: skip


def proximal(case: Case, inputs: Found) -> Found:
    params = {name: v.requires_grad_() for name, v in tensors(inputs["parameters"]).items()}
    logits = torch.zeros(1, 2, dtype=torch.float64)
    batch = Batch(logits, torch.tensor([0]))
    message: Message = {"model": tensors(inputs["received"])}
    value = case.built.client_loss(Given(logits, logits, params), batch, message)["prox"]
    grads = torch.autograd.grad(value, list(params.values()))
    return {"value": value, "grad": dict(zip(params, grads, strict=True))}


def parameter_gradient(case: Case, inputs: Found) -> Found:
    module, own = network(inputs), samples(inputs)
    params = dict(module.named_parameters())
    message: Message = {"model": tensors(inputs["received"])}
    message |= {"memory": tensors(inputs.get("moved", {}))}
    loss = getattr(case.built, inputs.get("loss", "client_loss"))
    model = LocalModel(module, params, Given.run)
    total = sum(loss(model, Batch(*vars(own).values()), message).values())
    grads = torch.autograd.grad(total, list(params.values()))
    return {"loss": total, "grad": dict(zip(params, grads, strict=True))}


def dbe_step(case: Case, inputs: Found) -> Found:
    z, head = tensors(inputs["features"]).requires_grad_(), inputs["head"]
    predictor = loaded(nn.Linear(*np.shape(head["weight"])[::-1]), head)
    plain = FLModel(nn.Identity(), nn.Identity(), predictor, z.shape[1])
    module = ShiftedModel(plain, case.built.momentum)
    kept = {name: inputs[name] for name in ("client_mean", "running_mean", "started")}
    kept |= {f"predictor.{name}": value for name, value in head.items()}
    loaded(module, kept)
    message: Message = {"common_mean": tensors(inputs["common_mean"])}
    batch = Batch(z, torch.tensor(inputs["labels"]))
    terms = case.built.client_loss(module, batch, message)
    leaves = {
        "features": z, "client_mean": module.client_mean,
        "head_weight": predictor.weight, "head_bias": predictor.bias,
    }  # fmt: skip
    grads = torch.autograd.grad(sum(terms.values()), list(leaves.values()))
    found = {f"grad_{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {**found, "terms": terms, "running_mean": module.running_mean}


def rectify(case: Case, inputs: Found) -> Found:
    method, module, own = case.built, network(inputs), samples(inputs)
    wrapped, seen = TwoEntrances(module), []
    params = {n: v for n, v in module.named_parameters() if n.startswith("predictor")}

    def run(values: Mapping[str, Tensor], x: Tensor, training: bool = False) -> Output:
        if x is own.images:  # such inputs would count as features
            return torch.func.functional_call(module, values, (x,))
        seen.append(x)
        return torch.func.functional_call(wrapped, values, (x,))

    prototypes, k = tensors(inputs["prototypes"]), torch.tensor(inputs["mixture_classes"])
    share = (tensors(inputs["lam"]) - method.lam_low) / (method.lam_high - method.lam_low)
    draws = torch.stack([(k + 0.5) / len(prototypes), share], dim=1)
    message: Message = {"model": tensors(inputs["network"]), "prototypes": prototypes}
    message |= {"present": prototypes.any(dim=1), "schedule": torch.tensor(1.0).double()}
    model = SimpleNamespace(params=params, run=run)
    loss = method.rectify(model, Batch(own.images, own.labels, draws), message)["rectify"]
    grads = torch.autograd.grad(loss, list(params.values()))
    return {"mixtures": seen[0], "loss": loss, "grad": dict(zip(params, grads, strict=True))}


def tell(method: Method, client: int, means: Tensor, counts: Tensor) -> Upload:
    """A client's class means as its method sends them."""
    if isinstance(method, PrototypeMessages) and not method.sends_all:
        told = counts if method.tells == "counts" else counts > 0
        return Upload(client, 1, {"prototypes": means[counts > 0], method.tells: told})
    idle = empty(2, means.shape[1])  # FedPall trains on features too
    rest: Message = {"features": idle.images, "labels": idle.labels}
    return Upload(client, 1, {"prototypes": means, "counts": counts, **rest})


def server_prototypes(case: Case, inputs: Found) -> Found:
    means, counts = tensors(inputs["prototypes"]), tensors(inputs["counts"])
    run = server_of(case, *means.shape)
    if "previous" in inputs:
        before = {"prototypes": inputs["previous"], "present": inputs["previous_present"]}
        run.server.tensors |= tensors(before)
    told = [tell(run.method, i, *sent) for i, sent in enumerate(zip(means, counts, strict=True))]
    run.method.server_step(run.server, told)
    found = run.server.tensors
    return {**found, "directions": F.normalize(found["prototypes"], dim=1)}


def cluster_prototypes(case: Case, inputs: Found) -> Found:
    found, classes = server_prototypes(case, inputs), len(inputs["counts"][0])
    parts = (found[kind].chunk(classes) for kind in ("prototypes", "present"))
    rows = [table[there] for table, there in zip(*parts, strict=True)]
    return {"clusters": [len(part) for part in rows], "prototypes_by_class": rows}


def server_average(case: Case, inputs: Found) -> Found:
    """The server's step and the clients' next networks, after training that is given."""
    given = tensors({str(i): values for i, values in enumerate(inputs["networks"])})
    module = network({**inputs, "network": inputs["networks"][0]})
    run = start(case, module, [empty(n, 4) for n in inputs["counts"]])

    def train(method: Method, jobs: list[Job]) -> Iterator[tuple[int, Trained]]:
        yield from ((i, Trained(given[str(i)], {}, {})) for i in range(len(jobs)))

    run.engine.train = train  # type: ignore[method-assign]
    run.one_round()
    personal = [client.personal(run.server.model) for client in run.clients]
    return {"network": run.server.model, "clients": personal}


def server_training(case: Case, inputs: Found) -> Found:
    if case.method == "MPFT":
        return _adapter_training(case, inputs)
    sent = [tensors(uploads) for uploads in inputs["uploads"]]
    size, width = sent[0]["features"].shape
    module = bare({"predictor": inputs.get("classifier_layers", [["linear", width, 2]])})
    if "classifier" in inputs:
        loaded(module.predictor, inputs["classifier"])
    optimizer = {key: inputs[key] for key in ("lr", "momentum", "weight_decay")}
    everyone = [empty(size, width)] * len(sent[0]["owner"].unique())  # all uploads are one batch
    run = start(case, module.double(), everyone, optimizer=optimizer)
    kind = "amplifier" if "amplifier" in inputs else "discriminator"
    run.server.modules[kind] = judge(inputs[kind])
    for run.server.round, told in enumerate(sent, 1):
        owners = range(len(everyone))
        run.method.server_step(run.server, [_of_owner(run, told, client) for client in owners])
    return {name: owned.state_dict() for name, owned in run.server.modules.items()}


def _of_owner(run: Training, sent: Found, client: int) -> Upload:
    """A client's part of the features; class means, which are not asked about, are zero."""
    mine = sent["owner"] == client
    z, classes = sent["features"][mine], run.server.classes
    message: Message = {"features": z, "representations": z}
    message |= {"labels": sent["labels"][mine]} if "labels" in sent else {}
    message |= {"prototypes": z.new_zeros(classes, z.shape[1]), "counts": z.new_zeros(classes)}
    return Upload(client, len(z), message)


def _adapter_training(case: Case, inputs: Found) -> Found:
    module, labels = adapter(inputs["network"]), torch.tensor(inputs["labels"])
    order = torch.arange(len(labels))
    losses = case.built.fit(module, tensors(inputs["prototypes"]), labels, order)
    epochs = len(losses) * inputs["batch"] / len(labels)
    return {"network": module.state_dict(), "losses": losses, "epochs": epochs}


def forward(case: Case, inputs: Found) -> Found:
    out = adapter(inputs["network"])(tensors(inputs["inputs"]))
    return {"features": out.features, "logits": out.logits}


def schedule(case: Case, inputs: Found) -> Found:
    pairs = [case.built.shares_of_terms(t, inputs["of"]) for t in inputs["rounds"]]
    return {"contrast": [pair[0] for pair in pairs], "ce": [pair[1] for pair in pairs]}


def client_of(inputs: Mapping[str, Any]) -> TrainedClient:
    """A client after training whose features, or views of them, are given."""
    given = inputs.get("views", [inputs.get("features", inputs.get("inputs"))])
    views = itertools.cycle(tensors(given))
    classes = inputs.get("classes", len(inputs.get("prototypes", ())))
    return TrainedClient(
        index=0, classes=classes, labels=torch.tensor(inputs["labels"]), inputs=tensors(given[0]),
        state={"w": torch.zeros((), dtype=torch.float64)}, generator=torch.Generator(),
        received=received(inputs), augmentation=Augmentation(), round=1,
        features=lambda *mode: next(views), logits=lambda *mode: next(views),
    )  # fmt: skip


def upload(case: Case, inputs: Found) -> Found:
    method, client = case.built, client_of(inputs)
    if "mask" in inputs:
        drawn = (inputs["mixing_weight"] - method.mix_low) / (method.mix_high - method.mix_low)
        places = (-tensors(inputs["mask"])).argsort(stable=True).argsort()
        with (
            patch.object(torch, "rand", lambda *_, **__: torch.tensor(drawn)),
            patch.object(torch, "randperm", lambda *_, **__: places),
        ):
            return method.upload(client)
    message = method.upload(client)
    if not isinstance(method, PrototypeMessages):
        rows = message["prototypes"].split(message["counts"].tolist())
        return {"prototypes_by_class": rows}
    told = message[method.tells]
    _, counts = class_means(method.sent_features(client), client.labels, client.classes)
    table = torch.zeros(client.classes, client.inputs.shape[1], dtype=torch.float64)
    table[told > 0] = message["prototypes"]
    return {"prototypes": table, "present": told > 0, "counts": counts}


def mask_size(case: Case, inputs: Found) -> Found:
    kept = []
    for size in inputs["sizes"]:
        z = torch.ones(2, size, dtype=torch.float64)
        given = {"features": z.tolist(), "labels": [0, 0], "prototypes": [[0.0] * size]}
        kept.append(int((case.built.disguised(z, client_of(given))[0] != 0).sum()))
    return {"kept": kept}


def prototype_count(case: Case, inputs: Found) -> Found:
    chosen = (case.built.chosen(torch.rand(n, 3), torch.Generator()) for n in inputs["samples"])
    return {"count": [len(rows) for rows in chosen]}


def nearest_prototype(case: Case, inputs: Found) -> Found:
    z, prototypes = tensors(inputs["features"]), tensors(inputs["prototypes"])
    module = NearestPrototype(bare({"predictor": [["linear", z.shape[1], len(prototypes)]]}))
    module.double().prototypes.copy_(prototypes)
    module.present.copy_(tensors(inputs["present"]))
    out = Output(z, z.new_zeros(len(z), len(prototypes)))
    return {"labels": module.scores(out).argmax(1)}


def local_training(case: Case, inputs: Found) -> Found:
    settings = {key: inputs[key] for key in ("local_epochs", "optimizer")}
    with patch.object(type(case.built), "network", Method.network):  # see TwoEntrances
        run = start(case, network(inputs), [samples(inputs)], **settings)
    run.server.model |= tensors(inputs.get("global_classifier", {}))
    client, method = run.clients[0], run.method
    phases = [phase for phase in method.phases(run.protocol) if phase.name != "rectify"]
    job = replace(run._job(client, {**run._download(client), **received(inputs)}, 1), phases=phases)
    trained = dict(run.engine.train(method, [job]))[0]
    found: Found = {"network": trained.state}
    if "features" in case.expected:
        found |= replace(method, sent_as="raw").upload(
            run.view(client, trained.state, job.received, job.round)
        )
    return found


def adaptation(case: Case, inputs: Found) -> Found:
    run = start(case, network(inputs), [samples(inputs)], optimizer=inputs["optimizer"])
    return {"network": adapted(run)[0]}


def adapted(run: Training) -> list[dict[str, Tensor]]:
    """The clients' networks as they are tested after the last round."""
    given = "personal", run.protocol.rounds, run.clients
    return [state for _, state in sorted(run._networks(*given), key=lambda pair: pair[0])]


def rounds(case: Case, inputs: Found) -> Found:
    settings = {key: inputs[key] for key in ("rounds", "local_epochs", "optimizer")}
    run = start(case, network(inputs), [samples(own) for own in inputs["clients"]], **settings)
    if "participants" in inputs:
        drawn = inputs["participants"]
        run._participants = lambda number: [run.clients[i] for i in drawn[number - 1]]
    with in_given_order(inputs.get("batches")):
        for _ in range(inputs["rounds"]):
            run.one_round()
    personal = [client.personal(run.server.model) for client in run.clients]
    means = [state["client_mean"].tolist() for state in personal if "client_mean" in state]
    return {
        **run.server.tensors, "network": run.server.model, "clients": personal, "heads": personal,
        "final_heads": adapted(run) if "final_heads" in case.expected else [],
        "personal": [client.twin for client in run.clients],
        "moved": [client.memory for client in run.clients],
        "client_means": means,
    }  # fmt: skip


CHECKS = {
    "client_loss": client_loss,
    "term": client_loss,
    "proximal": proximal,
    "parameter_gradient": parameter_gradient,
    "dbe_step": dbe_step,
    "rectify": rectify,
    "distillation": partial(client_loss, loss="adaptation_loss"),
    "server_prototypes": server_prototypes,
    "server_directions": server_prototypes,
    "rucr_server": server_prototypes,
    "cluster_prototypes": cluster_prototypes,
    "server_average": server_average,
    "clients_after_average": server_average,
    "server_training": server_training,
    "schedule": schedule,
    "forward": forward,
    "client_prototypes": upload,
    "upload": upload,
    "mask_size": mask_size,
    "prototype_count": prototype_count,
    "nearest_prototype": nearest_prototype,
    "local_training": local_training,
    "adaptation": adaptation,
    "rounds": rounds,
}
