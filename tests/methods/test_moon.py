"""MOON: which statistics its references use and move."""

from dataclasses import replace

import pytest
import torch

from tests import toys
from tests.methods.test_methods import only, training


@pytest.mark.parametrize("training_mode", [False, True])
def test_references_use_running_or_batch_statistics(training_mode):
    """Running statistics of the references matter in evaluation mode, and only there."""
    run = training("MOON", references_in_training_mode=training_mode)
    run.one_round()
    client = run.clients[0]
    job = run._job(client, run._download(client), 2)
    expected = only(run, job).terms["contrast"]
    statistics = [n for n, info in run.layout.items() if info.is_buffer and not info.is_counter]
    other = {n: v + 0.3 if n in statistics else v for n, v in client.memory.items()}
    job.received["memory"] = other
    assert (only(run, job).terms["contrast"] == expected) == training_mode


@pytest.mark.parametrize("name", ["MOON", "FedProto"])
def test_a_second_pass_moves_the_running_statistics_once_more(name):
    """From r, one step of one batch with statistics s leaves r + 0.1 (s - r), or r + 0.19 (s - r);
    weights do not feel it."""
    after = {}
    for twice in (False, True):
        run = training(name, toys.federation((4,)), second_pass=twice)
        client = run.clients[0]
        phase = replace(run.method.phases(run.protocol)[0], epochs=1)
        job = replace(run._job(client, run._download(client), 1), phases=[phase])
        before, after[twice] = job.state, only(run, job).state
    checked = 0
    for name, info in run.layout.items():
        if info.is_bn and info.is_buffer and not info.is_counter:
            once, twice = (after[n][name] - before[name] for n in (False, True))
            torch.testing.assert_close(twice, 1.9 * once, rtol=1e-4, atol=1e-6)
            checked += bool(once.abs().max() > 1e-3)
        elif not info.is_counter:
            torch.testing.assert_close(after[True][name], after[False][name])
    assert checked
