"""Readings other than the defaults: both engines agree, first rounds are FedAvg's."""

import pytest
import torch

from fedrepro.base.progress import Silent
from tests import toys
from tests.engine.test_fused import assert_engines_agree, start

FEDPALL = {
    "discriminator_batch_norm": True,
    "discriminator_in_training_mode": True,
    "closing_pass": True,
    "discriminator_weight_decay": 1e-5,
}
READINGS = [
    ("ADCOL", {"share_predictor": True, "bn_policy": "average"}),
    ("ADCOL", {"discriminators": 3}),
    ("ADCOL", {"two_stages": True}),
    ("ADCOL", {"local_epsilon": 5.0}),
    ("ADCOL", FEDPALL),
    ("DBE", {"first_round": "averaged", "mean_lr": 0.001}),
    ("DBE", {"momentum": 1.0, "kappa": 10.0, "bn_policy": "local"}),
    ("Ditto", {"personal_epochs": None, "lam": 0.1, "bn_policy": "local"}),
    ("FedAPC", {"augmented": False, "prototypes_in_training_mode": True}),
    ("FedAPC", {"all_in_each": True, "views": 2}),
    ("FedDyn", {"form": "inert"}),
    ("FedProc", {"form": "idle-start", "prototype_weighting": "clients"}),
    ("FedProto", {"averages_networks": True, "second_pass": True}),
    ("FedProto", {"inference": "prototype", "prototype_weighting": "images"}),
    ("FPL", {"prototypes_in_training_mode": True, "prototypes_of_augmented_images": True}),
    ("I2PFL", {"mixup": "images", "augmented_constant": False}),
    ("I2PFL", {"mixup": "none", "rule": "clustering"}),
    ("I2PFL", {"one_lambda": True, "alignment": "sum", "rule": "averaging", "decay": 0.0}),
    ("I2PFL", {"augmented_over": "client", "distance": "squared"}),
    ("MOON", {"references_in_training_mode": True, "second_pass": True}),
    ("RUCR", {"rectify_steps": 5, "anchors": "raw", "rectify_at": "end"}),
]


@pytest.mark.parametrize(("name", "fields"), READINGS, ids=str)
def test_a_reading_is_another_run_in_both_engines(name, fields):
    sizes = (21, 13, 5) if name == "RUCR" else (21, 13, 13)  # more and less than a batch
    settings = {"name": name, "rounds": 2, "local_epochs": 1, "sizes": sizes}
    found = assert_engines_agree(fields=fields, **settings)
    default = toys.numbers(start(engine="reference", **settings).run(Silent()))
    assert not found.equals(default)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("DBE", {"first_round": "averaged"}),
        *(("FedAPC", {}), ("FedDyn", {"form": "inert"}), ("FedProc", {}), ("FPL", {})),
        *(("FedProto", {"averages_networks": True}), ("I2PFL", {"apa": 0.0}), ("MOON", {})),
        ("RUCR", {"rectify_at": "end"}),
    ],
)
def test_the_first_round_is_fedavgs(name, fields):
    """Where there is nothing yet to be held to."""
    run, plain = toys.start(name, fields=fields), toys.start()
    run.one_round(), plain.one_round()
    for key, value in plain.server.model.items():
        torch.testing.assert_close(run.server.model[key], value)
    run.one_round(), plain.one_round()
    moved = any(not torch.allclose(run.server.model[k], v) for k, v in plain.server.model.items())
    assert moved == (fields.get("form") != "inert")
