"""FedPall on cases worked out by hand, and what of it travels."""

import math
from types import SimpleNamespace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.rng import torch_stream
from fedrepro.engine import in_order
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.messages import Network
from fedrepro.methods.server import Server
from fedrepro.models import Output, build_model, layout
from tests import toys

D = 16  # tiny-cnn's features


def training(sizes=(8, 6), model="tiny-cnn", **fields):
    protocol = toys.protocol(model=model)
    return Training(methods.create("FedPall", **fields), protocol, toys.federation(sizes), seed=0)


def tensors(run, client):
    """All tensors of a client's network as training left it."""
    return run.clients[client].trained


# The loss. Two features of class 0, (2, 0) and (3, 4); prototypes (0.5, 0) and (0, 1).


class Given:
    """A network whose features are its input and whose logits are (0, 0)."""

    def __call__(self, x):
        return Output(x, torch.zeros(len(x), 2, dtype=x.dtype))


def terms(present=(True, True), **fields):
    amplifier = torch.nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():  # the first feature is taken for client 0's with 3/4, the second with 1/2
        amplifier.weight.copy_(torch.tensor([[math.log(3) / 2, -3 * math.log(3) / 8], [0.0, 0.0]]))
    received = {
        "prototypes": torch.tensor([[0.5, 0.0], [0.0, 1.0]]).double(),
        "present": torch.tensor(present),
        "amplifier": Network(amplifier),
    }
    batch = Batch(torch.tensor([[2.0, 0.0], [3.0, 4.0]]).double(), torch.tensor([0, 0]))
    found = methods.create("FedPall", **fields).client_loss(Given(), batch, received)
    return {name: value.item() for name, value in found.items()}


def test_loss_as_the_code_has_it():
    found = terms(mu=0.3, delta=0.7)
    kl = -(math.log(2 * 3 / 4) + math.log(2 * 1 / 4)) / 2
    first = math.log(math.exp(0.5 / 3) + 1) - 1 / 3
    second = math.log(math.exp(0.6 * 0.5 / 3) + math.exp(0.8 / 3)) - 0.6 / 3
    assert found == pytest.approx(
        {"ce": math.log(2), "kl": 0.3 * kl / 2, "contrast": 0.7 * (first + second) / 2}
    )


def test_loss_as_the_paper_has_it():
    found = terms(mu=0.7, delta=0.3, temperature=0.5, reading="paper")
    kl = 3 / 4 * math.log(2 * 3 / 4) + 1 / 4 * math.log(2 * 1 / 4)
    contrast = ((0 - 1) / 0.5 + (0.8 - 0.6) / 0.5) / 2
    assert found == pytest.approx(
        {"ce": math.log(2), "kl": 0.7 * kl / 2, "contrast": 0.3 * contrast}
    )


def test_without_prototypes_the_contrast_is_zero():
    assert terms(present=(False, False))["contrast"] == 0


def test_a_weight_of_zero_leaves_the_term_out():
    assert set(terms()) == {"ce", "kl", "contrast"}
    assert set(terms(mu=0.0)) == {"ce", "contrast"}
    assert set(terms(delta=0.0)) == {"ce", "kl"}
    assert set(terms(mu=0.0, delta=0.0)) == {"ce"}


# The server. Two clients, two classes; class 1 is the second client's alone.


def served(**fields):
    """A server of two clients and two classes, and its classifier's weights at the start."""
    method = methods.create("FedPall", server_epochs=1, **fields)
    model = build_model("tiny-cnn", 2, toys.SIZE).double()
    state = {n: v.clone() for n, v in model.state_dict().items() if "num_batches" not in n}
    protocol = toys.protocol(precision="float64")
    server = Server(state, layout(model), protocol, 0, 2, D, 2, torch.device("cpu"))
    method.init_server(server)
    return method, server, server.model["predictor.weight"].clone()


def vector(*values):
    return torch.tensor([*values, *[0.0] * (D - len(values))], dtype=torch.float64)


def uploads():
    nobody = vector()
    sent = (
        (torch.stack([vector(1, 2)]), [0], (vector(3, 4), nobody), (1, 0)),
        (torch.stack([vector(0, 1), vector(2, 0)]), [0, 1], (vector(2, 0), vector(0, 5)), (3, 2)),
    )
    return [
        Upload(
            client,
            len(labels),
            {
                "features": features,
                "labels": torch.tensor(labels),
                "prototypes": torch.stack(prototypes),
                "counts": torch.tensor(counts, dtype=torch.float64),
            },
        )
        for client, (features, labels, prototypes, counts) in enumerate(sent)
    ]


