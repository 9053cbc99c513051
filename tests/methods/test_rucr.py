"""RUCR on cases worked out by hand, and what of it travels."""

import math
from types import SimpleNamespace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.engine import in_order
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.server import Server
from fedrepro.models import Output, build_model, layout
from tests import toys
from tests.engine.test_fused import assert_engines_agree

D = 16  # tiny-cnn's features


def training(name="RUCR", model="tiny-cnn", **fields):
    protocol = toys.protocol(model=model)
    return Training(methods.create(name, **fields), protocol, toys.federation((8, 6)), seed=0)


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# The losses. Features (3, 4) of class 0 and (0, 2) of class 1; prototypes (1, 0) and (0, 0.5).

BATCH = Batch(double((3, 4), (0, 2)), torch.tensor([0, 1]), double((0.1, 0.5), (0.9, 0.0)))


class Given:
    """A network whose features are its input; its trained predictor doubles them."""

    def __init__(self):
        self.params = {"predictor.weight": 2 * torch.eye(2, dtype=torch.float64)}

    def __call__(self, x):
        return self.run(self.params, x)

    def run(self, tensors, x, training=False):
        assert not training
        return Output(x, x @ tensors["predictor.weight"].T)


def received(prototypes=((1, 0), (0, 0.5)), due=1.0):
    return {
        "model": {"predictor.weight": torch.zeros(2, 2, dtype=torch.float64)},
        "prototypes": double(*prototypes),
        "present": double(*prototypes).any(dim=1),
        "shares": double(0.75, 0.25),
        "schedule": torch.tensor(due),
    }


def test_unification_by_hand():
    method = methods.create("RUCR", weight=0.15, temperature=0.5)
    found = method.client_loss(Given(), BATCH, received())
    first = 0.6 / 0.5 + math.log(0.75), 0.8 / 0.5
    second = 0.0, 1 / 0.5 + math.log(0.25)
    each = [
        math.log(sum(math.exp(v) for v in logits)) - logits[y]
        for y, logits in enumerate((first, second))
    ]
    assert found["unify"].item() == pytest.approx(0.15 * sum(each) / 2)
    ce = math.log(1 + math.exp(8 - 6)) + math.log(1 + math.exp(0 - 4))
    assert found["ce"].item() == pytest.approx(ce / 2)


def test_unification_is_zero_without_prototypes():
    found = methods.create("RUCR").client_loss(Given(), BATCH, received(((0, 0), (0, 0))))
    assert found["unify"].item() == 0


def test_raw_anchors_are_read_where_they_are_asked_for():
    message = received(((0, 1), (1, 0))) | {"anchors": double((5, 0), (0, 7))}
    raw = methods.create("RUCR", anchors="raw").client_loss(Given(), BATCH, message)
    unit = methods.create("RUCR").client_loss(Given(), BATCH, received())
    assert raw["unify"].item() == pytest.approx(unit["unify"].item())


# lam is 0.2 + 0.6 * 0.5 and 0.2, the classes are 0 and 1: (0.8, 0.4) and (0, 0.9), then doubled.
FIRST, SECOND = math.log(1 + math.exp(0.8 - 1.6)), math.log(1 + math.exp(0 - 1.8))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (received(), (FIRST + SECOND) / 2),
        (received(((1, 0), (0, 0))), FIRST),  # nobody has class 1: its mixture does not count
        (received(((0, 0), (0, 0))), 0),
        (received(due=0.0), 0),
    ],
)
def test_rectification_by_hand(message, expected):
    found = methods.create("RUCR").rectify(Given(), BATCH, message)
    assert {k: v.item() for k, v in found.items()} == pytest.approx({"rectify": expected})


def test_draws_are_a_class_and_a_share():
    draws = methods.create("RUCR").draw(1000, torch.Generator().manual_seed(0))
    assert draws.shape == (1000, 2)
    assert 0 <= draws.min() < 0.01 and 0.99 < draws.max() < 1


# The server. Two clients, two classes; class 1 is the second client's alone.


