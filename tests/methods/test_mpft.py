"""MPFT, and the baselines as its public code runs them, each departure in closed form."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.federated import metrics
from fedrepro.methods.base import Phase, Upload
from fedrepro.methods.mpft import MPFT
from tests import embedded, toys
from tests.engine.test_stacked import assert_same_run
from tests.methods.test_methods import record_messages

RANDOM = {"prototypes": "random", "rate": 0.3}
QUICK = {"server_epochs": 12, "server_warmup": 2}


def one_round(**fields):
    run = embedded.start("MPFT", fields={**QUICK, **fields}, rounds=1)
    return run, *record_messages(run)


def test_the_random_rule_sends_a_share_of_the_embeddings_each_once():
    run, _, ups = one_round(**RANDOM)
    for client, up in zip(run.clients, ups, strict=True):
        parts = up.message["prototypes"].split(up.message["counts"].tolist())
        for label, sent in enumerate(parts):
            own = client.data.train.images[client.data.train.labels == label]
            assert len(sent) == math.ceil(0.3 * len(own))
            where = (sent[:, None] == own[None]).all(dim=2)
            assert (where.sum(dim=1) == 1).all() and (where.sum(dim=0) <= 1).all()


def test_the_cluster_rule_keeps_the_best_of_its_starts():
    z = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    found = (MPFT(prototypes="cluster", rate=0.1, starts=n).chosen(z, None) for n in (1, 10))
    one, ten = (torch.cdist(z, means).min(dim=1).values.square().sum() for means in found)
    assert ten < one


@pytest.mark.parametrize(("sent", "read"), [(28, 20), (20, 20), (7, 7)])
def test_the_server_drops_the_last_incomplete_batch_of_several(sent, read, monkeypatch):
    run, seen = embedded.start("MPFT", fields={"server_batch": 10}), []
    monkeypatch.setattr(MPFT, "fit", lambda *given: seen.append(len(given[-1])) or [0.0])
    z, counts = torch.zeros(sent, embedded.VALUES), torch.tensor([sent, 0, 0])
    run.method.server_step(run.server, [Upload(0, sent, {"prototypes": z, "counts": counts})])
    assert seen == [read]


def test_noise_has_the_scale_and_the_share():
    before, after = (
        torch.cat([up.message["prototypes"] for up in one_round(prototypes="random", **how)[2]])
        for how in ({"rate": 1.0}, {"rate": 1.0, "noise_scale": 4.0, "noise_share": 0.5})
    )
    assert (after - before).std().item() == pytest.approx(2.0, rel=0.1)
    assert (after - before).mean().abs().item() < 0.2


def test_prototypes_go_up_and_the_adapter_down_and_learns():
    run = embedded.start("MPFT", fields={**RANDOM, "rate": 1.0}, rounds=1)
    train = run.clients[0].data.train
    before = run.engine.evaluate(run.server.model, train)[1]
    downs, ups = record_messages(run)
    assert run.engine.evaluate(run.server.model, train)[1] < before
    curve = run.curve()
    sent = curve[curve.measure == "bytes"].set_index("subject").value.to_dict()
    adapter = 4 * 2 * embedded.VALUES * (embedded.VALUES // 4)
    rows = sum(len(up.message["prototypes"]) for up in ups)
    assert sent == {
        "down/model": 3 * adapter,
        "up/prototypes": 4 * rows * embedded.VALUES,
        "up/counts": 3 * 8 * toys.CLASSES,
    }
    assert all("predictor.weight" not in down["model"] for down in downs)


def test_a_client_adapts_the_adapter_it_received_to_a_few_images_of_each_class():
    run, *_ = one_round(shots=2, adaptation_lr=0.05)
    assert run.evaluated == ("personal",)
    job = run._adaptation(run.clients[0], 1, run.method.before_test(run.protocol, True), "personal")
    assert job.samples.labels.tolist() == [0, 1, 2, 0, 1, 2] and job.batch_size == 8
    assert torch.equal(job.samples.images, run.clients[0].data.train.images[:6])
    for client in run.clients:
        adapted = run.tested_networks(1)[client.data.domain]
        own = client.personal(run.server.model)
        assert any(not torch.equal(adapted[n], own[n]) for n in own)
        assert torch.equal(adapted["predictor.weight"], own["predictor.weight"])


@pytest.mark.parametrize("fields", [RANDOM, {"shots": 3, "noise_scale": 0.5}])
def test_resumed_equals_uninterrupted_bit_for_bit(fields, tmp_path):
    toys.assert_resumes(lambda: embedded.start("MPFT", fields={**QUICK, **fields}), tmp_path)


@pytest.mark.parametrize("name, fields", [("MPFT", {}), ("FedProto", {"prototypes_of": "inputs"})])
def test_images_are_one_clear_error(name, fields):
    with pytest.raises(FedReproError, match="works on embeddings; use frozen features"):
        toys.start(name, fields=fields).one_round()


ENGINES = "reference", "fused"
PLAIN = {"kind": "sgd", "lr": 0.5, "clip": 0.01}
FIELDS = {
    "Ditto": {"personal_clip": 1.0, "stops_by": "common"},
    "FedProx": {"clipped": "ce", "stops_by": "trained"},
    "FedProto": {"prototypes_of": "inputs", "inference": "prototype", "lam": 0.0},
    "DBE": {"mean_lr": 0.001, "stops_by": "common", "first_round": "averaged"},
}


def one_step(engine: str, name: str, fields: dict[str, object], phases: str):
    """A step of the first client on all of its images, from weights away from those it received.
    Returns the weights before and received, the gradient of CE alone, and the weights after."""
    run = embedded.start(name, engine, sizes=(8, 8), fields=fields, batch_size=8, local_epochs=1,
                         optimizer=PLAIN, precision="float64")  # fmt: skip
    client, w = run.clients[0], {n: v.clone() for n, v in run.server.model.items()}
    stream = torch.Generator().manual_seed(0)
    v = {n: x + 0.3 * torch.rand(x.shape, generator=stream, dtype=x.dtype)
         if n in run.travelling else x for n, x in w.items()}  # fmt: skip
    chosen: tuple[Phase, ...] = getattr(run.method, phases)(run.protocol)
    job = replace(run._job(client, run._download(client), 1), phases=chosen, state=v)
    after = dict(run.engine.train(run.method, [job]))[0].state
    module = run.engine.module.train()
    run.engine._load(v)
    module.requires_grad_(True)
    x, y = client.data.train.images.double(), client.data.train.labels
    params = {n: p for n, p in module.named_parameters() if n in run.travelling}
    found = torch.autograd.grad(cross_entropy(module(x).logits, y), list(params.values()))
    return v, w, dict(zip(params, found, strict=True)), after


PULLED = ("Ditto", {"lam": 2.0, "personal_clip": 0.01}, "personal_phases", 2.0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "fields", "phases", "pull"), [
    PULLED, ("FedProx", {"mu": 5.0, "clipped": "ce"}, "phases", 5.0)])  # fmt: skip
def test_only_the_gradient_of_ce_is_shortened(engine, name, fields, phases, pull):
    """v - lr (g c / |g| + pull (v - w)): the pull, far longer than c, is added whole."""
    v, w, gradient, after = one_step(engine, name, fields, phases)
    length = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))
    assert length > 0.01
    for key, g in gradient.items():
        expected = v[key] - 0.5 * (g * 0.01 / length + pull * (v[key] - w[key]))
        torch.testing.assert_close(after[key], expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_dbes_client_mean_has_an_adamw_of_its_own(engine):
    """AdamW's first step is the rate itself towards each entry's sign, whatever its length: 0.001
    for m at once, a tenth of the protocol's rate for the adapter, less decay."""
    slow = {**embedded.ADAMW, "lr": 0.1, "warmup": 10}
    run = embedded.start("DBE", engine, fields=FIELDS["DBE"], sizes=(8, 8), batch_size=8,
                         local_epochs=1, optimizer=slow, precision="float64")  # fmt: skip
    client = run.clients[0]
    job = run._job(client, {**run._download(client), "common_mean": torch.zeros(12).double()}, 1)
    state = {**job.state, "started": torch.ones(()).double()}
    after = dict(run.engine.train(run.method, [replace(job, state=state)]))[0].state
    moved = after["client_mean"].abs()
    assert torch.allclose(moved, torch.full_like(moved, 0.001), rtol=1e-3)
    for name in run.travelling:
        step = (after[name] - (1 - 0.01 * 0.01) * job.state[name]).abs()
        far = step[step > 0.005]  # where the gradient is no rounding error
        assert len(far) > 20 and far.sub(0.01).abs().median() < 1e-6


