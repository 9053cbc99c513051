"""FedAPC: prototypes of augmented views."""

import torch

from fedrepro import methods
from fedrepro.base.protocol import Augmentation
from tests import toys
from tests.methods.test_methods import record_messages

ERASE, CROP, FLIP = Augmentation(erase=0.5), Augmentation(crop=4), Augmentation(flip=True)


def test_views():
    make = lambda **fields: methods.create("FedAPC", **fields).augmentations()  # noqa: E731
    assert make() == [ERASE, CROP, FLIP]
    assert make(views=5) == [ERASE, CROP, FLIP, ERASE, CROP]
    assert make(all_in_each=True, views=2) == [Augmentation(erase=0.5, crop=4, flip=True)] * 2
    assert make(augmented=False) == [None]


def test_augmentation_reaches_the_prototypes_and_no_other_part_of_round_one():
    run, plain = toys.start("FedAPC"), toys.start("FedAPC", fields={"augmented": False})
    views, alone = (record_messages(one)[1] for one in (run, plain))
    toys.assert_equal(run.server.model, plain.server.model)
    for client, augmented, up in zip(plain.clients, views, alone, strict=True):
        sent = up.message["prototypes"]
        assert not torch.allclose(augmented.message["prototypes"], sent)
        z = plain.engine.features(up.message["model"], client.data.train)
        means = [z[client.data.train.labels == k].mean(0) for k in range(toys.CLASSES)]
        torch.testing.assert_close(sent, torch.stack(means))
