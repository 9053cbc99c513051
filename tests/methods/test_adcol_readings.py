"""ADCOL as its text leaves it open, and as FedPall's code runs it: by hand where it can be."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from fedrepro import methods, papers
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.server import Server
from fedrepro.models import Output
from tests import toys
from tests.engine.test_fused import assert_engines_agree

FEDPALL = {
    "discriminator_batch_norm": True,
    "discriminator_in_training_mode": True,
    "closing_pass": True,
    "discriminator_weight_decay": 1e-5,
}


def training(settings=None, sizes=(21, 13), **fields):
    method = methods.create("ADCOL", **fields)
    return Training(method, toys.protocol(**(settings or {})), toys.federation(sizes), seed=0)


def features(run, column):
    """Representations whose first value is given and whose others are 0."""
    z = torch.zeros(len(column), run.server.feature_size)
    z[:, 0] = torch.tensor(column)
    return z


def personal(run):
    return [client.personal(run.server.model) for client in run.clients]


@pytest.mark.parametrize(
    ("mode", "kl"),
    [
        # h = z = 9, 11: log cosh h = h - log 2 to eight digits
        (False, 10 - math.log(2)),
        # h = z less the batch's mean over its deviation = -1, 1
        (True, math.log(math.cosh(1))),
    ],
)
def test_the_kl_term_under_both_modes_of_a_discriminator_with_batch_norm(mode, kl):
    """Logits (h, -h) make KL(U || D) = log cosh h."""
    run = training(
        discriminator_hidden=(1,),
        discriminator_batch_norm=True,
        discriminator_activation=False,
        discriminator_in_training_mode=mode,
    )
    module = run.server.modules["discriminator"]
    module.bn1.eps = 1e-12
    module.linear1.weight.data = features(run, [1.0])
    module.linear2.weight.data = torch.tensor([[1.0], [-1.0]])
    received = run.method.download(run.server, 0)
    out = Output(features=features(run, [9.0, 11.0]), logits=torch.zeros(2, toys.CLASSES))
    batch = Batch(torch.zeros(2, 3, 4, 4), torch.tensor([0, 1]))
    terms = run.method.client_loss(lambda x: out, batch, received)
    assert float(terms["kl"]) == pytest.approx(kl, rel=1e-6)


def test_the_closing_pass_moves_batch_statistics_and_nothing_else():
    closed, plain = training(closing_pass=True), training()
    closed.one_round(), plain.one_round()
    for state, other in zip(personal(closed), personal(plain), strict=True):
        for name, info in closed.layout.items():
            if not info.is_counter:
                assert torch.equal(state[name], other[name]) == (not info.is_buffer), name


@pytest.mark.parametrize("closing", [True, False])
def test_features_are_sent_of_augmented_images_after_the_closing_pass(closing):
    asked = []
    client = SimpleNamespace(
        received={},
        augmentation="as in training",
        features=lambda *how: asked.append(how) or torch.zeros(2, 3),
    )
    methods.create("ADCOL", closing_pass=closing).upload(client)
    assert asked == [(True, "as in training" if closing else None)]


@pytest.mark.parametrize(("decay", "factor"), [(0.5, 1 - 0.01 * 0.5), (0.0, 1), (None, 1 - 0.002)])
def test_weight_decay_draws_the_discriminator_to_zero(decay, factor):
    """On representations of zeros a linear D's weights have no gradient but the decay: a step of
    0.01 leaves 1 - 0.01 decay of them; None is the clients' decay, 0.2 here."""
    run = training(
        {"batch_size": 8, "optimizer.weight_decay": 0.2},
        discriminator_hidden=(),
        discriminator_weight_decay=decay,
    )
    module = run.server.modules["discriminator"]
    before = module.linear1.weight.detach().clone()
    zeros = {"representations": features(run, [0.0, 0.0])}
    run.method.server_step(run.server, [Upload(0, 2, dict(zeros)), Upload(1, 2, dict(zeros))])
    torch.testing.assert_close(module.linear1.weight, before * factor, rtol=1e-6, atol=0)
    assert decay == 0.0 or not torch.equal(module.linear1.weight, before)


def test_the_log_has_the_accuracy_on_fresh_uploads_before_the_discriminator_learns():
    """D says client 0 where the first value is positive: right for three of four."""
    run = training(discriminator_hidden=(), discriminator_epochs=50)
    module = run.server.modules["discriminator"]
    module.linear1.weight.data = features(run, [1.0, -1.0])
    module.linear1.bias.data.zero_()
    uploads = [
        Upload(0, 2, {"representations": features(run, [2.0, -1.0])}),
        Upload(1, 2, {"representations": features(run, [-1.0, -3.0])}),
    ]
    run.method.server_step(run.server, uploads)
    assert run.server.log["discriminator_accuracy_before"] == 75.0
    run.one_round()
    curve = run.curve()
    assert (curve.subject == "discriminator_accuracy_before").sum() == 1


@pytest.mark.parametrize("fields", [{}, FEDPALL])
def test_that_log_changes_no_number_of_training(fields, monkeypatch):
    logged = training(**fields)
    logged.one_round(), logged.one_round()
    monkeypatch.setattr(Server, "accuracy", lambda *_: float("nan"))
    plain = training(**fields)
    plain.one_round(), plain.one_round()
    for name, value in logged.server.state().items():
        assert torch.equal(value, plain.server.state()[name]), name
    for state, other in zip(personal(logged), personal(plain), strict=True):
        assert all(torch.equal(state[name], other[name]) for name in state)


@pytest.mark.parametrize(
    "model", ["small-cnn", pytest.param("adcol-resnet50", marks=pytest.mark.slow)]
)
def test_recomputed_statistics_are_tested_with_and_change_nothing_else(model):
    """The same weights, other running statistics: a run under each policy tells what of a collapse
    is theirs."""
    settings = {"model": model, "local_epochs": 1}
    own, anew = (training(settings, (4, 4), bn_policy=p) for p in ("local", "recompute"))
    own.one_round(), anew.one_round()
    for client, state, other in zip(anew.clients, personal(anew), personal(own), strict=True):
        right = anew.engine.bn_statistics(state, client.data.train)
        assert right
        for name, info in anew.layout.items():
            if not info.is_counter:
                assert torch.equal(state[name], other[name]) == (name not in right), name
        assert all(torch.equal(state[name], value) for name, value in right.items())


def test_engines_agree_on_fedpalls_adcol():
    assert_engines_agree(name="ADCOL", fields=FEDPALL)


@pytest.mark.parametrize("table", ["table-1-office10", "table-1-digits", "table-1-pacs"])
def test_fedpalls_baseline_is_as_its_code_runs_it(table):
    arm = next(a for a in papers.load("fedpall").arms(table) if a.method == "ADCOL")
    assert {name: arm.fields[name] for name in FEDPALL} == FEDPALL