def test_server_by_hand():
    method = methods.create("RUCR")
    model = method.network(build_model("tiny-cnn", 2, toys.SIZE)).double()
    state = {n: v for n, v in model.state_dict().items() if "num_batches" not in n}
    protocol = toys.protocol(precision="float64")
    server = Server(state, layout(model), protocol, 0, 2, 2, 2, torch.device("cpu"))
    method.init_server(server)
    assert server.tensors["shares"].tolist() == [0.5, 0.5]
    assert server.tensors["present"].tolist() == [False, False]
    sent = [
        Upload(0, 1, {"prototypes": double((3, 4), (0, 0)), "counts": double(1, 0)}),
        Upload(1, 5, {"prototypes": double((2, 0), (0, 5)), "counts": double(3, 2)}),
    ]
    method.server_step(server, sent[:1])
    assert server.tensors["present"].tolist() == [True, False]
    method.server_step(server, sent)
    torch.testing.assert_close(server.tensors["prototypes"], double((0.9, 0.2), (0, 1)))
    torch.testing.assert_close(server.tensors["anchors"], double((2.25, 1), (0, 5)))
    torch.testing.assert_close(server.tensors["shares"], double(4 / 6, 2 / 6))
    method.server_step(server, sent[:1])  # class 1 stays, and counts as one sample
    torch.testing.assert_close(server.tensors["prototypes"], double((0.6, 0.8), (0, 1)))
    torch.testing.assert_close(server.tensors["shares"], double(0.5, 0.5))


# What travels.


@pytest.mark.parametrize("anchors", ["unit", "raw"])
def test_bytes(anchors):
    run = training(anchors=anchors)
    curve = run.run(Silent())
    clients, k = 2, toys.CLASSES
    network = clients * sum(v.numel() * 4 for v in run.server.model.values())
    prototypes = clients * 4 * k * D
    rows = curve[(curve.measure == "bytes") & (curve["round"] == 2)].set_index("subject").value
    assert rows.to_dict() == {
        "down/model": network,
        "down/prototypes": prototypes,
        "down/present": clients * k,
        "down/shares": clients * 4 * k,
        "up/model": network,
        "up/prototypes": prototypes,
        "up/counts": clients * 4 * k,
    } | ({"down/anchors": prototypes} if anchors == "raw" else {})


def test_uploaded_prototypes_are_class_means_of_the_trained_network():
    run = training()
    messages, trained = [], []
    upload = run._upload

    def up(client, result, view):
        sent = upload(client, result, view)
        messages.append(dict(sent.message)), trained.append(result.state)
        return sent

    run._upload = up
    run.one_round()
    data = run.clients[0].data.train
    z = run.engine.features(trained[0], data)
    for k in range(toys.CLASSES):
        torch.testing.assert_close(messages[0]["prototypes"][k], z[data.labels == k].mean(0))
        assert messages[0]["counts"][k] == (data.labels == k).sum()


def test_the_average_is_tested():
    assert training().judged == ("global",)


# Local training.


def trained(run, phases, round=2, method=None):
    """A client's network at the start and after some phases."""
    client = run.clients[0]
    job = run._job(client, run._download(client), round)
    job = job.__class__(**{**vars(job), "phases": phases})
    return job.state, in_order(run.engine.train(method or run.method, [job]))[0]


def test_rectification_comes_first_or_last():
    names = [p.name for p in methods.create("RUCR").phases(toys.protocol())]
    assert names == ["rectify", "local"]
    phases = methods.create("RUCR", rectify_at="end", rectify_epochs=50).phases(toys.protocol())
    assert [(p.name, p.epochs) for p in phases] == [("local", 2), ("rectify", 50)]


@pytest.mark.parametrize("model", ["tiny-cnn", "small-cnn"])
def test_rectification_moves_the_predictor_and_no_statistics(model):
    run = training(model=model)
    run.one_round()
    before, result = trained(run, run.method.phases(run.protocol)[:1])
    assert result.terms["rectify"] > 0
    for name, info in run.layout.items():
        if not info.is_counter:
            moved = not torch.equal(result.state[name], before[name])
            if info.part != "predictor" or info.is_buffer:
                assert not moved, name
            elif "weight" in name:
                assert moved, name


