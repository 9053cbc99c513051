"""How large FedPall's networks and messages are (its Section 4), beside FedAvg's. Nothing is
trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedrepro.base.protocol import Protocol
from fedrepro.federated.rounds import Training
from fedrepro.methods import create
from fedrepro.methods.messages import Message, count_bytes
from fedrepro.models import build_model, parameter_count
from fedrepro.records import federation_of

MILLION = 1e6
BYTES, LABEL_BYTES = 4, 8  # of a float32, of a label


def sizes(protocol: Protocol, root: Path | None = None) -> Iterator[tuple[str, float]]:
    """Row and value: parameters in millions, as the paper counts them, and shares in percent.

    The last two rows count bytes beside FedAvg's network: all that travels in a round, down with
    prototypes and BatchNorm, up with features, labels, prototypes and class counts.

    Raises:
        FedReproError: missing or broken files.
    """
    federation = federation_of(protocol.data, root)
    classes = len(federation.classes)
    images = float(np.mean([len(client.train) for client in federation.clients]))
    training = Training(create("FedPall"), protocol, federation, 0)
    server = training.server
    network = build_model(protocol.model, classes, federation.size, **protocol.model_args)
    encoder = parameter_count(network.encoder) + parameter_count(network.projection)
    classifier = parameter_count(server.modules["classifier"])
    amplifier = parameter_count(server.modules["amplifier"])
    yield "feature extractor parameters (millions)", encoder / MILLION
    yield "classifier parameters (millions)", classifier / MILLION
    yield "amplifier parameters (millions)", amplifier / MILLION
    yield "classifier share (percent, as printed)", 100 * classifier / encoder
    yield "amplifier share (percent, as printed)", 100 * amplifier / encoder
    yield "embedding dimension", float(network.feature_size)
    yield "mean number of mixed features uploaded per client", images
    yield "FedAvg parameters uploaded (millions)", (encoder + classifier) / MILLION
    share = (classifier + amplifier) / (encoder + classifier)
    yield "download relative to FedAvg (percent)", 100 * share
    whole = sum(tensor.bytes for tensor in training.layout.values() if not tensor.is_counter)
    message: Message = dict(training.method.download(server, 0))
    message["model"] = {name: server.model[name] for name in training.descending}
    down = sum(count_bytes([message]).values())
    yield "bytes down in a round, relative to FedAvg (percent)", 100 * down / whole
    rows = images * (BYTES * network.feature_size + LABEL_BYTES)
    up = rows + classes * BYTES * (network.feature_size + 1)
    yield "bytes up in a round, relative to FedAvg (percent)", 100 * up / whole
