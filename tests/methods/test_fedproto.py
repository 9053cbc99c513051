"""FedProto: what travels, and both ways to classify."""

import pytest
import torch

from fedrepro.base.protocol import Augmentation
from fedrepro.base.rng import torch_stream
from tests import toys
from tests.methods.test_methods import record_messages, training


@pytest.mark.parametrize("in_training", [False, True])
@pytest.mark.parametrize("augmented", [False, True])
def test_prototypes_are_means_of_the_trained_networks_features(in_training, augmented):
    fields = {"prototypes_in_training_mode": in_training}
    fields |= {"prototypes_of_augmented_images": augmented}
    run = toys.start("FedProto", fields=fields, data__flip=True, data__crop=2)
    _, ups = record_messages(run)
    client = run.clients[0]
    view = Augmentation(flip=True, crop=2) if augmented else None
    stream, state = torch_stream(0, "method", client.index, 1), client.personal(run.server.model)
    z = run.engine.features(state, client.data.train, in_training, view, stream)
    for k in range(toys.CLASSES):
        mean = z[client.data.train.labels == k].mean(dim=0)
        torch.testing.assert_close(ups[0].message["prototypes"][k], mean)


@pytest.mark.parametrize("averages", [False, True])
def test_the_nearest_global_prototype_is_what_is_tested(averages):
    """Losses stay the predictor's, so that a stop by validation loss has its meaning."""
    fields = {"averages_networks": averages}
    losses = []
    for form in ("classifier", "prototype"):
        run = training("FedProto", inference=form, **fields)
        run.one_round(), run.one_round()
        losses.append(run.curve().query("measure == 'loss'").value.tolist())
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    client, (domain, test) = run.clients[0], next(iter(run.federation.tests.items()))
    state = run.server.model if averages else client.personal(run.server.model)
    z = run.engine.features(state, test)
    nearest = torch.cdist(z, run.server.tensors["prototypes"]).argmin(dim=1)
    curve = run.curve()
    rows = curve[(curve.measure == "accuracy") & (curve["round"] == 2) & (curve.domain == domain)]
    found = rows[rows.split == "test"].value.item()
    assert found == pytest.approx(100 * (nearest == test.labels).float().mean().item())