def test_rectification_teaches_mixtures():
    """More steps of it lower its loss."""
    run = training(rectify_lr=0.1)
    run.one_round()
    rectify = run.method.phases(run.protocol)[0]
    losses = []
    for epochs in (1, 30):
        phase = rectify.__class__(**{**vars(rectify), "epochs": epochs})
        losses.append(trained(run, [phase])[1].terms["rectify"])
    assert losses[1] < losses[0]


def test_it_waits_for_the_last_rounds():
    run = training(rectify_last=1, rectify_lr=1.0)
    run.one_round()
    rectify = run.method.phases(run.protocol)[:1]
    for number, due in ((1, False), (2, True), (3, True)):  # r >= R - 1 of R = 3, as the authors
        run.server.round = number
        before, result = trained(run, rectify, number)
        assert (result.terms["rectify"] > 0) == due
        moved = not torch.equal(result.state["predictor.weight"], before["predictor.weight"])
        assert moved == due


def test_the_first_round_is_federated_averaging():
    ours, plain = training(rectify_at="end"), training("FedAvg")
    ours.one_round(), plain.one_round()
    assert all(torch.equal(v, ours.server.model[n]) for n, v in plain.server.model.items())


def test_every_term_has_a_gradient_after_the_first_round():
    run = training()
    run.one_round()
    local = run.method.phases(run.protocol)[1]
    encoder = next(n for n, info in run.layout.items() if info.part == "encoder")
    _, whole = trained(run, [local])
    _, without = trained(run, [local], method=methods.create("RUCR", weight=0.0))
    assert whole.terms["unify"] > 0
    assert not torch.equal(whole.state[encoder], without.state[encoder])


def test_a_policy_that_keeps_part_of_the_network_at_home_is_refused():
    assert methods.create("RUCR", bn_policy="first").bn_policy == "first"
    with pytest.raises(FedReproError, match="bn_policy"):
        methods.create("RUCR", bn_policy="local")


@pytest.mark.parametrize("engine", ["reference", "fused"])
def test_rectification_takes_a_number_of_steps(engine):
    """Of whole batches, however few or many images a client has; all of them where they are fewer
    than a batch. A step of a loss that is the sum of the predictor's weights moves each by lr."""

    class Sum(methods.get("RUCR")):
        def rectify(self, model, batch, received):
            sizes.append(batch.y.shape[-1])
            return {"rectify": sum(value.sum() for value in model.params.values())}

    for images in (3, 4, 30):
        sizes = []
        method = Sum(rectify_steps=5, rectify_epochs=2, rectify_lr=0.5)
        protocol = toys.protocol(batch_size=4)
        run = Training(method, protocol, toys.federation((images, 11)), seed=0, engine=engine)
        for client in run.clients:
            job = run._job(client, run._download(client), 1)
            job = job.__class__(**{**vars(job), "phases": method.phases(protocol)[:1]})
            state = in_order(run.engine.train(method, [job]))[0].state
            weight = next(n for n, i in run.layout.items() if i.part == "predictor")
            torch.testing.assert_close(job.state[weight] - state[weight], 0 * state[weight] + 5)
        assert set(sizes) == {min(images, 4), 4}


def test_engines_agree_on_a_number_of_steps():
    """Clients of more and of less than a batch in one stack."""
    assert_engines_agree(name="RUCR", fields={"rectify_steps": 5}, sizes=(21, 13, 5))


@pytest.mark.parametrize("augmented", [False, True])
def test_prototypes_of_the_images_or_of_the_training_loaders(augmented):
    seen = []
    client = SimpleNamespace(
        labels=torch.tensor([0, 1]),
        classes=2,
        augmentation="crop",
        features=lambda training, how: seen.append((training, how)) or torch.eye(2),
    )
    methods.create("RUCR", prototypes_of_augmented_images=augmented).upload(client)
    assert seen == [(False, "crop" if augmented else None)]
