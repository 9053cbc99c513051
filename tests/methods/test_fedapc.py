"""FedAPC: prototypes of augmented views."""

import torch

from fedrepro import methods
from fedrepro.base.protocol import Augmentation
from tests import toys

ERASE, CROP, FLIP = Augmentation(erase=0.5), Augmentation(crop=4), Augmentation(flip=True)


def test_views():
    make = lambda **fields: methods.create("FedAPC", **fields).augmentations()  # noqa: E731
    assert make() == [ERASE, CROP, FLIP]
    assert make(views=5) == [ERASE, CROP, FLIP, ERASE, CROP]
    assert make(all_in_each=True, views=2) == [Augmentation(erase=0.5, crop=4, flip=True)] * 2
    assert make(augmented=False) == [None]


def sent_prototypes(**fields):
    run = toys.start("FedAPC", fields=fields)
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