@pytest.mark.parametrize(
    ("reading", "expected"),
    # class 0: (1 (0.6, 0.8) + 3 (1, 0)) / 4, and (1 (3, 4) + 3 (2, 0)) / 4
    [("code", ((0.9, 0.2), (0.0, 1.0))), ("paper", ((2.25, 1.0), (0.0, 5.0)))],
)
def test_prototypes_are_joined(reading, expected):
    method, server, _ = served(reading=reading)
    method.server_step(server, uploads())
    rows = torch.stack([vector(*row) for row in expected])
    torch.testing.assert_close(server.tensors["prototypes"], rows)
    assert server.tensors["present"].tolist() == [True, True]


def test_a_prototype_nobody_renews_stays():
    method, server, _ = served(mu=0.0)
    assert server.tensors["present"].tolist() == [False, False]
    method.server_step(server, uploads()[:1])
    assert server.tensors["present"].tolist() == [True, False]
    method.server_step(server, uploads())
    method.server_step(server, uploads()[:1])
    rows = torch.stack([vector(0.6, 0.8), vector(0.0, 1.0)])
    torch.testing.assert_close(server.tensors["prototypes"], rows)


def test_the_classifier_takes_one_step_of_gradient_descent():
    """All three features make one batch: W <- W - lr (mean (p - e_y) z^T + decay W)."""
    method, server, weight = served(server_lr=0.5, server_weight_decay=0.1)
    bias = server.model["predictor.bias"].clone()
    sent = uploads()
    method.server_step(server, sent)
    z = torch.cat([u.message["features"] for u in sent])
    error = (z @ weight.T + bias).softmax(1) - torch.tensor([[1, 0], [1, 0], [0, 1]]).double()
    moved = weight - 0.5 * (error.T @ z / 3 + 0.1 * weight)
    torch.testing.assert_close(server.model["predictor.weight"], moved)
    moved = bias - 0.5 * (error.mean(0) + 0.1 * bias)
    torch.testing.assert_close(server.model["predictor.bias"], moved)


def test_the_amplifier_learns_who_sent_what_and_the_classifier_what_it_is():
    method, server, _ = served()
    shown = {}

    def fit(name, inputs, labels, **settings):
        shown[name] = inputs, labels.tolist(), settings["optimizer"].momentum

    server.fit = fit
    method.server_step(server, uploads())
    assert shown["classifier"][1:] == ([0, 0, 1], 0.9)
    assert shown["amplifier"][1:] == ([0, 1, 1], 0.9)
    assert torch.equal(shown["classifier"][0], shown["amplifier"][0])


def test_the_global_classifier_is_not_the_clients_first_one_and_goes_down_in_round_one():
    run = training()
    down = run._download(run.clients[0])["model"]
    again = Training(methods.create("SOLO"), run.protocol, run.federation, seed=0).server.model
    assert set(down) == {"predictor.weight", "predictor.bias"}
    assert torch.equal(down["predictor.weight"], run.server.modules["classifier"].weight)
    assert not torch.equal(down["predictor.weight"], again["predictor.weight"])


# What travels.


def test_bytes():
    run = training()
    curve = run.run(Silent())
    clients, images, k = 2, 8 + 6, toys.CLASSES
    amplifier = D * 512 + 512 * 512 + 512 * clients + 2 * 4 * 512  # no biases; BatchNorm's four
    rows = curve[(curve.measure == "bytes") & (curve["round"] == 2)].set_index("subject").value
    assert rows.to_dict() == {
        "down/model": clients * 4 * (D * k + k),
        "down/amplifier": clients * 4 * amplifier,
        "down/prototypes": clients * 4 * k * D,
        "down/present": clients * k,
        "up/features": 4 * images * D,
        "up/labels": 8 * images,
        "up/prototypes": clients * 4 * k * D,
        "up/counts": clients * 4 * k,
    }


def test_without_kl_no_amplifier_and_without_global_classifier_no_weights():
    run = training(mu=0.0, global_classifier=False)
    run.run(Silent())
    assert set(run._download(run.clients[0])) == {"prototypes", "present"}
    assert not any(name.startswith(("amplifier", "classifier")) for name in run.server.log)


def test_clients_keep_encoder_and_batch_norm_and_take_over_linear_layers():
    run = training(model="small-cnn")
    taken = {n for n in run.loaded}
    assert taken == {
        n for n, info in run.layout.items() if info.part == "predictor" and not info.is_bn
    }
    run.one_round()
    for name in taken:
        assert torch.equal(run.clients[0].personal(run.server.model)[name], run.server.model[name])
    kept = [client.kept for client in run.clients]
    assert all(not torch.equal(kept[0][n], kept[1][n]) for n in kept[0] if "bias" not in n)


def test_tested_is_what_training_left_not_the_new_global_classifier():
    run = training()
    curve = run.run(Silent())
    assert set(curve[curve.measure == "accuracy"].subject) == {"trained"}
    tested = dict(run.tested_networks(3))
    for client in run.clients:
        weight = tested[client.data.domain]["predictor.weight"]
        assert not torch.equal(weight, run.server.model["predictor.weight"])
        assert torch.equal(weight, client.trained["predictor.weight"])


