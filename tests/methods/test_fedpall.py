"""FedPall: what stays, and what is tested."""

import torch

from fedrepro.base.progress import Silent
from fedrepro.base.rng import torch_stream
from tests import toys
from tests.methods.test_methods import record_messages

D = 16  # tiny-cnn's features


def training(model="tiny-cnn", **fields):
    return toys.start("FedPall", (8, 6), fields=fields, model=model)


def test_without_kl_no_amplifier_and_without_global_classifier_no_weights():
    run = training(mu=0.0, global_classifier=False)
    run.run(Silent())
    assert set(run._download(run.clients[0])) == {"prototypes", "present"}
    assert not any(name.startswith(("amplifier", "classifier")) for name in run.server.log)


def test_clients_take_over_linear_layers_and_are_tested_with_what_training_left():
    run = training(model="small-cnn")
    linear = {n for n, i in run.layout.items() if i.part == "predictor" and not i.is_bn}
    assert set(run.overwritten) == linear
    run.run(Silent())
    tested = dict(run.tested_networks(3))
    for client in run.clients:
        for name in linear:
            server, mine = run.server.model[name], tested[client.data.domain][name]
            assert torch.equal(client.personal(run.server.model)[name], server)
            assert torch.equal(mine, client.trained[name]) and not torch.equal(mine, server)


def test_uploads_of_a_run_are_masked_features_in_training_mode():
    run = training(sent_as="masked")
    _, ups = record_messages(run)
    stream = torch_stream(0, "method", client=0, round=1)
    samples, augmentation = run.clients[0].data.train, run.protocol.data.augmentation
    z = run.engine.features(run.clients[0].trained, samples, True, augmentation, stream)
    found = ups[0].message["features"]
    gone = (found == 0).all(dim=0)
    assert gone.sum() == D - int(0.9 * D)
    torch.testing.assert_close(found, torch.where(gone, 0.0, z))
