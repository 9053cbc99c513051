"""FADA: losses, attention and the server's step by hand; what travels; the target's labels."""

import math
from dataclasses import replace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.data.federation import Samples
from fedrepro.extras.fada_parts import Disentangled, information_bound, within_clusters
from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.server import Network, Server
from fedrepro.models import build_model, layout
from fedrepro.models.networks import Panel
from tests import toys
from tests.methods.test_methods import record_messages, training

D = 16  # tiny-cnn's features
LOG2, LOG3 = math.log(2), math.log(3)


class Given:
    """A network whose features are its input, (2, 0) and (3, 4) below."""

    def __call__(self, x):
        out = Disentangled(x, torch.zeros(2, 2).double())
        out.guessed = torch.tensor([[0.0, LOG3], [0.0, LOG3]]).double()
        out.confused = torch.tensor([[LOG3, 0.0], [LOG3, 0.0]]).double()
        out.joint, out.marginal = torch.tensor([[1.0, 3.0], [0.0, LOG3]]).double()
        out.rebuilt = x + 2
        return out


def discriminator():
    """Source with 3/4 for the first feature, with 1/2 for the second."""
    module = torch.nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[LOG3 / 2, -3 * LOG3 / 8], [0.0, 0.0]]))
    return module


def terms(received, labels=(0, 1), **fields):
    batch = Batch(torch.tensor([[2.0, 0.0], [3.0, 4.0]]).double(), torch.tensor(labels))
    found = methods.create("FADA", **fields).client_loss(Given(), batch, received)
    return {name: value.item() for name, value in found.items()}


def test_a_sources_loss_by_hand():
    fields = {"alignment": 0.5, "confusion": 2.0, "reconstruction": 0.25}
    found = terms({"discriminator": Network(discriminator())}, **fields)
    expected = {
        "ce": LOG2,
        "fool": 0.5 * (math.log(4) + LOG2) / 2,  # taken for the target with 1/4, 1/2
        "identify": (math.log(4) + math.log(4 / 3)) / 2,
        "confuse": 2 * -(math.log(2 * 3 / 4) + math.log(2 * 1 / 4)) / 2,
        "rebuild": 0.25 * 4,
        "information": math.log(1 + math.exp(2) / 2),  # softplus(2 - log 2)
    }
    assert found == pytest.approx(expected)


def test_the_targets_loss_by_hand_and_without_labels():
    blind = torch.nn.Linear(2, 2, bias=False).double()
    torch.nn.init.zeros_(blind.weight)
    received = {"discriminators": Network(Panel([discriminator(), blind]))}
    found = terms(received, labels=(99, -99), alignment=0.5)  # no classes
    assert found == pytest.approx({"fool": 0.5 * (math.log(4 / 3) + 3 * LOG2) / 4})


def network():
    torch.manual_seed(0)
    method = methods.create("FADA", information=0.5)
    module = method.network(build_model("tiny-cnn", 3, toys.SIZE)).double()
    return method, module, torch.rand(6, 3, toys.SIZE, toys.SIZE).double()


def gradients(value, module):
    named = dict(module.named_parameters())
    found = torch.autograd.grad(value, list(named.values()), retain_graph=True, allow_unused=True)
    return {n: g for n, g in zip(named, found, strict=True) if g is not None and g.any()}


def source_terms():
    method, module, x = network()
    received = {"discriminator": Network(torch.nn.Linear(D, 2).double())}
    return module, x, method.client_loss(module, Batch(x, torch.arange(6) % 3), received)


def test_each_term_trains_its_own_parts_and_the_estimator_works_against_them():
    module, x, found = source_terms()
    trained = {
        term: {name.split(".")[0] for name in gradients(value, module)}
        for term, value in found.items()
    }
    extractor = {"encoder", "projection"}
    assert trained == {
        "ce": extractor | {"invariant", "predictor"},
        "fool": extractor,
        "identify": {"identifier"},
        "confuse": extractor | {"specific"},
        "rebuild": {"invariant", "specific", "reconstructor"},
        "information": {"invariant", "specific", "estimator"},
    }
    ours = gradients(found["information"], module)
    module.load_state_dict(network()[1].state_dict())
    z = module.projection(module.encoder(x)).detach()
    one, other = module.invariant(z), module.specific(z)
    scores = module.estimator(one, other), module.estimator(one, other.roll(1, 0))
    value = torch.nn.functional.softplus(information_bound(*scores))
    assert found["information"].item() == pytest.approx(value.item())
    plain = gradients(value, module)
    assert plain.keys() == ours.keys()
    for name, gradient in plain.items():
        sign = -1.0 if name.startswith("estimator") else 0.5
        torch.testing.assert_close(ours[name], sign * gradient)


def test_scatter_within_clusters_by_hand():
    """Clusters {0, 2} and {10, 14}: 2 (2^2) / (2 2) + 2 (4^2) / (2 2)."""
    z = torch.tensor([[0.0], [10.0], [2.0], [14.0]])
    assert within_clusters(z, 2).item() == 2 + 8
    assert within_clusters(z[:1], 2).item() == 0
    assert within_clusters(torch.tensor([[0.0], [0.0], [3.0]]), 2).item() == 0  # one began empty


