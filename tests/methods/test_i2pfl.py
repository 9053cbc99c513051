"""I2PFL, worked out by hand: loss, prototypes at the server, what travels, its other readings."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Upload
from fedrepro.models import Output
from tests import toys
from tests.engine.test_fused import assert_engines_agree

Z = [[2.0, 0.0], [0.0, 1.0]]  # features of one sample of each of two classes
DRAWS = torch.tensor([[0.75, 0.3], [0.5, 0.9]])  # lambda, partner: there is only one
KINDS = ("prototypes", "present")
SENT = {"prototypes": torch.eye(2), "present": torch.tensor([True, True])}


def terms(z=Z, labels=(0, 1), received=SENT, draws=DRAWS, network=None, **fields):
    """Loss terms of a network whose features are its input and whose logits are 0."""
    network = network or (lambda x: Output(x, 0 * x))
    batch = Batch(torch.as_tensor(z), torch.tensor(labels), draws)
    return methods.create("I2PFL", **fields).client_loss(network, batch, received)


def values(**settings):
    return {name: pytest.approx(value.item()) for name, value in terms(**settings).items()}


def test_loss_by_hand():
    # cosines are 1 to the own prototype and 0 to the other
    gpcl = math.log(1 + math.exp(-1 / 0.5))
    # mixed: (1.5, 0.25) and (1, 0.5), each alone in its class
    apa = ((0.5**2 + 0.25**2) / 2 + (1 + 0.5**2) / 2) / 2
    assert values(tau=0.5) == {"ce": math.log(2), "gpcl": gpcl, "apa": apa}


def test_an_augmented_prototype_is_the_mean_of_its_classs_mixtures():
    z, labels = [[2.0, 0.0], [4.0, 0.0], [0.0, 2.0]], (0, 0, 1)
    draws = torch.tensor([[0.5, 0.1], [0.5, 0.8], [1.0, 0.0]])
    # class 0: mean of (1, 1) and (2, 1); class 1 stays (0, 2)
    apa = ((0.5**2 + 1) / 2 + (2.5**2 + 1) / 2 + 0) / 3
    assert values(z=z, labels=labels, draws=draws)["apa"] == apa


def test_weights_scale_their_terms_and_zero_leaves_them_out():
    whole, doubled = values(), terms(gpcl=2.0, apa=3.0)
    assert doubled["gpcl"].item() / 2 == whole["gpcl"]
    assert doubled["apa"].item() / 3 == whole["apa"]
    assert set(terms(gpcl=0.0)) == {"ce", "apa"}
    assert set(terms(apa=0.0, draws=None)) == {"ce", "gpcl"}


def test_alignment_over_the_sum_of_dimensions():
    assert terms(alignment="sum")["apa"].item() / 2 == values()["apa"]


@pytest.mark.parametrize(
    # constant: (z - p)/b over d = 2 dimensions, summed squares halved by the mean; else through
    # both mixtures, of which the sample is a part: (0.25 (0.5, -0.25) - 0.5 (-1, 0.5)) / 2
    ("constant", "gradient"),
    [(True, [0.25, -0.125]), (False, [0.3125, -0.15625])],
)
def test_gradient_of_the_alignment(constant, gradient):
    z = torch.tensor(Z, requires_grad=True)
    terms(z=z, augmented_constant=constant)["apa"].backward()
    assert z.grad[0].tolist() == pytest.approx(gradient)


def test_without_mixup_features_are_drawn_to_their_batchs_class_mean():
    z = [[2.0, 0.0], [0.0, 2.0], [5.0, 5.0]]
    assert values(z=z, labels=(0, 0, 1), draws=None, mixup="none")["apa"] == (1 + 1 + 0) / 3


def test_images_are_mixed_before_the_network():
    squares = lambda x: Output(x.flatten(1).square(), x.flatten(1))  # noqa: E731
    x = torch.tensor([[2.0, 0.0], [0.0, 4.0]])[:, None, None]
    # images (1.5, 1) and (1, 2); features (2.25, 1) and (1, 4) beside (4, 0) and (0, 16)
    apa = ((1.75**2 + 1) / 2 + (1 + 12**2) / 2) / 2
    assert values(z=x, network=squares, mixup="images", gpcl=0.0)["apa"] == apa


def test_first_round_has_no_contrast():
    nothing = {"prototypes": torch.zeros(2, 2), "present": torch.tensor([False, False])}
    z = torch.tensor(Z, requires_grad=True)
    gpcl = terms(z=z, received=nothing)["gpcl"]
    gpcl.backward()
    assert gpcl == 0 and (z.grad == 0).all()


def test_draws():
    method = methods.create("I2PFL", alpha=0.4)
    drawn = method.draw(4000, torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 2) and drawn.dtype == torch.float32
    lam, partner = drawn.unbind(1)
    # Beta(a, a) has variance 1 / (4 (2a + 1)), the uniform draw 1/12
    assert lam.mean() == pytest.approx(0.5, abs=0.03)
    assert lam.var() == pytest.approx(1 / (4 * 1.8), abs=0.01)
    assert partner.var() == pytest.approx(1 / 12, abs=0.005)
    again = method.draw(4000, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


def test_one_lambda_a_batch():
    lam = methods.create("I2PFL", one_lambda=True).draw(9, torch.Generator().manual_seed(0))[:, 0]
    assert len(lam.unique()) == 1


@pytest.mark.parametrize("fields", [{"mixup": "none"}, {"apa": 0.0}])
def test_nothing_is_drawn_where_nothing_is_mixed(fields):
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert methods.create("I2PFL", **fields).draw(9, generator) is None
    assert torch.equal(before, generator.get_state())


# The server.


def step(method, means, owned, before=None):
    """Prototypes (K, d) and whether present after clients sent means (N, K, d)."""
    means, owned = torch.tensor(means), torch.tensor(owned)
    empty = torch.zeros(means.shape[1:]), torch.zeros(means.shape[1], dtype=torch.bool)
    server = SimpleNamespace(tensors=dict(zip(KINDS, before or empty, strict=True)))
    uploads = [
        Upload(i, 5, {"prototypes": means[i, owned[i]], "present": owned[i]})
        for i in range(len(means))
    ]
    method.server_step(server, uploads)
    return server.tensors["prototypes"], server.tensors["present"]


# class 0 of three clients: 0, 0, 3, mean 1; class 1 of the last client alone
MEANS = [[[0.0], [9.0]], [[0.0], [9.0]], [[3.0], [7.0]]]
OWNED = [[True, False], [True, False], [True, True]]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0 * 1 + 0 * 1 + 3 * 2) / 4),
        ({"distance": "squared"}, (0 * 1 + 0 * 1 + 3 * 4) / 6),
        ({"rule": "averaging"}, 1),
    ],
)
def test_generalised_prototypes_by_hand(fields, expected):
    prototypes, present = step(methods.create("I2PFL", **fields), MEANS, OWNED)
    assert prototypes.flatten().tolist() == [expected, 7]
    assert present.tolist() == [True, True]


def test_two_clients_weigh_the_same():
    prototypes, _ = step(
        methods.create("I2PFL"), [[[1.0], [5.0]], [[3.0], [5.0]]], [[True] * 2] * 2
    )
    assert prototypes.flatten().tolist() == [2, 5]


def test_clustering_gives_each_cluster_one_voice():
    first = [[10.0, 0.0], [10.0, 1.0], [0.0, 10.0], [1.0, 10.0], [2.0, 10.0]]
    means = [[mean, [4.0, 2.0 * i]] for i, mean in enumerate(first)]
    owned = [[True, i < 2] for i in range(5)]
    prototypes, present = step(methods.create("I2PFL", rule="clustering"), means, owned)
    # class 0: cluster means (10, 0.5) and (1, 10); class 1: two clients are one cluster
    assert prototypes.flatten().tolist() == pytest.approx([5.5, 5.25, 4, 1])
    assert present.tolist() == [True, True]


def test_moving_average_from_round_two_on():
    method = methods.create("I2PFL", rule="averaging")
    first = step(method, [[[1.0], [4.0]]], [[True, False]])
    assert first[0][0].item() == 1 and first[1].tolist() == [True, False]
    second, _ = step(method, [[[2.0], [4.0]]], [[True, True]], before=first)
    assert second.flatten().tolist() == pytest.approx([0.99 * 1 + 0.01 * 2, 4])
    plain = step(methods.create("I2PFL", decay=0.0), [[[2.0], [4.0]]], [[True] * 2], before=first)
    assert plain[0].flatten().tolist() == [2, 4]
    kept, _ = step(method, [[[2.0], [4.0]]], [[False, True]], before=first)
    assert kept.flatten().tolist() == [1, 4]


# A run.


def start(**fields):
    return Training(methods.create("I2PFL", **fields), toys.protocol(), toys.federation(), seed=0)


def test_classes_a_client_lacks_are_not_sent():
    run = start()
    z = torch.arange(6.0)[:, None]
    labels = torch.tensor([0, 0, 2, 2, 2, 2])
    client = SimpleNamespace(features=lambda training: z, labels=labels, classes=3)
    sent = run.method.upload(client)
    assert sent["prototypes"].tolist() == [[0.5], [3.5]]
    assert sent["present"].tolist() == [True, False, True]


def sent_in_a_round(run):
    """Clients' trained networks and prototypes (K, d) of the next round, by client."""
    heard, upload = {}, run._upload

    def up(client, trained, view):
        sent = upload(client, trained, view)
        heard[client.index] = trained.state, sent.message["prototypes"]
        return sent

    run._upload = up
    run.one_round()
    run._upload = upload
    return heard


