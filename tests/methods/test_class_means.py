"""Methods that share class means: FedAPC, FedPall, FedProto, I2PFL, RUCR."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Augmentation
from fedrepro.base.rng import torch_stream
from tests import toys
from tests.methods.test_methods import only, record_messages, training

ERASE, CROP, FLIP = Augmentation(erase=0.5), Augmentation(crop=4), Augmentation(flip=True)


def test_fedapcs_views():
    make = lambda **fields: methods.create("FedAPC", **fields).augmentations()  # noqa: E731
    assert make() == [ERASE, CROP, FLIP]
    assert make(views=5) == [ERASE, CROP, FLIP, ERASE, CROP]
    assert make(all_in_each=True, views=2) == [Augmentation(erase=0.5, crop=4, flip=True)] * 2
    assert make(augmented=False) == [None]


def test_fedapcs_augmentation_reaches_the_prototypes_and_no_other_part_of_round_one():
    run, plain = toys.start("FedAPC"), toys.start("FedAPC", fields={"augmented": False})
    views, alone = (record_messages(one)[1] for one in (run, plain))
    toys.assert_equal(run.server.model, plain.server.model)
    for client, augmented, up in zip(plain.clients, views, alone, strict=True):
        sent = up.message["prototypes"]
        assert not torch.allclose(augmented.message["prototypes"], sent)
        z = plain.engine.outputs(up.message["model"], client.data.train)
        means = [z[client.data.train.labels == k].mean(0) for k in range(toys.CLASSES)]
        torch.testing.assert_close(sent, torch.stack(means))


def fedpall(model="tiny-cnn", **fields):
    return toys.start("FedPall", (8, 6), fields=fields, model=model)


def test_fedpall_without_kl_has_no_amplifier_and_without_global_classifier_no_weights():
    run = fedpall(mu=0.0, global_classifier=False)
    run.run(Silent())
    assert set(run._download(run.clients[0])) == {"prototypes", "present"}
    assert not any(name.startswith(("amplifier", "classifier")) for name in run.server.log)


def test_fedpalls_clients_take_over_linear_layers_and_are_tested_with_what_training_left():
    run = fedpall(model="small-cnn")
    linear = {n for n, i in run.layout.items() if i.part == "predictor" and not i.is_bn}
    assert set(run.server.model) - set(run.clients[0].kept) == linear
    run.run(Silent())
    tested = dict(run.tested_networks(3))
    for client in run.clients:
        for name in linear:
            server, mine = run.server.model[name], tested[client.data.domain][name]
            assert torch.equal(client.personal(run.server.model)[name], server)
            assert torch.equal(mine, client.trained[name]) and not torch.equal(mine, server)


def test_fedpalls_uploads_are_masked_features_in_training_mode():
    run = fedpall(sent_as="masked")
    _, ups = record_messages(run)
    stream = torch_stream(0, "method", client=0, round=1)
    samples, augmentation = run.clients[0].data.train, run.protocol.data
    z = run.engine.outputs(run.clients[0].trained, samples, True, augmentation, stream)
    found = ups[0].message["features"]
    gone = (found == 0).all(dim=0)
    assert gone.sum() == 2  # of 16 features
    torch.testing.assert_close(found, torch.where(gone, 0.0, z))
    client = SimpleNamespace(generator=torch.Generator())
    noisy = methods.create("FedPall", sent_as="gaussian").disguised(torch.ones(99, 99), client)
    assert (noisy - 1).std().item() == pytest.approx(1, rel=0.03)  # of variance 1


@pytest.mark.parametrize("in_training", [False, True])
@pytest.mark.parametrize("augmented", [False, True])
def test_fedprotos_prototypes_are_means_of_the_trained_networks_features(in_training, augmented):
    fields = {"prototypes_in_training_mode": in_training}
    fields |= {"prototypes_of_augmented_images": augmented}
    run = toys.start("FedProto", fields=fields, data__flip=True, data__crop=2)
    _, ups = record_messages(run)
    client = run.clients[0]
    view = Augmentation(flip=True, crop=2) if augmented else None
    stream, state = torch_stream(0, "method", client.index, 1), client.personal(run.server.model)
    z = run.engine.outputs(state, client.data.train, in_training, view, stream)
    for k in range(toys.CLASSES):
        mean = z[client.data.train.labels == k].mean(dim=0)
        torch.testing.assert_close(ups[0].message["prototypes"][k], mean)


@pytest.mark.parametrize("averages", [False, True])
def test_fedprotos_nearest_global_prototype_is_what_is_tested(averages):
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
    z = run.engine.outputs(state, test)
    nearest = torch.cdist(z, run.server.tensors["prototypes"]).argmin(dim=1)
    curve = run.curve()
    rows = curve[(curve.measure == "accuracy") & (curve["round"] == 2) & (curve.domain == domain)]
    found = rows[rows.split == "test"].value.item()
    assert found == pytest.approx(100 * (nearest == test.labels).float().mean().item())


def test_i2pfls_client_keeps_the_means_of_its_mixtures():
    run = toys.start("I2PFL", (8, 7), fields={"augmented_over": "client", "alpha": 0.4}, rounds=2)
    kept, remember = [], type(run.method).remember

    def heard(client):
        kept.append((client, client.generator.get_state(), remember(run.method, client)))
        return kept[-1][2]

    object.__setattr__(run.method, "remember", heard)
    run.one_round()
    client, start, memory = kept[0]
    z, y = client.features(), client.labels
    weight, bias = (client.state[f"predictor.{part}"] for part in ("weight", "bias"))
    torch.testing.assert_close(client.logits(), torch.nn.functional.linear(z, weight, bias))
    lam, partner = run.method.drawn(8, torch.Generator().set_state(start)).unbind(dim=1)
    wanted = torch.zeros(toys.CLASSES, z.shape[1])
    for i in range(8):
        others = [z[j] for k in range(toys.CLASSES) if k != y[i] for j in range(8) if y[j] == k]
        other = others[int(partner[i] * len(others))]
        wanted[y[i]] += (lam[i] * z[i] + (1 - lam[i]) * other) / (y == y[i]).sum()
    torch.testing.assert_close(memory["augmented"], wanted)
    assert memory["counts"].tolist() == [3, 3, 2]
    assert torch.equal(run.clients[0].memory["augmented"], memory["augmented"])


def test_i2pfl_without_a_memory_the_first_round_has_no_alignment_and_the_second_has():
    run = toys.start("I2PFL", fields={"augmented_over": "client"})
    curve = run.run(Silent())
    first, second = (toys.logged(curve, "term", number)["apa"] for number in (1, 2))
    assert first == 0 < second
    with pytest.raises(FedReproError, match="mixup"):
        methods.create("I2PFL", augmented_over="client", mixup="images")


def rucr(model="tiny-cnn", **fields):
    return toys.start("RUCR", (8, 6), fields=fields, model=model)


def trained(run, phases, round=2, client=None):
    """A client's network at the start and after some phases."""
    client = client or run.clients[0]
    job = replace(run._job(client, run._download(client), round), phases=phases)
    return job.state, only(run, job)


