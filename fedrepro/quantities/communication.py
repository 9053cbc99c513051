"""MPFT's traffic: all clients' bytes, up and down, in the paper's MB."""

from dataclasses import replace

import torch

from fedrepro.data.federation import Federation, Samples
from fedrepro.federated import metrics
from fedrepro.federated.rounds import Training
from fedrepro.methods import create
from fedrepro.papers import Arm
from fedrepro.quantities.base import Asked, Values, quantity
from fedrepro.records import federation_of

VALUES = 512  # values of an embedding, for both encoders of the paper
ONCE = {"server_epochs": 1, "server_warmup": 0}  # the server's training does not change the bytes


@quantity("communication")
def communication(asked: Asked) -> Values:
    """The traffic of our runs, up to the best round."""
    for result in asked.results:
        sent = metrics.traffic(result.record.curve)
        best = metrics.best_round(result.record.curve)
        size = float(sent.loc[:best].to_numpy().sum()) if sent.size else 0.0
        yield result.label, asked.column or asked.dataset, size / asked.unit("megabyte")


@quantity("transfers", counted=True)
def transfers(asked: Asked) -> Values:
    """The traffic in the printed rounds, at the paper's sizes. The experiment's `rows` name the
    table with the arms and rounds.

    Messages are counted on random embeddings, so no encoder is needed. For MPFT its only round is
    counted, for the others the second, because in the first there are no prototypes to send.
    """
    printed = asked.paper.table(asked.experiment.rows[asked.dataset])
    data = asked.protocol.data.model_copy(update={"encoder": None})
    federation = federation_of(data, asked.root)
    column = asked.column or asked.dataset
    for arm in asked.paper.arms(printed.id, asked.dataset):
        if arm.alternative:
            continue
        cell = printed.cell(arm.label, "rounds")
        rounds = (cell.value if cell is not None else None) or 0.0
        sent = rounds * a_round(arm, federation) / asked.unit("megabyte")
        yield arm.label, column, round(sent, asked.digits(arm.label, column))


def a_round(arm: Arm, federation: Federation) -> float:
    """An arm's bytes in its last round of at most two. Drawn images are counted instead of k-means
    centres; their numbers are equal."""
    fields = dict(arm.fields)
    if arm.method == "MPFT":
        drawn = {"prototypes": "random"} if fields.get("prototypes") == "cluster" else {}
        fields |= {**ONCE, **drawn}
    run = Training(create(arm.method, **fields), arm.protocol, embedded(federation), 0)
    for _ in range(min(2, arm.protocol.rounds)):
        run.one_round()
    sent = metrics.traffic(run.curve()).sum(axis=1).to_list()
    return sent[-1] if sent else 0.0


def embedded(federation: Federation) -> Federation:
    """The same clients with random rows instead of images; two test images per domain."""
    stream = torch.Generator().manual_seed(0)

    def rows(samples: Samples, most: int | None = None) -> Samples:
        labels = samples.labels[:most]
        return Samples(torch.rand(len(labels), VALUES, generator=stream), labels)

    clients = tuple(
        replace(c, train=rows(c.train), validation=c.validation and rows(c.validation, 2))
        for c in federation.clients
    )
    tests = {name: rows(samples, 2) for name, samples in federation.tests.items()}
    return replace(federation, size=VALUES, clients=clients, tests=tests, texts={})