def test_the_pass_after_training_moves_batch_statistics_and_nothing_else():
    with_pass, without = training(), training(closing_pass=False)
    with_pass.one_round(), without.one_round()
    for name, info in with_pass.layout.items():
        if not info.is_counter:
            same = torch.equal(tensors(with_pass, 0)[name], tensors(without, 0)[name])
            assert same == (not info.is_buffer), name


# How features are sent.

Z = torch.tensor([[1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10], [2.0] * 10, [0.0] * 10])
PROTOTYPES = torch.tensor([[10.0] * 10, [20.0] * 10])


def sent(mode, **fields):
    client = SimpleNamespace(
        labels=torch.tensor([0, 1, 1]),
        received={"prototypes": PROTOTYPES},
        generator=torch.Generator().manual_seed(0),
    )
    return methods.create("FedPall", sent_as=mode, **fields).disguised(Z, client)


def test_raw_features_are_sent_as_they_are():
    assert torch.equal(sent("raw"), Z)


def test_gaussian_noise_has_variance_one():
    client = SimpleNamespace(generator=torch.Generator().manual_seed(0))
    noise = methods.create("FedPall", sent_as="gaussian").disguised(torch.zeros(100, 100), client)
    assert noise.mean().item() == pytest.approx(0, abs=0.05)
    assert noise.std().item() == pytest.approx(1, abs=0.05)


def test_mixed_features_lie_between_themselves_and_their_prototype():
    found = sent("mixed", mix_low=0.8, mix_high=0.8)
    torch.testing.assert_close(found, 0.8 * Z + 0.2 * PROTOTYPES[torch.tensor([0, 1, 1])])


def test_masked_features_lack_the_same_tenth_in_every_sample():
    found = sent("masked")
    gone = found[0] == 0
    assert gone.sum() == 1
    assert torch.equal(found, torch.where(gone, 0.0, Z))


def test_both_together():
    found = sent("mixed-masked", mix_low=0.8, mix_high=0.8, keep=0.5)
    gone = found[0] == 0
    mixed = 0.8 * Z + 0.2 * PROTOTYPES[torch.tensor([0, 1, 1])]
    assert gone.sum() == 5
    torch.testing.assert_close(found, torch.where(gone, 0.0, mixed))


def test_the_papers_mask_draws_each_place_by_itself():
    method = methods.create("FedPall", sent_as="masked", reading="paper", keep=0.5)
    client = SimpleNamespace(
        labels=torch.tensor([0]),
        received={"prototypes": PROTOTYPES},
        generator=torch.Generator().manual_seed(0),
    )
    kept = {int(method.disguised(torch.ones(1, 10), client).sum()) for _ in range(20)}
    assert len(kept) > 1


def test_uploads_of_a_run_are_masked_features_in_training_mode():
    run = training(sent_as="masked")
    messages = []
    upload = run._upload
    run._upload = lambda *args: messages.append(upload(*args)) or messages[-1]
    run.one_round()
    stream = torch_stream(0, "method", client=0, round=1)
    samples, augmentation = run.clients[0].data.train, run.protocol.data.augmentation
    z = run.engine.features(tensors(run, 0), samples, True, augmentation, stream)
    found = messages[0].message["features"]
    gone = (found == 0).all(dim=0)
    assert gone.sum() == D - int(0.9 * D)
    torch.testing.assert_close(found, torch.where(gone, 0.0, z))


# A whole run.


def test_every_term_has_a_gradient_after_the_first_round():
    """Left out of the loss, each term's part of the update is missing."""
    run = training()
    run.one_round()
    client = run.clients[0]
    job = run._job(client, run._download(client), 2)

    def after(**fields):
        method = methods.create("FedPall", **fields)
        return in_order(run.engine.train(method, [job]))[0]

    whole = after()
    assert set(whole.terms) == {"ce", "kl", "contrast"}
    assert all(value > 0 for value in whole.terms.values())
    encoder = next(n for n, info in run.layout.items() if info.part == "encoder")
    for weight in ("mu", "delta"):
        assert not torch.equal(after(**{weight: 0.0}).state[encoder], whole.state[encoder])


def test_the_server_learns_both_its_tasks():
    run = training(sizes=(24, 24), server_epochs=10, sent_as="raw", mu=0.001)
    run.run(Silent())
    assert run.server.log["classifier_accuracy"] > 90
    assert run.server.log["amplifier_accuracy"] > 60


def test_wrong_values_are_single_clear_lines():
    with pytest.raises(FedReproError, match="reading"):
        methods.create("FedPall", reading="appendix")
    with pytest.raises(FedReproError, match=r"keep = 1\.5: give a value between"):
        methods.create("FedPall", keep=1.5)
