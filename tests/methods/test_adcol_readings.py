"""ADCOL as FedPall's code runs it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedrepro import methods, papers
from fedrepro.federated.rounds import Training
from tests import toys

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


@pytest.mark.parametrize("table", ["table-1-office10", "table-1-digits", "table-1-pacs"])
def test_fedpalls_baseline_is_as_its_code_runs_it(table):
    arm = next(a for a in papers.load("fedpall").arms(table) if a.method == "ADCOL")
    assert {name: arm.fields[name] for name in FEDPALL} == FEDPALL