def test_clients_send_the_class_means_of_their_trained_networks():
    run = start()
    for index, (state, sent) in sent_in_a_round(run).items():
        own = run.clients[index].data.train
        z = run.engine.features(state, own)
        means = [z[own.labels == k].mean(0) for k in range(toys.CLASSES)]
        torch.testing.assert_close(sent, torch.stack(means))


def test_two_rounds_at_the_server():
    run = start()
    after = []
    for _ in range(2):
        sent = torch.stack([means for _, means in sent_in_a_round(run).values()])
        far = (sent - sent.mean(0)).norm(dim=2, keepdim=True)
        after.append((far / far.sum(0) * sent).sum(0))
    torch.testing.assert_close(run.server.tensors["prototypes"], 0.99 * after[0] + 0.01 * after[1])


def test_contrast_starts_in_round_two_and_alignment_in_round_one():
    curve = start().run(Silent())
    assert toys.logged(curve, "term", 1)["gpcl"] == 0 < toys.logged(curve, "term", 2)["gpcl"]
    assert toys.logged(curve, "term", 1)["apa"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"mixup": "images"},
        {"mixup": "images", "augmented_constant": False},
        {"mixup": "none"},
        {"augmented_constant": False, "one_lambda": True, "alignment": "sum"},
        {"rule": "clustering", "prototypes_in_training_mode": True},
        {"rule": "averaging", "decay": 0.0},
        {"gpcl": 0.0},
        {"apa": 0.0},
        {"distance": "squared"},
    ],
)
def test_every_reading_runs_the_same_in_both_engines(fields):
    assert_engines_agree(name="I2PFL", fields=fields, rounds=2, local_epochs=1, sizes=(21, 13, 13))


