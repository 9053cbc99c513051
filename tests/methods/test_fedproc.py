"""FedProc: where its schedule leads."""

import torch

from fedrepro.base.progress import Silent
from tests import toys
from tests.methods.test_methods import training


def test_an_idle_start_moves_batch_norm_statistics_only():
    fields = {"form": "idle-start"}
    run = toys.start("FedProc", fields=fields, optimizer__weight_decay=0.0)
    start = {n: v.clone() for n, v in run.server.model.items()}
    run.one_round()
    for name, value in run.server.model.items():
        assert torch.allclose(value, start[name]) == (not run.layout[name].is_buffer), name
    run.one_round()
    names = [n for n, info in run.layout.items() if not info.is_buffer]
    assert not all(torch.allclose(run.server.model[n], start[n]) for n in names)


def test_a_horizon_below_the_rounds_ends_the_contrast():
    curve = training("FedProc", horizon=2).run(Silent())
    contrast = curve[(curve.measure == "term") & (curve.subject == "contrast")]
    assert (contrast[contrast["round"] == 2].value > 0).all()
    assert (contrast[contrast["round"] == 3].value == 0).all()