def test_rucrs_rectification_moves_the_predictor_and_no_statistics():
    run = rucr(model="small-cnn")
    run.one_round()
    before, result = trained(run, run.method.phases(run.protocol)[:1])
    assert result.terms["rectify"] > 0
    for name, info in run.layout.items():
        moves = info.part == "predictor" and not info.is_buffer
        if not info.is_counter and ("weight" in name or not moves):
            assert torch.equal(result.state[name], before[name]) != moves, name


def test_rucrs_rectification_waits_for_the_last_rounds():
    run = rucr(rectify_last=1, rectify_lr=1.0)
    run.one_round()
    rectify = run.method.phases(run.protocol)[:1]
    for number, due in ((1, False), (2, True), (3, True)):  # r >= R - 1 of R = 3, as the authors
        run.server.round = number
        before, result = trained(run, rectify, number)
        assert (result.terms["rectify"] > 0) == due
        moved = not torch.equal(result.state["predictor.weight"], before["predictor.weight"])
        assert moved == due


def test_rucrs_policy_that_keeps_part_of_the_network_at_home_is_refused():
    assert methods.create("RUCR", bn_policy="first").bn_policy == "first"
    with pytest.raises(FedReproError, match="bn_policy"):
        methods.create("RUCR", bn_policy="local")


@pytest.mark.parametrize("engine", ["reference", "fused"])
def test_rucrs_rectification_takes_a_number_of_steps(engine):
    """Of whole batches, however few or many images a client has; all of them where they are fewer
    than a batch. A step of a loss that is the sum of the predictor's weights moves each by lr."""

    class Sum(methods.get("RUCR")):
        def rectify(self, model, batch, received):
            sizes.append(batch.y.shape[-1])
            return {"rectify": sum(value.sum() for value in model.params.values())}

    for images in (3, 4, 30):
        sizes = []
        method = Sum(rectify_steps=5, rectify_epochs=2, rectify_lr=0.5)
        run = toys.start(sizes=(images, 11), method=method, engine=engine)
        for client in run.clients:
            before, result = trained(run, method.phases(run.protocol)[:1], 1, client)
            weight = next(n for n, i in run.layout.items() if i.part == "predictor")
            moved = before[weight] - result.state[weight]
            torch.testing.assert_close(moved, torch.full_like(moved, 5))
        assert set(sizes) == {min(images, 4), 4}
