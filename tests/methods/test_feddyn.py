"""FedDyn: loss, client state and server step by hand; the inert form."""

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.messages import count_bytes
from fedrepro.methods.server import Server
from fedrepro.models import Output, TensorInfo
from tests import toys
from tests.engine.test_fused import assert_engines_agree
from tests.methods.test_methods import record_messages, training
from tests.methods.test_moon import moving_terms

LAYOUT = {
    "w": TensorInfo("w", "predictor", False, False, False, 4),
    "mean": TensorInfo("mean", "encoder", True, True, False, 4),
}


class Scalar:
    """A network of one number, which its logits do not depend on."""

    def __init__(self, w):
        self.params = {"w": w}

    def __call__(self, x):
        return Output(x, x)


class View:
    """A client that has trained w from `sent` to `now`."""

    def __init__(self, now, sent, moved):
        self.state = {"w": torch.tensor([now]), "mean": torch.tensor([9.0])}
        model = {"w": torch.tensor([sent]), "mean": torch.tensor([0.0])}
        self.received = {"model": model, "memory": {"w": torch.tensor([moved])}}


def server(method):
    model = {"w": torch.zeros(1), "mean": torch.zeros(1)}
    owner = Server(model, LAYOUT, toys.protocol(), 0, 2, 2, 2, torch.device("cpu"))
    method.init_server(owner)
    return owner


def step(method, owner, *sent):
    """The server's step after clients' w have been averaged."""
    owner.model = owner.model | {"w": torch.tensor([sum(sent) / len(sent)])}
    method.server_step(owner, [Upload(i, 1, {}) for i in range(len(sent))])
    return owner.model["w"].item()


def test_loss_by_hand():
    """g = -alpha moved = -0.3: CE - <g, w> + (alpha / 2)(w - 1)^2 at w = 2."""
    w = torch.tensor([2.0], requires_grad=True)
    message = {"model": {"w": torch.tensor([1.0])}, "memory": {"w": torch.tensor([3.0])}}
    batch = Batch(torch.zeros(1, 2), torch.tensor([0]))
    terms = methods.create("FedDyn", alpha=0.1).client_loss(Scalar(w), batch, message)
    assert terms["ce"].item() == pytest.approx(0.6931472)
    assert terms["linear"].item() == pytest.approx(0.3 * 2)
    assert terms["prox"].item() == pytest.approx(0.1 / 2)
    (gradient,) = torch.autograd.grad(terms["linear"] + terms["prox"], w)
    assert gradient.item() == pytest.approx(0.3 + 0.1)


def test_a_client_adds_up_its_moves():
    """g <- g - alpha (w_i - w_t): -0.3 becomes -0.3 - 0.1 (5 - 1)."""
    kept = methods.create("FedDyn", alpha=0.1).remember(View(now=5.0, sent=1.0, moved=3.0))
    assert {n: -0.1 * v.item() for n, v in kept.items()} == {"w": pytest.approx(-0.7)}


def test_server_by_hand():
    """s <- s - alpha mean(w_i - w_t), w = mean(w_i) - s / alpha, with alpha 1."""
    method = methods.create("FedDyn", alpha=1.0)
    owner = server(method)
    assert step(method, owner, 1.0, 3.0) == 2 + 2  # s = -2
    assert step(method, owner, 5.0, 5.0) == 5 + 3  # s = -2 - (5 - 4)
    # One of two takes part: half a client's move of -2 enters s = -3.
    assert step(method, owner, 6.0) == 6 + 2
    assert owner.model["mean"].item() == 0


def test_exact_local_minima_lead_to_the_common_optimum():
    """Two clients, losses c/2 (w - t)^2: the sum's minimum is sum c t / sum c, not the mean of t.

    A bent objective's minimum: c (w - t) + alpha moved + alpha (w - w_t) = 0.
    """
    method = methods.create("FedDyn", alpha=0.5)
    owner, moved, clients = server(method), [0.0, 0.0], ((1.0, 0.0), (3.0, 4.0))
    for _ in range(60):
        sent = owner.model["w"].item()
        now = [
            (c * t - 0.5 * m + 0.5 * sent) / (c + 0.5)
            for (c, t), m in zip(clients, moved, strict=True)
        ]
        moved = [
            method.remember(View(w, sent, m))["w"].item() for w, m in zip(now, moved, strict=True)
        ]
        step(method, owner, *now)
    assert owner.model["w"].item() == pytest.approx(3 * 4 / 4)
    assert now == pytest.approx([3, 3])


def test_clients_count_equally():
    protocol = toys.protocol()
    assert methods.create("FedDyn").weights(protocol, [1, 3]) == [0.5, 0.5]
    assert methods.create("FedDyn", form="inert").weights(protocol, [1, 3]) == [0.25, 0.75]


def test_every_term_is_alive_from_the_second_round_on():
    run = training("FedDyn")
    assert moving_terms(run) == {"ce", "prox"}
    run.one_round()
    assert moving_terms(run) == {"ce", "linear", "prox"}


def test_states_of_clients_and_server_match():
    """The server's sum of moves is the mean of the clients'."""
    run = training("FedDyn")
    run.run(Silent())
    names = {n for n, info in run.layout.items() if not info.is_buffer}
    assert {key.removeprefix("moved/") for key in run.server.tensors if "moved/" in key} == names
    for name in names:
        mean = torch.stack([client.memory[name] for client in run.clients]).mean(dim=0)
        torch.testing.assert_close(run.server.tensors[f"moved/{name}"], mean, rtol=1e-4, atol=1e-6)


def test_traffic_is_fedavgs():
    downs, ups = record_messages(training("FedDyn"))
    plain_downs, plain_ups = record_messages(training("FedAvg"))
    assert count_bytes(downs) == count_bytes(plain_downs)
    assert count_bytes([u.message for u in ups]) == count_bytes([u.message for u in plain_ups])


def test_the_inert_form_is_fedavg():
    run, plain = training("FedDyn", form="inert"), training("FedAvg")
    for _ in range(3):
        run.one_round(), plain.one_round()
    assert all(torch.equal(run.server.model[n], v) for n, v in plain.server.model.items())
    assert not run.server.tensors and not any(client.memory for client in run.clients)


def test_the_dynamic_form_is_not():
    run, plain = training("FedDyn"), training("FedAvg")
    run.one_round(), plain.one_round()
    assert any(not torch.allclose(run.server.model[n], v) for n, v in plain.server.model.items())


def test_local_batch_norm_is_left_alone():
    run = training("FedDyn", bn_policy="local")
    run.run(Silent())
    assert not any(run.layout[name].is_bn for name in run.clients[0].memory)
    assert all(run.layout[name].is_bn for name in run.clients[0].kept)


def test_engines_agree_on_the_inert_form():
    assert_engines_agree(name="FedDyn", fields={"form": "inert"})
