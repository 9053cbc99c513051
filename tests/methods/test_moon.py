"""MOON: the contrast by hand, what a client remembers, what travels."""

import math
from dataclasses import replace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.methods.base import Batch
from fedrepro.methods.messages import count_bytes
from fedrepro.models import Output
from tests import toys
from tests.engine.test_fused import assert_engines_agree
from tests.methods.test_methods import only, record_messages, training


def moving_terms(run):
    """The terms without any one of which the first client's next update is another."""
    client = run.clients[0]
    job = run._job(client, run._download(client), run.round + 1)
    whole = only(run, job)

    def without(term):
        class Lacking(type(run.method)):
            def client_loss(self, model, batch, received):
                terms = super().client_loss(model, batch, received)
                return {key: 0 * value if key == term else value for key, value in terms.items()}

        return Lacking(**run.method.fields())

    lacking = {term: only(run, job, without(term)).state for term in whole.terms}
    return {
        term
        for term, state in lacking.items()
        if any(not torch.equal(state[name], value) for name, value in whole.state.items())
    }


class Plane:
    """A network of one matrix, whose features are its logits."""

    def __init__(self, w):
        self.params = {"w": w}

    def __call__(self, x):
        return self.run(self.params, x)

    def run(self, tensors, x, training=False):
        z = x @ tensors["w"].T
        return Output(z, z)


def received(now, before):
    return {"model": {"w": torch.tensor(now)}, "memory": {"w": torch.tensor(before)}}


def test_loss_by_hand():
    """z = (3, 4), at cosine 0.6 to the received network's feature and 0.8 to the previous one's."""
    method = methods.create("MOON", mu=5.0)
    message = received([[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]])
    batch = Batch(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    terms = method.client_loss(Plane(torch.tensor([[3.0, 0.0], [4.0, 0.0]])), batch, message)
    assert terms["contrast"].item() == pytest.approx(5 * math.log(1 + math.exp((0.8 - 0.6) / 0.5)))
    assert terms["ce"].item() == pytest.approx(math.log(1 + math.exp(-1)))
    warm = methods.create("MOON", temperature=1.0)
    terms = warm.client_loss(Plane(torch.tensor([[3.0, 0.0], [4.0, 0.0]])), batch, message)
    assert terms["contrast"].item() == pytest.approx(math.log(1 + math.exp(0.8 - 0.6)))


def test_loss_pulls_towards_the_received_network():
    w = torch.eye(2, requires_grad=True)
    message = received([[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])
    batch = Batch(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    terms = methods.create("MOON").client_loss(Plane(w), batch, message)
    (gradient,) = torch.autograd.grad(terms["contrast"], w)
    assert gradient[1, 0] < 0  # more of (0, 1), what the received network makes of (1, 0)


def test_the_first_round_is_fedavgs():
    run, plain = training("MOON", mu=5.0), training("FedAvg")
    run.one_round(), plain.one_round()
    for name, value in plain.server.model.items():
        torch.testing.assert_close(run.server.model[name], value)
    curve = run.curve()
    contrast = curve[(curve.measure == "term") & (curve.subject == "contrast")].value.iloc[0]
    # The first step's networks are equal; later ones stand as far from one as from the other.
    assert contrast == pytest.approx(5 * math.log(2))
    run.one_round(), plain.one_round()
    assert any(not torch.allclose(run.server.model[n], v) for n, v in plain.server.model.items())


def test_every_term_is_alive_from_the_second_round_on():
    run = training("MOON")
    run.one_round()
    assert moving_terms(run) == {"ce", "contrast"}


def test_a_client_remembers_the_network_it_trained():
    run = training("MOON")
    for _ in range(2):
        _, ups = record_messages(run)
        for client, up in zip(run.clients, ups, strict=True):
            assert client.memory.keys() == up.message["model"].keys() == run.server.model.keys()
            assert all(torch.equal(client.memory[n], v) for n, v in up.message["model"].items())
    first, second = (client.memory for client in run.clients[:2])
    assert any(not torch.equal(first[n], second[n]) for n in first)


def test_traffic_is_fedavgs():
    downs, ups = record_messages(training("MOON"))
    plain_downs, plain_ups = record_messages(training("FedAvg"))
    assert count_bytes(downs) == count_bytes(plain_downs)
    sent = [[u.message for u in uploads] for uploads in (ups, plain_ups)]
    assert count_bytes(sent[0]) == count_bytes(sent[1])


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


def test_local_batch_norm_stands_in_both_references():
    run = training("MOON", bn_policy="local")
    curve = run.run(Silent())
    assert curve["round"].max() == 3
    assert all(run.layout[n].is_bn for n in run.clients[0].kept)


def test_engines_agree_with_references_in_training_mode():
    assert_engines_agree(name="MOON", fields={"references_in_training_mode": True})


class Moody(Plane):
    """Turns its features by a right angle in training mode."""

    def run(self, tensors, x, training=False):
        z = x @ tensors["w"].T
        return Output(z @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]) if training else z, z)


@pytest.mark.parametrize(
    ("received_mode", "previous_mode", "gap"),
    # features equal the own one, or stand across it: what p - q is before the temperature
    [(False, None, 0), (True, None, 0), (False, True, 1), (True, False, -1)],
)
def test_one_reference_alone_may_be_in_training_mode(received_mode, previous_mode, gap):
    """As in FedPall code: then even the first round, where both are one network, has a contrast."""
    fields = {"references_in_training_mode": received_mode}
    method = methods.create("MOON", **fields, previous_in_training_mode=previous_mode)
    eye = [[1.0, 0.0], [0.0, 1.0]]
    batch = Batch(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    found = method.client_loss(Moody(torch.eye(2)), batch, received(eye, eye))["contrast"]
    assert found.item() == pytest.approx(math.log(1 + math.exp(-gap / 0.5)))


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


@pytest.mark.parametrize("name", ["MOON", "FedProto"])
def test_engines_agree_with_a_second_pass(name):
    assert_engines_agree(name=name, fields={"second_pass": True})
