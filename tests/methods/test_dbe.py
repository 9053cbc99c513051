"""DBE, worked out by hand: network, loss, first round, what stays and what travels."""

import math

import pytest
import torch
from torch import nn

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.dbe import ShiftedModel
from fedrepro.methods.messages import tensors_of
from fedrepro.models import FLModel
from tests import toys
from tests.engine.test_fused import assert_engines_agree


def network(momentum=0.25, mean=(1.0, -1.0), started=1.0):
    """Features are the input, logits the shifted features; m given."""
    predictor = nn.Linear(2, 2, bias=False)
    model = ShiftedModel(FLModel(nn.Identity(), nn.Identity(), predictor, 2), momentum)
    model.load_state_dict(
        {
            "predictor.weight": torch.eye(2),
            "client_mean": torch.tensor(mean),
            "running_mean": torch.zeros(2),
            "started": torch.tensor(started),
        }
    )
    return model


X = torch.tensor([[1.0, 2.0], [3.0, 6.0]])  # mean (2, 4)


def test_the_predictor_reads_shifted_features():
    out = network()(X)
    assert out.features.tolist() == X.tolist()
    assert out.logits.tolist() == [[2, 1], [4, 5]]
    assert network(started=0.0)(X).logits.tolist() == X.tolist()


def test_the_running_mean_follows_training_batches():
    model = network()
    assert model(X).running.tolist() == [0.5, 1]
    assert model(2 * X).running.tolist() == [0.75 * 0.5 + 0.25 * 4, 0.75 + 0.25 * 8]
    before = model.running_mean.clone()
    model.eval()(X)
    assert torch.equal(model.running_mean, before)


def terms(x=X, model=None, **fields):
    received = {"common_mean": torch.tensor([1.5, 0.0])}
    batch = Batch(x, torch.tensor([0, 1]))
    return methods.create("DBE", **fields).client_loss(model or network(), batch, received)


def test_loss_by_hand():
    found = terms(kappa=3.0)
    # running mean (0.5, 1) against (1.5, 0), a mean over two dimensions, halved
    assert found["mean"].item() == pytest.approx(3 * 0.5 * (1 + 1) / 2)
    # logits (2, 1) of class 0 and (4, 5) of class 1
    assert found["ce"].item() == pytest.approx(math.log(1 + math.exp(-1)))
    assert terms(model=network(started=0.0))["mean"] == 0


def test_only_this_batchs_part_of_the_running_mean_has_a_gradient():
    model = network()
    model(X)
    x = X.clone().requires_grad_(True)
    terms(x=x, model=model)["mean"].backward()
    # r = 0.75 (0.5, 1) + 0.25 (2, 4); dL/dr = (r - g)/2; dr/dx = 0.25/2
    expected = [(0.875 - 1.5) / 2 * 0.125, (1.75 - 0) / 2 * 0.125]
    assert x.grad.tolist() == [pytest.approx(expected)] * 2


def start(sizes=(21, 13, 9), name="DBE", fields=None, **changes):
    method = methods.create(name, **(fields or {}))
    return Training(method, toys.protocol(**changes), toys.federation(sizes), seed=0)


def test_the_first_server_step_by_hand():
    run = start()
    initial = {n: run.server.model[n] for n in run.travelling}
    run.server.round = 1
    run.server.model |= {n: v + 1 for n, v in initial.items()}  # what averaging left there
    d = run.server.feature_size
    uploads = [
        Upload(0, 1, {"running_mean": torch.tensor([4.0, 0.0])}),
        Upload(1, 3, {"running_mean": torch.tensor([0.0, 4.0])}),
    ]
    assert run._download(run.clients[0]).keys() == {"model"}
    run.method.server_step(run.server, uploads)
    assert run.server.tensors["common_mean"].tolist() == [1, 3]
    assert all(torch.equal(run.server.model[n], v) for n, v in initial.items())
    assert run.server.model["started"] == 1
    assert set(run.server.tensors) == {"common_mean", "told"} and d == 16


def equal(one, other, names):
    return all(torch.equal(one[n], other[n]) for n in names)


def test_round_one_is_fedavgs_and_its_networks_are_discarded():
    fedavg = start(name="FedAvg")
    before = dict(fedavg.server.model)
    fedavg.one_round()
    discarded, averaged = start(), start(fields={"first_round": "averaged"})
    discarded.one_round(), averaged.one_round()
    assert equal(discarded.server.model, before, before)
    assert equal(averaged.server.model, fedavg.server.model, before)
    assert not equal(fedavg.server.model, before, before)
    means = [run.server.tensors["common_mean"] for run in (discarded, averaged)]
    assert torch.equal(*means) and means[0].abs().sum() > 0


