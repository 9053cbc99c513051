"""FedAPC, worked out by hand: loss, prototypes of augmented views, what travels."""

import math
from types import SimpleNamespace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Augmentation
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Upload
from fedrepro.models import Output
from tests import toys
from tests.engine.test_fused import assert_engines_agree

ERASE, CROP, FLIP = Augmentation(erase=0.5), Augmentation(crop=4), Augmentation(flip=True)


def terms(present=(True, True), **fields):
    """Loss terms of two samples whose features are (2, 0) and (0, 1), of classes 0 and 1."""
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    received = {"prototypes": torch.tensor([[0.5, 0], [3, 4]]), "present": torch.tensor(present)}
    batch = Batch(z, torch.tensor([0, 1]))
    return methods.create("FedAPC", **fields).client_loss(
        lambda x: Output(x, 0 * x), batch, received
    )


def test_loss_by_hand():
    found = terms(tau=0.5)
    # cosines: 1 and 0.6 of the first sample, 0 and 0.8 of the second
    first = math.log(1 + math.exp((0.6 - 1) / 0.5))
    second = math.log(1 + math.exp((0 - 0.8) / 0.5))
    assert found["apc"].item() == pytest.approx((first + second) / 2)
    assert found["ce"].item() == pytest.approx(math.log(2))
    assert terms(tau=0.5, weight=3.0)["apc"] == pytest.approx(3 * found["apc"].item())


def test_first_round_has_no_contrast():
    assert terms(present=(False, False))["apc"] == 0


def test_views():
    make = lambda **fields: methods.create("FedAPC", **fields).augmentations()  # noqa: E731
    assert make() == [ERASE, CROP, FLIP]
    assert make(views=5) == [ERASE, CROP, FLIP, ERASE, CROP]
    assert make(all_in_each=True, views=2) == [Augmentation(erase=0.5, crop=4, flip=True)] * 2
    assert make(augmented=False) == [None]


VIEWS = {
    ERASE: torch.tensor([[0.0], [3.0], [6.0]]),
    CROP: torch.tensor([[3.0], [3.0], [0.0]]),
    FLIP: torch.tensor([[6.0], [9.0], [3.0]]),
    None: torch.tensor([[1.0], [2.0], [8.0]]),
}


def uploaded(**fields):
    """What a client of three images sends whose features under each augmentation are `VIEWS`, and
    one more in training mode."""
    client = SimpleNamespace(
        labels=torch.tensor([0, 0, 1]),
        classes=2,
        features=lambda training=False, augmentation=None: VIEWS[augmentation] + training,
    )
    return methods.create("FedAPC", **fields).upload(client)["prototypes"].tolist()


def test_prototypes_are_class_means_over_images_and_views():
    # the images' means over their views: 3, 5 and 3
    assert uploaded() == [[4], [3]]
    assert uploaded(augmented=False) == [[1.5], [8]]
    assert uploaded(prototypes_in_training_mode=True) == [[5], [4]]


def test_the_server_averages_over_the_clients_that_have_a_class():
    server = SimpleNamespace(tensors={})
    both, one = torch.tensor([True, True]), torch.tensor([False, True])
    uploads = [
        Upload(0, 90, {"prototypes": torch.tensor([[1.0, 0.0], [2.0, 0.0]]), "present": both}),
        Upload(1, 10, {"prototypes": torch.tensor([[0.0, 4.0]]), "present": one}),
    ]
    methods.create("FedAPC").server_step(server, uploads)
    assert server.tensors["prototypes"].tolist() == [[1, 0], [1, 2]]
    assert server.tensors["present"].tolist() == [True, True]


def start(**fields):
    return Training(methods.create("FedAPC", **fields), toys.protocol(), toys.federation(), seed=0)


def test_contrast_starts_in_round_two():
    run = start()
    curve = run.run(Silent())
    assert toys.logged(curve, "term", 1)["apc"] == 0 < toys.logged(curve, "term", 2)["apc"]


def sent_prototypes(**fields):
    run = start(**fields)
    heard, upload = [], run._upload

    def up(client, trained, view):
        sent = upload(client, trained, view)
        heard.append((client, trained.state, sent.message["prototypes"]))
        return sent

    run._upload = up
    run.one_round()
    return run, heard


def test_augmentation_reaches_the_prototypes_and_no_other_part_of_round_one():
    (run, views), (plain, alone) = sent_prototypes(), sent_prototypes(augmented=False)
    assert all(torch.equal(v, plain.server.model[n]) for n, v in run.server.model.items())
    for (_, _, one), (client, state, other) in zip(views, alone, strict=True):
        assert not torch.allclose(one, other)
        z = plain.engine.features(state, client.data.train)
        means = [z[client.data.train.labels == k].mean(0) for k in range(toys.CLASSES)]
        torch.testing.assert_close(other, torch.stack(means))


def test_views_differ_from_each_other_and_are_drawn_alike_again():
    first, again = (sent_prototypes(views=2, all_in_each=True)[1] for _ in range(2))
    single = sent_prototypes(views=1, all_in_each=True)[1]
    for (_, _, one), (_, _, two), (_, _, other) in zip(first, again, single, strict=True):
        assert torch.equal(one, two) and not torch.allclose(one, other)


@pytest.mark.parametrize(
    "fields",
    [
        {"augmented": False},
        {"all_in_each": True, "views": 2},
        {"prototypes_in_training_mode": True},
        {"weight": 0.5, "tau": 0.1},
    ],
)
def test_every_reading_runs_the_same_in_both_engines(fields):
    assert_engines_agree(name="FedAPC", fields=fields, rounds=2, local_epochs=1, sizes=(21, 13, 13))
