"""FedDyn: the common optimum, and the states of clients and server."""

import pytest
import torch

from fedrepro import methods
from fedrepro.base.progress import Silent
from fedrepro.methods.base import Upload
from fedrepro.methods.server import Server
from fedrepro.models import TensorInfo
from tests import toys
from tests.methods.test_methods import training

LAYOUT = {
    "w": TensorInfo("w", "predictor", False, False, False, 4),
    "mean": TensorInfo("mean", "encoder", True, True, False, 4),
}


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


def test_states_of_clients_and_server_match():
    """The server's sum of moves is the mean of the clients'."""
    run = training("FedDyn")
    run.run(Silent())
    names = {n for n, info in run.layout.items() if not info.is_buffer}
    assert {key.removeprefix("moved/") for key in run.server.tensors if "moved/" in key} == names
    for name in names:
        mean = torch.stack([client.memory[name] for client in run.clients]).mean(dim=0)
        torch.testing.assert_close(run.server.tensors[f"moved/{name}"], mean, rtol=1e-4, atol=1e-6)


def test_local_batch_norm_is_left_alone():
    run = training("FedDyn", bn_policy="local")
    run.run(Silent())
    assert not any(run.layout[name].is_bn for name in run.clients[0].memory)
    assert all(run.layout[name].is_bn for name in run.clients[0].kept)