@pytest.mark.parametrize(("name", "watched"), [("Ditto", "global"), ("DBE", "global"),
                                               ("FedProx", "trained")])  # fmt: skip
def test_the_watched_networks_stop_the_run_and_pick_its_round(name, watched):
    stop = {"patience": 2, "untrained": True}
    run = embedded.start(name, fields=FIELDS[name], rounds=12, early_stop=stop)
    curve = run.run(Silent())
    held = curve[curve.split == "validation"]
    assert set(held.subject) == {watched} != {run.evaluated[0]}
    losses = held[held.measure == "loss"].groupby("round").value.mean()
    assert metrics.best_round(curve) == losses.idxmin()
    assert run.log.stopped(run.round) == (run.round - losses.idxmin() >= 2)
    model = run.server.model
    states = [c.network(watched, model) if watched != "global" else model for c in run.clients]
    held = [client.data.validation for client in run.clients]
    now = [run.engine.evaluate(*given)[1] for given in zip(states, held, strict=True)]
    assert losses[run.round] == pytest.approx(sum(now) / len(now))
    tested = metrics.accuracies(curve[curve.subject == run.evaluated[0]])["avg"][losses.idxmin()]
    assert metrics.scores(curve, "validation")["avg"] == pytest.approx(tested)


def test_dbes_validation_leaves_the_client_mean_out():
    run = embedded.start("DBE", fields=FIELDS["DBE"])
    run.run(Silent())
    assert not run.server.model["client_mean"].any() and run.server.model["started"] == 1
    assert all(c.kept["client_mean"].any() for c in run.clients)


