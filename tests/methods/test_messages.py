"""What methods send, in which bytes, and what they keep; parity holds their numbers."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.methods.server import Network, count_bytes, payload_bytes
from tests import toys
from tests.methods.test_methods import only, record_messages, training


def test_bytes_follow_number_and_width_of_values():
    assert payload_bytes(torch.zeros(3, 5)) == 60
    assert payload_bytes({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)}) == 24
    assert payload_bytes(Network(nn.Linear(4, 2))) == 4 * (4 * 2 + 2)
    assert payload_bytes(Network(nn.BatchNorm1d(4))) == 4 * 4 * 4, "its counter stays"
    messages = [{"model": {"w": torch.zeros(2)}, "z": torch.zeros(1)}, {"z": torch.zeros(3)}]
    assert count_bytes(messages) == {"model": 8, "z": 16}
    own = {"memory": {"w": torch.zeros(5)}, "schedule": torch.zeros(()), "model": torch.zeros(2)}
    assert count_bytes([own]) == {"model": 8}
    table, present = torch.zeros(4, 3), torch.tensor([True, False, True, False])
    for sent in (table, table[:2]):  # rows that hold nothing are not counted
        found = count_bytes([{"prototypes": sent, "present": present}])
        assert found == {"prototypes": 2 * 3 * 4, "present": 4}


def test_a_sent_network_gives_gradients_to_its_inputs_only_and_stays_as_it_was():
    module = nn.Linear(3, 2)
    network, x = Network(module), torch.ones(1, 3, requires_grad=True)
    before = network(x)
    before.sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0 and module.weight.grad is None
    with torch.no_grad():
        module.weight += 1
    assert torch.equal(network(x), before)


def expected_traffic(run):
    """Bytes of a round: FedAvg's and one prototype a class, and what a method does otherwise."""
    n, k, d, name = len(run.clients), toys.CLASSES, run.server.feature_size, run.method.name
    network = n * 4 * sum(run.server.model[name].numel() for name in run.travelling)
    down = {"model": network, "prototypes": n * k * d * 4, "present": n * k}
    tells = run.method.tells
    told = {"counts": n * k * 4, "present": n * k}
    up = {"model": network, "prototypes": n * k * d * 4, tells: told[tells]}
    if name == "FedProto":
        del down["model"], up["model"]
    if name == "RUCR":
        down |= {"shares": n * 4 * k}
        down |= {"anchors": n * k * d * 4} if run.method.anchors == "raw" else {}
    if name == "FedPall":  # an amplifier without biases; BatchNorm's four
        del up["model"]
        amplifier, images = d * 512 + 512 * 512 + 512 * n + 2 * 4 * 512, 21 + 13 + 9
        down |= {"model": n * 4 * (d * k + k), "amplifier": n * 4 * amplifier}
        up |= {"features": 4 * images * d, "labels": 8 * images}
    ways = (("down", down), ("up", up))
    return {f"{way}/{kind}": size for way, sent in ways for kind, size in sent.items()}


@pytest.mark.parametrize(
    ("name", "fields"),
    [*((name, {}) for name in ("FedAPC", "FedProc", "I2PFL", "FedProto", "FedPall", "RUCR")),
     ("RUCR", {"anchors": "raw"})],
)  # fmt: skip
def test_traffic(name, fields):
    run = toys.start(name, fields=fields)
    assert toys.logged(run.run(Silent()), "bytes", 3) == expected_traffic(run)


def test_traffic_of_fpls_clusters():
    """Of a table of two places per class the filled ones go down, one mean per class comes up."""
    run = training("FPL", toys.federation((21, 13, 9, 12, 16)))
    record_messages(run)
    downs, ups = record_messages(run)
    model = 5 * sum(v.numel() * 4 for v in run.server.model.values())
    k, row, filled = toys.CLASSES, 4 * run.server.feature_size, int(downs[0]["present"].sum())
    down = {"model": model, "prototypes": 5 * filled * row, "present": 5 * 2 * k}
    assert count_bytes(downs) == down
    up = {"model": model, "prototypes": 5 * k * row, "present": 5 * k}
    assert count_bytes([u.message for u in ups]) == up
    assert k <= run.server.log["cluster_prototypes"] <= 2 * k


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
    """PartialFed sends all, loads a part; FedBN keeps BatchNorm, or, as FedPall's code, a part."""
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
        step = (method := Quadratic(alpha=0.1, adapt_steps=steps)).before_test(run.protocol, False)
        job = run._adaptation(run.clients[0], 1, step, "personal")
        name = next(n for n, info in run.layout.items() if not info.is_buffer)
        after = only(run, job, method).state[name]
        torch.testing.assert_close(after, factor * job.state[name])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("previous", [None, False, True])
def test_moons_references_use_running_or_batch_statistics(both, previous):
    run = training("MOON", references_in_training_mode=both, previous_in_training_mode=previous)
    run.one_round()
    client = run.clients[0]
    job = run._job(client, run._download(client), 2)
    expected = only(run, job).terms["contrast"]
    statistics = [n for n, info in run.layout.items() if info.is_buffer and not info.is_counter]
    job.received["memory"] = {n: v + 0.3 * (n in statistics) for n, v in client.memory.items()}
    same = only(run, job).terms["contrast"] == expected
    assert same == (both if previous is None else previous)


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