@pytest.mark.parametrize(
    "fields",
    [{"mixup": "images"}, {"mixup": "none"}, {"augmented_constant": False}, {"alpha": 0.1}],
)
def test_each_reading_of_the_alignment_changes_the_network(fields):
    networks = []
    for chosen in ({}, fields):
        run = start(**chosen)
        run.one_round()
        networks.append(np.concatenate([v.flatten() for v in run.server.model.values()]))
    assert not np.allclose(*networks)


# Augmented prototypes over a client's data.


def test_features_are_drawn_to_the_clients_augmented_prototypes():
    """Of a class the client has; class 1 has none, so that its sample takes no part."""
    memory = {"augmented": torch.tensor([[1.0, 1.0], [9.0, 9.0]]), "counts": torch.tensor([3, 0])}
    found = values(augmented_over="client", draws=None, received={**SENT, "memory": memory})
    assert found["apa"] == (1 + 1) / 2


def test_a_client_keeps_the_means_of_its_mixtures():
    run = Training(
        methods.create("I2PFL", augmented_over="client", alpha=0.4),
        toys.protocol(rounds=2),
        toys.federation((8, 7)),
        seed=0,
    )
    kept = []
    remember = type(run.method).remember

    def heard(client):
        start = client.generator.get_state()
        memory = remember(run.method, client)
        kept.append((client, start, memory))
        return memory

    object.__setattr__(run.method, "remember", heard)
    run.one_round()
    client, start, memory = kept[0]
    z, y = client.features(), client.labels
    lam, partner = run.method.drawn(8, torch.Generator().set_state(start)).unbind(dim=1)
    wanted = torch.zeros(toys.CLASSES, z.shape[1])
    for i in range(8):
        others = [z[j] for k in range(toys.CLASSES) if k != y[i] for j in range(8) if y[j] == k]
        other = others[int(partner[i] * len(others))]
        wanted[y[i]] += (lam[i] * z[i] + (1 - lam[i]) * other) / (y == y[i]).sum()
    torch.testing.assert_close(memory["augmented"], wanted)
    assert memory["counts"].tolist() == [3, 3, 2]
    assert torch.equal(run.clients[0].memory["augmented"], memory["augmented"])


def test_without_a_memory_the_first_round_has_no_alignment_and_the_second_has():
    run = Training(
        methods.create("I2PFL", augmented_over="client"), toys.protocol(), toys.federation(), seed=0
    )
    found = run.run(Silent()).query("measure == 'term' and subject == 'apa'")
    by_round = found.groupby("round").value.sum()
    assert by_round[1] == 0 and by_round[2] > 0
    with pytest.raises(FedReproError, match="mixup"):
        methods.create("I2PFL", augmented_over="client", mixup="images")


def test_engines_agree_over_the_clients_data():
    assert_engines_agree(name="I2PFL", fields={"augmented_over": "client"})