def test_fedproto_sends_means_of_the_frozen_embeddings():
    run = embedded.start("FedProto", fields=FIELDS["FedProto"])
    for _ in range(2):  # the adapters move, the prototypes do not
        for client, up in zip(run.clients, record_messages(run)[1], strict=True):
            train = client.data.train
            own = [train.images[train.labels == k].mean(dim=0) for k in range(3)]
            torch.testing.assert_close(up.message["prototypes"], torch.stack(own))


def test_weights_that_meet_tensors_and_not_clients():
    """Tensor j is the clients' sum times client j's share of batches of 4: 6, 4 and 3 of 13."""
    run = embedded.start("FedAvg", weighting="tensors")
    _, ups = record_messages(embedded.start("FedAvg", weighting="samples"))
    sums = [sum(up.message["model"][name] for up in ups) for name in run.travelling]
    run.one_round()
    for name, total, share in zip(run.travelling, sums, (6 / 13, 4 / 13), strict=True):
        torch.testing.assert_close(run.server.model[name], share * total)


@pytest.mark.parametrize("name", [*FIELDS, "FedAvg", "SOLO", "MOON"])
def test_both_engines_agree_and_the_head_neither_moves_nor_travels(name):
    settings = {"precision": "float64", "weighting": "tensors", "batch_size": 8}
    settings |= {"fields": FIELDS.get(name), "sizes": (21, 13, 9, 13)}
    runs = [embedded.start(name, engine, **settings) for engine in ENGINES]
    head = runs[0].server.model["predictor.weight"].clone()
    assert_same_run(*runs)
    assert torch.equal(runs[0].server.model["predictor.weight"], head)
    assert "predictor.weight" not in [*runs[0].travelling, *runs[0].broadcast]
