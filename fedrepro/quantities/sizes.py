"""How large networks and messages are. Nothing is trained."""

from collections.abc import Iterator

import numpy as np

from fedrepro.federated.rounds import Training
from fedrepro.methods import create
from fedrepro.methods.messages import Message, Network, count_bytes, payload_bytes
from fedrepro.models import build_model, discriminator, parameter_count
from fedrepro.quantities.base import Asked, Values, quantity

MILLION = 1e6
BYTES, LABEL_BYTES = 4, 8  # of a float32, of a label


@quantity("sizes", counted=True)
def sizes(asked: Asked) -> Values:
    """FedPall's networks and messages (its Section 4), rounded to the printed digits."""
    for row, value in of_fedpall(asked):
        more = {"alternative": row not in asked.table.methods}
        yield row, "value", round(value, asked.digits(row, "value")), more


def of_fedpall(asked: Asked) -> Iterator[tuple[str, float]]:
    """Row and value: parameters in millions, as the paper counts them, and shares in percent.

    The last two rows count bytes beside FedAvg's network: all that travels in a round, down with
    prototypes and BatchNorm, up with features, labels, prototypes and class counts.
    """
    federation, protocol = asked.federation, asked.protocol
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
    message["model"] = {name: server.model[name] for name in training.broadcast}
    down = sum(count_bytes([message]).values())
    yield "bytes down in a round, relative to FedAvg (percent)", 100 * down / whole
    rows = images * (BYTES * network.feature_size + LABEL_BYTES)
    up = rows + classes * BYTES * (network.feature_size + 1)
    yield "bytes up in a round, relative to FedAvg (percent)", 100 * up / whole


@quantity("example", counted=True)
def example(asked: Asked) -> Values:
    """ADCOL's example (Sec. 4.2): 60,000 images of 784 values at 100 clients, an MLP with two
    hidden layers of 200 units, representations of 128 values, a discriminator with one hidden
    layer of 128.

    The printed 68,628 bytes are those of a discriminator with 5 outputs; 100 clients need 100.
    """
    images, clients, d = 60_000, 100, 128
    network = discriminator(784, 10, (200, 200))
    yield "MLP parameters", "value", float(parameter_count(network))
    yield "FedAvg MB per round", "value", 2 * clients * payload_bytes(Network(network)) / MILLION
    for outputs, end in ((clients, ""), (5, ", 5 outputs")):
        size = payload_bytes(Network(discriminator(d, outputs, (d,))))
        sent = (BYTES * images * d + clients * size) / MILLION
        more = {"alternative": bool(end)}
        yield f"discriminator bytes{end}", "value", float(size), more
        yield f"ADCOL MB per round{end}", "value", sent, more
