"""Ditto: the personal network's step by hand, FedAvg beside it, what travels and what is tested."""

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import OptimizerSpec
from fedrepro.engine import in_order
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import BN_POLICIES, Batch
from fedrepro.models import Output
from tests import toys
from tests.engine.test_fused import assert_engines_agree


def start(name="Ditto", sizes=(21, 13, 9), fields=None, **changes):
    return Training(
        methods.create(name, **(fields or {})),
        toys.protocol(**changes),
        toys.federation(sizes),
        seed=0,
    )


def rows(curve, measure):
    chosen = curve[curve.measure == measure]
    return chosen.drop(columns="measure").reset_index(drop=True)


class OneWeight:
    """Logits (w x, 0) of one weight w."""

    def __init__(self, weight):
        self.params = {"w": weight}

    def __call__(self, x):
        return Output(x, torch.stack([self.params["w"] * x, 0 * x], dim=1))


def test_loss_and_step_by_hand():
    weight = torch.tensor(3.0, requires_grad=True)
    batch = Batch(torch.tensor([1.0]), torch.tensor([0]))
    terms = methods.create("Ditto", lam=2.0).personal_loss(
        OneWeight(weight), batch, {"model": {"w": torch.tensor(1.0), "mean": torch.tensor(9.0)}}
    )
    assert terms["pull"].item() == 0.5 * 2 * (3 - 1) ** 2
    assert terms["ce"].item() == pytest.approx(torch.tensor(1 + torch.e**-3).log().item())
    sum(terms.values()).backward()
    # grad CE = -(1 - sigmoid(3)), and lambda (v - w)
    assert weight.grad.item() == pytest.approx(-1 / (1 + torch.e**3) + 2 * (3 - 1), rel=1e-6)


def test_a_personal_step_is_a_plain_gradient_step_towards_both():
    """One batch of all images: v - lr (g + lambda (v - w)), g the gradient of CE at v."""
    run = start(sizes=(8, 8), precision="float64", batch_size=8)
    run.one_round()
    client = run.clients[0]
    v, w = client.personal_model, run.server.model
    job = run._job(client, run._download(client), 2, run.method.personal_phases(run.protocol))
    after = only(run, job.__class__(**{**vars(job), "state": v}))
    module, x = run.engine.module.train(), client.data.train.images
    run.engine._load(v)
    module.requires_grad_(True)
    x = (x.double() / 255 - 0.5) / 0.5
    loss = torch.nn.functional.cross_entropy(module(x).logits, client.data.train.labels)
    params = dict(module.named_parameters())
    gradients = dict(zip(params, torch.autograd.grad(loss, params.values()), strict=True))
    for name, g in gradients.items():
        expected = v[name] - 0.05 * (g + 2.0 * (v[name] - w[name]))
        torch.testing.assert_close(after.state[name], expected, rtol=1e-6, atol=1e-9)
    assert after.terms["pull"] > 0 and any(not torch.equal(v[n], w[n]) for n in params)


def only(run, job):
    return in_order(run.engine.train(run.method, [job]))[0]


def test_the_shared_network_is_fedavgs():
    ditto, fedavg = start(), start("FedAvg")
    curves = ditto.run(Silent()), fedavg.run(Silent())
    assert all(torch.equal(v, fedavg.server.model[n]) for n, v in ditto.server.model.items())
    assert rows(curves[0], "bytes").equals(rows(curves[1], "bytes"))


def test_each_client_is_tested_with_its_personal_network():
    run = start()
    curve = run.run(Silent())
    assert run.judged == ("twin",)
    accuracy = curve[(curve.measure == "accuracy") & (curve["round"] == 3)]
    tested = accuracy[accuracy.split == "test"].set_index("domain").value
    for client in run.clients:
        own = run.federation.tests[client.data.domain]
        assert run.engine.evaluate(client.personal_model, own)[0] == tested[client.data.domain]
        assert set(client.personal_model) == set(run.server.model)
        assert any(
            not torch.equal(v, run.server.model[n]) for n, v in client.personal_model.items()
        )


def distance(lam):
    """How far the personal networks end from the shared one."""
    run = start(fields={"lam": lam}, optimizer={"lr": 0.05})
    run.run(Silent())
    names = [n for n, info in run.layout.items() if not info.is_buffer]
    model = run.server.model
    return sum((c.personal_model[n] - model[n]).square().sum() for c in run.clients for n in names)


def test_lambda_pulls_the_personal_network_to_the_shared_one():
    assert distance(10.0) < distance(2.0) < distance(0.0)


def test_without_lambda_a_personal_network_is_its_own_clients_alone():
    beside, alone = start(fields={"lam": 0.0}), start(fields={"lam": 0.0}, sizes=(21,))
    beside.run(Silent()), alone.run(Silent())
    assert all(
        torch.equal(v, alone.clients[0].personal_model[n])
        for n, v in beside.clients[0].personal_model.items()
    )


def test_the_personal_phase():
    protocol = toys.protocol()
    (phase,) = methods.create("Ditto").personal_phases(protocol)
    assert phase.epochs == 1 and phase.optimizer == OptimizerSpec(lr=0.05)
    (other,) = methods.create("Ditto", personal_epochs=None, personal_lr=0.1).personal_phases(
        protocol
    )
    assert other.epochs == protocol.local_epochs and other.optimizer == OptimizerSpec(lr=0.1)


@pytest.mark.parametrize("policy", BN_POLICIES)
def test_what_does_not_travel_pulls_nothing(policy):
    run = start(fields={"bn_policy": policy})
    run.run(Silent())
    assert all(v.isfinite().all() for c in run.clients for v in c.personal_model.values())


@pytest.mark.parametrize(
    "fields", [{"personal_epochs": None}, {"lam": 0.1}, {"bn_policy": "local"}]
)
def test_every_reading_runs_the_same_in_both_engines(fields):
    assert_engines_agree(name="Ditto", fields=fields, rounds=2, local_epochs=2, sizes=(21, 13, 13))
