"""ADCOL's variants: of its appendix, and of FedPall's code."""

import pytest
import torch

from fedrepro.methods.base import Batch, Upload
from fedrepro.methods.server import Server
from fedrepro.models import Output
from fedrepro.models.networks import ResNetDiscriminator
from tests import toys
from tests.methods.test_methods import record_messages


def training(settings=None, **fields):
    return toys.start("ADCOL", fields=fields, **(settings or {}))


@pytest.mark.parametrize("bn_policy", ["local", "average"])
def test_a_shared_predictor_is_all_that_is_averaged(bn_policy):
    run = training(settings={"model": "small-cnn"}, share_predictor=True, bn_policy=bn_policy)
    run.one_round()
    assert {name.split(".")[0] for name in run.travelling} == {"predictor"}
    has_norm = any(run.layout[name].is_bn for name in run.travelling)
    assert has_norm == (bn_policy == "average")
    one, other = (client.personal(run.server.model) for client in run.clients[:2])
    for name in one:
        assert torch.equal(one[name], other[name]) == (name in run.travelling), name


def test_eq_18_averages_over_the_discriminators_of_past_rounds():
    run = training(discriminators=2, mu=1.0)
    z, apart = torch.randn(5, run.server.feature_size), []
    for _ in range(3):
        run.one_round()
        apart.append(torch.log_softmax(run.server.modules["discriminator"](z), 1).mean())
    run.server.round = 4
    logits = run._download(run.clients[0])["discriminator"](z)
    torch.testing.assert_close(torch.log_softmax(logits, 1).mean(), sum(apart[1:]) / 2)


def test_a_resnet_reads_a_vector_as_a_picture():
    network = ResNetDiscriminator(2048, 5).eval()
    assert network.shape == (1, 32, 64) and network(torch.randn(2, 2048)).shape == (2, 5)
    run = training(discriminator_network="resnet50")
    assert run.server.modules["discriminator"].shape == (1, 4, 4)


def test_a_round_in_two_stages():
    settings = {"participation": 0.67, "stay": 2, "rounds": 4}
    run = training(settings=settings, two_stages=True)
    assert run.server.modules["discriminator"].linear3.out_features == 2  # of three clients
    ups = [u.message for u in record_messages(run)[1]]
    first = {k: v.clone() for k, v in run.server.modules["discriminator"].state_dict().items()}
    assert [set(message) for message in ups] == [{"representations"}] * 2
    assert toys.logged(run.curve(), "server", 1)["discriminator_loss"] > 0
    more = record_messages(run)[1]
    assert [u.message for u in more] == [{}, {}] and run.server.log == {}
    toys.assert_equal(run.server.modules["discriminator"].state_dict(), first)  # not learnt from
    one, two = (toys.logged(run.curve(), "term", number) for number in (1, 2))
    assert one["kl"] == 0 < two["kl"]


def test_the_server_can_keep_the_representations_of_clients_that_are_away(monkeypatch, tmp_path):
    away, taught = {"participation": 0.34, "rounds": 6, "seed": 1}, []
    toys.assert_resumes(lambda: training(away, keep_representations=True), tmp_path)
    monkeypatch.setattr(Server, "fit", lambda self, name, z, owner, **how: taught.append(owner))
    for keep in (False, True):
        run = training(keep_representations=keep)
        for client, sent in [(1, 2), (0, 3), (1, 4)]:
            message = {"representations": torch.zeros(sent, run.server.feature_size)}
            run.method.server_step(run.server, [Upload(client, sent, message)])
    assert [n.tolist() for n in taught[2::3]] == [[1] * 4, [1] * 4 + [0] * 3]


def test_the_discriminators_accuracy_is_logged_before_it_learns():
    """Client n sends vectors along axis n. A linear D that takes clients 0 and 1 for each other is
    right for client 2's five of ten; after enough steps it is right for all."""
    run = training(discriminator_hidden=(), discriminator_epochs=30, discriminator_lr=0.1)
    linear = run.server.modules["discriminator"].linear1
    with torch.no_grad():
        linear.weight.zero_(), linear.bias.zero_()
        linear.weight[[1, 0, 2], [0, 1, 2]] = 1.0
    ups = []
    for n, sent in enumerate((2, 3, 5)):
        z = torch.zeros(sent, run.server.feature_size)
        z[:, n] = 1.0
        ups.append(Upload(n, sent, {"representations": z}))
    seen = []
    for number in (1, 2):
        run.server.round, run.server.log = number, {}
        run.method.server_step(run.server, ups)
        seen.append(run.server.log["discriminator_accuracy_before"])
    assert seen == [50.0, 100.0]


def test_a_closing_pass_moves_statistics_alone_and_weight_decay_shrinks_the_discriminator():
    changes = {}, {"closing_pass": True}, {"discriminator_weight_decay": 5.0}
    plain, closed, decayed = runs = [training(**fields) for fields in changes]
    for run in runs:
        run.one_round()
    for name, value in plain.clients[0].kept.items():
        statistic = plain.layout[name].is_bn and plain.layout[name].is_buffer
        assert torch.equal(value, closed.clients[0].kept[name]) != statistic, name
    toys.assert_equal(decayed.clients[0].kept, plain.clients[0].kept)  # the server's decay
    for name, value in decayed.server.modules["discriminator"].named_parameters():
        assert value.norm() < 0.9 * plain.server.modules["discriminator"].get_parameter(name).norm()


def test_noisy_representations_lie_around_the_unit_range():
    def sent(**fields):
        return record_messages(training(**fields))[1][0].message["representations"]

    z, loud = sent(local_epsilon=1e9), sent(local_epsilon=0.5)
    torch.testing.assert_close(z.amin(1), torch.zeros(len(z)), atol=1e-6, rtol=0)
    torch.testing.assert_close(z.amax(1), torch.ones(len(z)), atol=1e-6, rtol=0)
    assert (loud - z).abs().mean().item() == pytest.approx(2.0, rel=0.15)  # Laplace of scale 2
    assert not torch.equal(loud, sent(local_epsilon=0.5, local_noise="gaussian"))


def test_the_discriminator_is_shown_what_it_was_taught():
    run = training(local_epsilon=2.0)
    received = run._download(run.clients[0])
    batch = Batch(torch.randn(4, run.server.feature_size), torch.arange(4) % 3)
    one, ten = (
        run.method.client_loss(lambda x, f=f: Output(f * x, x[:, :3]), batch, received)["kl"]
        for f in (1.0, 10.0)
    )
    torch.testing.assert_close(one, ten)
