"""Baselines: what each one sends and keeps. Their numbers are held to official codes in parity."""

from dataclasses import replace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from tests import toys
from tests.methods.test_methods import only, record_messages, training


@pytest.mark.parametrize("name", ["SOLO", "ADCOL"])
def test_networks_stay_at_their_clients(name):
    run = training(name)
    start = {n: v.clone() for n, v in run.server.model.items()}
    downs, ups = record_messages(run)
    assert not any("model" in message for message in [*downs, *(up.message for up in ups)])
    toys.assert_equal(run.server.model, start)
    assert bool(run.clients[0].optimizer) == (name == "SOLO")


@pytest.mark.parametrize(
    ("name", "fields"), [("PartialFed", {}), ("FedBN", {}), ("FedBN", {"shortcut_bn": "average"})]
)
def test_what_is_sent_and_what_is_kept(name, fields):
    """PartialFed sends all and loads a part. FedBN keeps BatchNorm; without the shortcuts', as
    FedPall's code has it."""
    run = training(name, model="resnet10", **fields)
    downs, ups = record_messages(run)
    everything = {n for n, info in run.layout.items() if not info.is_counter}
    kept = {n for n in everything if run.layout[n].is_bn}
    assert any("downsample" in n for n in kept)
    if fields:
        kept = {n for n in kept if ".bn" in n}  # the names by which the code selects
    if name == "PartialFed":
        sent, kept = everything, kept | {n for n in everything if n.startswith("predictor")}
    else:
        sent = everything - kept
    for client, down, up in zip(run.clients, downs, ups, strict=True):
        assert set(down["model"]) == sent == set(up.message["model"])
        assert set(client.kept) == kept


def test_fedprocs_horizon_below_the_rounds_ends_the_contrast():
    curve = training("FedProc", horizon=2).run(Silent())
    contrasts = [toys.logged(curve, "term", number)["contrast"] for number in (1, 2, 3)]
    assert contrasts[0] == contrasts[2] == 0 < contrasts[1]


def test_per_fedavg_may_adapt_in_one_step_of_one_batch():
    """Fallah et al., Eq. 3: w - alpha grad. Nine images are three batches, one of them read."""
    run = training("Per-FedAvg", toys.federation((9,)), adapt_steps=1, alpha=0.1)

    class Quadratic(methods.get("Per-FedAvg")):
        def client_loss(self, model, batch, received):
            return {"half-square": 0.5 * sum((p**2).sum() for p in model.params.values())}

    for steps, factor in ((1, 0.9), (None, 0.9**2), (5, 0.9**5)):  # a rest of one joins a batch
        method = Quadratic(alpha=0.1, adapt_steps=steps)
        job = run._adaptation(run.clients[0], 1, method.before_test(run.protocol, False))
        name = next(n for n, info in run.layout.items() if not info.is_buffer)
        after = only(run, job, method).state[name]
        torch.testing.assert_close(after, factor * job.state[name])


@pytest.mark.parametrize("training_mode", [False, True])
def test_moons_references_use_running_or_batch_statistics(training_mode):
    run = training("MOON", references_in_training_mode=training_mode)
    run.one_round()
    client = run.clients[0]
    job = run._job(client, run._download(client), 2)
    expected = only(run, job).terms["contrast"]
    statistics = [n for n, info in run.layout.items() if info.is_buffer and not info.is_counter]
    job.received["memory"] = {n: v + 0.3 * (n in statistics) for n, v in client.memory.items()}
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


def test_dbes_who_joins_late_is_told_once_and_remembers():
    run = toys.start("DBE", participation=0.34, rounds=9)
    curve = run.run(Silent())
    rows = curve[(curve.measure == "bytes") & (curve.subject == "down/common_mean")]
    told = rows.set_index("round").value.to_dict()
    size = 4 * run.server.feature_size
    later = [run._participants(number)[0].index for number in range(2, 10)]
    firsts = {2 + later.index(client) for client in set(later)}
    assert told == dict.fromkeys(firsts, size) and len(firsts) == 3
    for client in run.clients:
        assert torch.equal(client.memory["common_mean"], run.server.tensors["common_mean"])