def test_the_common_mean_is_that_of_the_clients_running_means():
    run = start()
    seen, upload = [], run.method.upload

    def up(view):
        seen.append((len(view.labels), view.state["running_mean"]))
        return upload(view)

    object.__setattr__(run.method, "upload", up)
    run.one_round()
    expected = sum(n / (21 + 13 + 9) * mean for n, mean in seen)
    torch.testing.assert_close(run.server.tensors["common_mean"], expected)


def test_the_client_mean_stays_and_is_trained_from_round_two_on():
    run = start()
    run.one_round()
    assert all(set(c.kept) == {"client_mean"} for c in run.clients)
    assert all((c.kept["client_mean"] == 0).all() for c in run.clients)
    run.one_round()
    first, second, _ = (c.kept["client_mean"] for c in run.clients)
    assert first.abs().sum() > 0 and not torch.allclose(first, second)
    own = {"client_mean", "running_mean", "started"}
    assert not own & set(run.travelling) and not own & set(run.descending)
    assert run.judged == ("personal",)


def test_the_running_mean_begins_each_round_at_zero():
    run = start()
    run.one_round(), run.one_round()
    for client in run.clients:
        state = client.personal(run.server.model)
        assert (state["running_mean"] == 0).all() and state["started"] == 1
        assert torch.equal(state["client_mean"], client.kept["client_mean"])


def sizes_by_round(curve, kind):
    rows = curve[(curve.measure == "bytes") & (curve.subject == kind)]
    return rows.set_index("round").value.to_dict()


def test_traffic_is_fedavgs_and_each_mean_once():
    run, fedavg = start(), start(name="FedAvg")
    curve, other = run.run(Silent()), fedavg.run(Silent())
    size = 3 * 4 * run.server.feature_size
    assert sizes_by_round(curve, "up/running_mean") == {1: size}
    assert sizes_by_round(curve, "down/common_mean") == {2: size}
    for kind in ("up/model", "down/model"):
        assert sizes_by_round(curve, kind) == sizes_by_round(other, kind)
    kinds = set(curve[curve.measure == "bytes"].subject)
    assert kinds == {"up/model", "down/model", "up/running_mean", "down/common_mean"}


def test_who_joins_late_is_told_once_and_remembers():
    run = start(participation=0.34, rounds=9)
    curve = run.run(Silent())
    told = sizes_by_round(curve, "down/common_mean")
    size = 4 * run.server.feature_size
    later = [run._participants(number)[0].index for number in range(2, 10)]
    firsts = {2 + later.index(client) for client in set(later)}
    assert told == dict.fromkeys(firsts, size) and len(firsts) == 3
    for client in run.clients:
        assert torch.equal(client.memory["common_mean"], run.server.tensors["common_mean"])


def test_a_remembered_mean_is_what_the_loss_reads():
    run = start()
    run.one_round(), run.one_round()
    client = run.clients[0]
    received = run._job(client, run._download(client), 3).received
    assert "common_mean" not in received
    assert torch.equal(
        tensors_of(received, "memory")["common_mean"], run.server.tensors["common_mean"]
    )


def test_the_regulariser_draws_the_means_together():
    spread = []
    for kappa in (0.0, 20.0):
        run = start(fields={"kappa": kappa, "momentum": 1.0}, rounds=4)
        run.run(Silent())
        common = run.server.tensors["common_mean"]
        for client in run.clients:
            z = run.engine.features(
                client.personal(run.server.model), client.data.train, training=True
            )
            spread.append((z.mean(0) - common).square().mean())
    assert max(spread[3:]) < min(spread[:3]) / 2


def mean_term(model):
    run = start(model=model, fields={"momentum": 1.0}, rounds=2)
    curve = run.run(Silent())
    rows = curve[(curve.measure == "term") & (curve.subject == "mean")]
    return rows.groupby("round").value.mean().to_dict()


def test_the_regulariser_is_alive_from_round_two_on():
    free, normalised = mean_term("pfl-cnn"), mean_term("tiny-cnn")
    assert free[1] == normalised[1] == 0
    # features of tiny-cnn end in BatchNorm: their means hardly leave its bias
    assert free[2] > 10 * normalised[2] > 0


@pytest.mark.parametrize(
    "fields",
    [{"first_round": "averaged"}, {"momentum": 1.0, "kappa": 10.0}, {"bn_policy": "local"}],
)
def test_every_reading_runs_the_same_in_both_engines(fields):
    assert_engines_agree(name="DBE", fields=fields, rounds=3, local_epochs=1, sizes=(21, 13, 13))


def test_partial_participation_runs_the_same_in_both_engines():
    assert_engines_agree(name="DBE", participation=0.67, rounds=5, local_epochs=1, sizes=(13, 9, 9))
