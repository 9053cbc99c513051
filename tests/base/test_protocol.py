"""Settings: what is dumped and therefore hashed, what a changed copy is; seeds of each stream."""

import math
from functools import reduce
from itertools import product
from operator import getitem

import pytest
import torch

from fedrepro.base.protocol import OptimizerSpec, Protocol
from fedrepro.base.rng import seeded_modules, stream_seed
from tests import toys
from tests.data.made import one_line

DEPARTURES = {
    "data.crop": 4,
    "data.split": "official-leaky",
    "data.allocation.by_class": True,
    "data.allocation.per_client": {"a": 3, "b": 0.5},
    "optimizer.clip": 1.0,
}


@pytest.mark.parametrize("setting", DEPARTURES)
def test_a_setting_that_departs_is_dumped_and_read_back(setting):
    changed = toys.protocol().changed(**{setting: DEPARTURES[setting]})
    raw = changed.model_dump(mode="json")
    assert reduce(getitem, setting.split("."), raw) == DEPARTURES[setting]
    assert Protocol.model_validate(raw) == changed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.crop": 9, "data.size": 9}, "crop 9 can move all of an image away"),
        ({"data.validation": True}, r"protocol setting data\.validation.*true is not a value"),
        ({"data.test_limit": {"a": 0}}, r"setting data\.test_limit\.a = 0: Input should be gr"),
        ({"data.encoder": "any", "data.flip": True}, "embeddings cannot be augmented"),
        ({"early_stop.patience": 3, "rounds.early": 3}, "rounds has no parts"),
        ({"optimizer.clip": math.inf}, "should be a finite number"),  # JSON has none
        ({"optimizer": {"kind": "adamw", "momentum": 0.9}}, "leave momentum at 0"),
        ({"optimizer": {"warmup": 10, "cosine": 10}}, "cosine must end after the warm-up"),
        ({"tested_at": 5, "early_stop": {"patience": 2}}, "tested_at"),  # needs a known last round
    ],
)
def test_impossible_values_name_the_setting(changes, said):
    with one_line(said):
        toys.protocol(**changes)


def test_the_rate_rises_evenly_then_falls_as_a_cosine():
    spec = OptimizerSpec(lr=0.001, warmup=10, cosine=200)
    assert [spec.rate(r) for r in (1, 5, 10, 11)] == pytest.approx([1e-4, 5e-4, 1e-3, 1e-3])
    assert spec.rate(106) == pytest.approx(5e-4)  # half of the 190 rounds that it falls
    assert spec.rate(200) == pytest.approx(0.0005 * (1 + math.cos(math.pi * 189 / 190)))
    assert spec.rate(201) == spec.rate(500) == 0
    assert OptimizerSpec(lr=0.1).rate(99) == OptimizerSpec(lr=0.1, warmup=4).rate(9) == 0.1
    assert OptimizerSpec(kind="adamw").weight_decay == 0.01  # as torch's


def test_streams_differ_by_every_part_of_the_key_and_never_change():
    keys = list(product((0, 1), ("batches", "augmentation"), (0, 1, None), (1, 2)))
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    # Old records stay re-runnable only while the key's hash is what it was.
    assert stream_seed(0, "batches", 0, 1) == 8232848184240901661
    before = torch.manual_seed(5).get_state()
    with seeded_modules(1):
        torch.nn.Linear(3, 3)
    assert torch.equal(before, torch.get_rng_state())
