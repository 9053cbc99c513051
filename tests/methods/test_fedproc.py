"""FedProc: its schedule."""

import torch

from fedrepro.base.progress import Silent
from tests import toys
from tests.methods.test_methods import record_messages, training


def test_the_schedule_reaches_the_clients_round_by_round():
    run = training("FedProc")
    seen = []
    for _ in range(3):
        downs, _ = record_messages(run)
        seen.append([round(v, 6) for v in downs[0]["schedule"].tolist()])
    assert seen == [[0, 1], [0.666667, 0.333333], [0.333333, 0.666667]]


def test_an_idle_start_moves_batch_norm_statistics_only():
    fields = {"form": "idle-start"}
    run = toys.start("FedProc", fields=fields, optimizer__weight_decay=0.0)
    start = {n: v.clone() for n, v in run.server.model.items()}
    run.one_round()
    for name, value in run.server.model.items():
        if run.layout[name].is_buffer:
            assert not torch.equal(value, start[name]), name
        else:
            torch.testing.assert_close(value, start[name])
    run.one_round()
    assert any(
        not torch.allclose(v, start[n])
        for n, v in run.server.model.items()
        if not run.layout[n].is_buffer
    )


def test_a_horizon_below_the_rounds_ends_the_contrast():
    curve = training("FedProc", horizon=2).run(Silent())
    contrast = curve[(curve.measure == "term") & (curve.subject == "contrast")]
    assert (contrast[contrast["round"] == 2].value > 0).all()
    assert (contrast[contrast["round"] == 3].value == 0).all()
