"""FADA's runs: what travels, and the target's labels."""

from dataclasses import replace

import pytest
import torch

from fedrepro import methods, papers
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.data.domains import DATASETS
from fedrepro.data.federation import Samples
from fedrepro.data.transforms import normalise
from fedrepro.federated.rounds import Training
from tests import toys
from tests.methods.test_methods import only, record_messages, training

TERMS = {"ce", "fool", "identify", "confuse", "rebuild", "information"}


# What travels.


def test_messages():
    run = training("FADA", target=1)
    downs, ups = record_messages(run)
    assert [set(down) for down in downs] == [
        {"discriminator", "model"},
        {"discriminators", "model"},
        {"discriminator", "model"},
    ]
    assert all(set(up.message) == {"features", "network"} for up in ups)
    down = set(downs[0]["model"])
    assert {name.split(".")[0] for name in down} == {
        *("encoder", "projection", "predictor", "invariant")
    }
    assert set(ups[0].message["network"]) == down
    assert {n.split(".")[0] for n in ups[1].message["network"]} == {"encoder", "projection"}
    downs, ups = record_messages(run)
    assert [set(down) for down in downs][1] == {"discriminators", "model", "candidates"}
    assert set(ups[1].message) == {"features", "network", "scatter"}
    assert run.judged == ("personal",)


def test_candidates_are_networks_with_the_batchs_own_statistics():
    run = training("FADA", target=1)
    first = dict(run.server.model)
    run.one_round()
    run.server.round = 2
    target = run.clients[1]
    images = target.data.train.images
    found = run._download(target)["candidates"](images)
    run.engine._load(first)
    module = run.engine.module.train()
    expected = module(normalise(images, run.protocol.data.normalise)).features
    torch.testing.assert_close(found[0], expected)
    assert found.shape == (3, 13, 16) and not torch.allclose(found[1], found[2])


def test_equal_weights_need_no_candidates():
    run = training("FADA", attention="equal")
    run.one_round(), run.one_round()
    assert "candidates" not in run._download(run.clients[0])
    assert run.server.log["attention1"] == run.server.log["attention2"] == 0.5


# The target's labels.


def with_labels_turned(client):
    federation = toys.federation()
    data = federation.clients[client]
    train = Samples(data.train.images, (data.train.labels + 1) % toys.CLASSES)
    clients = list(federation.clients)
    clients[client] = replace(data, train=train)
    return replace(federation, clients=tuple(clients))


def everything(run):
    run.run(Silent())
    groups = [named for client in run.clients for named in client.groups.values()]
    return [run.server.state(), *groups]


@pytest.mark.parametrize("policy", ["recompute", "average"])
def test_the_targets_labels_change_no_bit(policy):
    expected = everything(training("FADA", target=1, bn_policy=policy))
    found = everything(training("FADA", with_labels_turned(1), target=1, bn_policy=policy))
    for a, b in zip(expected, found, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    other = everything(training("FADA", with_labels_turned(0), target=1, bn_policy=policy))
    assert any(not torch.equal(expected[0][name], other[0][name]) for name in expected[0])


def test_the_target_trains_its_extractor_alone():
    run = training("FADA", target=1)
    run.one_round()
    client = run.clients[1]
    job = run._job(client, run._download(client), 2)
    result = only(run, job)
    assert set(result.terms) == {"fool"}
    for name, info in run.layout.items():
        if not info.is_buffer:
            same = torch.equal(result.state[name], job.state[name])
            assert same == (info.part not in ("encoder", "projection")), name


# A whole run.


def test_every_term_of_a_source_is_alive():
    run = training("FADA", target=-1)
    curve = run.run(Silent())
    rows = curve[(curve.measure == "term") & (curve["round"] == 2)]
    assert set(rows[rows.domain == "domain0"].subject) == TERMS
    assert set(rows[rows.domain == "domain2"].subject) == {"fool"}
    assert (rows.value > 0).all()


def test_wrong_values_are_single_clear_lines():
    for target in (3, -4):
        with pytest.raises(FedReproError, match=f"FADA target = {target}: choose one of 0 to 2"):
            training("FADA", target=target)
    with pytest.raises(FedReproError, match="of two clients at least"):
        training("FADA", toys.federation((8,)))
    with pytest.raises(FedReproError, match="FADA needs its target in every round"):
        method, protocol = methods.create("FADA"), toys.protocol(participation=0.5)
        Training(method, protocol, toys.federation(), seed=0)
    with pytest.raises(FedReproError, match="bn_policy"):
        methods.create("FADA", bn_policy="local")
    with pytest.raises(FedReproError, match="alignment = -1: give a value at least 0"):
        methods.create("FADA", alignment=-1)


@pytest.mark.parametrize("dataset", ["digits5", "digits5-standin", "minidigits"])
def test_table_21_names_every_client(dataset):
    arms = papers.load("adcol").arms("table-21", dataset, "reduced")
    targets = [arm.fields["target"] for arm in arms if arm.method == "FADA"]
    clients = range(len(DATASETS[dataset]))
    assert {clients[target] for target in targets} == set(clients)