@pytest.mark.parametrize(
    ("attention", "gains"), [("relative", (0.5, 0.0, -1.0)), ("absolute", (5.0, 0.0, -10.0))]
)
def test_attention_by_hand(attention, gains):
    message = {"scatter": torch.tensor([10.0, 5.0, 10.0, 20.0]).double()}
    weights = [math.exp(gain) for gain in gains]
    found = methods.create("FADA", attention=attention).attended(message, 3)
    assert found.tolist() == pytest.approx([w / sum(weights) for w in weights])


# The server: sources 0 and 2, target 1.


def served(**fields):
    method = methods.create("FADA", target=1, attention="absolute", **fields)
    model = method.network(build_model("tiny-cnn", 2, toys.SIZE)).double()
    state = {n: v.clone() for n, v in model.state_dict().items() if "num_batches" not in n}
    protocol = toys.protocol(precision="float64", optimizer__weight_decay=0.0)
    server = Server(state, layout(model), protocol, 0, 3, D, 2, torch.device("cpu"), D)
    method.init_server(server)
    return method, server, dict(server.model)


def uploads(method, server):
    """Sources of ones and fives; the target half a unit from where it began; gains log 3 and 0."""
    down = [name for name in server.model if method.broadcast(server.layout[name])]
    own = [name for name in down if name.startswith(("encoder.", "projection."))]
    before = server.model
    sent = [
        {"network": {name: torch.full_like(before[name], 1.0) for name in down}},
        {
            "network": {name: before[name] + 0.5 for name in own},
            "scatter": torch.tensor([2.0, 2.0 - LOG3, 2.0]).double(),
        },
        {"network": {name: torch.full_like(before[name], 5.0) for name in down}},
    ]
    z = torch.rand(4, D, generator=torch.Generator().manual_seed(0)).double().split((1, 2, 1))
    return down, [Upload(i, 1, {**sent[i], "features": z[i]}) for i in range(3)]


@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("policy", ["recompute", "average"])
def test_the_new_network_by_hand(share, policy):
    """3/4 of ones and 1/4 of fives make twos; the target's half is added to its extractor."""
    method, server, before = served(target_share=share, bn_policy=policy)
    down, sent = uploads(method, server)
    method.server_step(server, sent)
    assert server.log["attention0"] == pytest.approx(0.75)
    assert server.log["attention2"] == pytest.approx(0.25)
    for name, value in server.model.items():
        info = server.layout[name]
        if name not in down:
            assert torch.equal(value, before[name])
            continue
        moved = info.part in ("encoder", "projection") and not info.is_buffer
        expected = torch.full_like(value, 2 + (0.5 * share if moved else 0))
        torch.testing.assert_close(value, expected, msg=name)
    assert any(server.layout[n].is_buffer for n in down) == (policy == "average")
    stay = {name.split(".")[0] for name in before if name not in down}
    assert stay >= {"specific", "identifier", "estimator", "reconstructor"}


def test_messages():
    run = training("FADA", target=1)
    downs, ups = record_messages(run)
    source, target = {"discriminator", "model"}, {"discriminators", "model"}
    assert [set(down) for down in downs] == [source, target, source]
    assert all(set(up.message) == {"features", "network"} for up in ups)
    down = set(downs[0]["model"])
    parts = {"encoder", "projection", "predictor", "invariant"}
    assert {name.split(".")[0] for name in down} == parts
    assert set(ups[0].message["network"]) == down
    assert {n.split(".")[0] for n in ups[1].message["network"]} == {"encoder", "projection"}
    downs, ups = record_messages(run)
    assert set(downs[1]) == {"discriminators", "model", "candidates"}
    assert set(ups[1].message) == {"features", "network", "scatter"}
    equal = training("FADA", target=1, attention="equal")
    equal.one_round(), equal.one_round()
    assert equal.server.log["attention0"] == equal.server.log["attention2"] == 0.5


def state_after(policy, turned=None):
    federation = toys.federation()
    clients = list(federation.clients)
    if turned is not None:
        train = clients[turned].train
        train = Samples(train.images, (train.labels + 1) % toys.CLASSES)
        clients[turned] = replace(clients[turned], train=train)
    given = replace(federation, clients=tuple(clients))
    run = training("FADA", given, target=1, bn_policy=policy)
    run.run(Silent())
    return run.state()


@pytest.mark.parametrize("policy", ["recompute", "average"])
def test_the_targets_labels_change_no_bit(policy):
    expected, other = state_after(policy), state_after(policy, turned=0)
    toys.assert_equal(expected, state_after(policy, turned=1))
    assert any(not torch.equal(value, other[name]) for name, value in expected.items())


def test_wrong_values_are_single_clear_lines():
    for wrong, said in (
        ({"fields": {"target": 3}}, "FADA target = 3: choose one of 0 to 2"),
        ({"sizes": (8,)}, "with at least two clients"),
        ({"participation": 0.5}, "FADA needs its target in every round"),
        ({"fields": {"bn_policy": "local"}}, "bn_policy"),
    ):
        with pytest.raises(FedReproError, match=said):
            toys.start("FADA", **wrong)
