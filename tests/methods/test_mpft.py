"""MPFT: its prototypes, the server's training, what travels, and the adaptation afterwards."""

import math

import pytest
import torch

from fedrepro.base.errors import FedReproError
from tests import embedded, toys
from tests.methods.test_methods import record_messages

RANDOM = {"prototypes": "random", "rate": 0.3}
QUICK = {"server_epochs": 12, "server_warmup": 2}


def one_round(**fields):
    run = embedded.start("MPFT", fields={**QUICK, **fields}, rounds=1)
    return run, *record_messages(run)


def test_the_random_rule_sends_a_share_of_the_embeddings_each_once():
    run, _, ups = one_round(**RANDOM)
    for client, up in zip(run.clients, ups, strict=True):
        parts = up.message["prototypes"].split(up.message["counts"].tolist())
        for label, sent in enumerate(parts):
            own = client.data.train.images[client.data.train.labels == label]
            assert len(sent) == math.ceil(0.3 * len(own))
            where = (sent[:, None] == own[None]).all(dim=2)
            assert (where.sum(dim=1) == 1).all() and (where.sum(dim=0) <= 1).all()


def test_noise_has_the_scale_and_the_share():
    before, after = (
        torch.cat([up.message["prototypes"] for up in one_round(prototypes="random", **how)[2]])
        for how in ({"rate": 1.0}, {"rate": 1.0, "noise_scale": 4.0, "noise_share": 0.5})
    )
    assert (after - before).std().item() == pytest.approx(2.0, rel=0.1)
    assert (after - before).mean().abs().item() < 0.2


def test_prototypes_go_up_and_the_adapter_down_and_learns():
    run = embedded.start("MPFT", fields={**RANDOM, "rate": 1.0}, rounds=1)
    train = run.clients[0].data.train
    before = run.engine.evaluate(run.server.model, train)[1]
    downs, ups = record_messages(run)
    assert run.engine.evaluate(run.server.model, train)[1] < before
    curve = run.log.frame()
    sent = curve[curve.measure == "bytes"].set_index("subject").value.to_dict()
    adapter = 4 * 2 * embedded.VALUES * (embedded.VALUES // 4)
    rows = sum(len(up.message["prototypes"]) for up in ups)
    assert sent == {
        "down/model": 3 * adapter,
        "up/prototypes": 4 * rows * embedded.VALUES,
        "up/counts": 3 * 8 * toys.CLASSES,
    }
    assert all("predictor.weight" not in down["model"] for down in downs)


def test_a_client_adapts_the_adapter_it_received_to_a_few_images_of_each_class():
    run, *_ = one_round(shots=2, adaptation_lr=0.05)
    assert run.evaluated == ("personal",)
    job = run._adaptation(run.clients[0], 1, run.method.before_test(run.protocol, True))
    assert job.samples.labels.tolist() == [0, 1, 2, 0, 1, 2] and job.batch_size == 8
    assert torch.equal(job.samples.images, run.clients[0].data.train.images[:6])
    for client in run.clients:
        adapted = run.tested_networks(1)[client.data.domain]
        own = client.personal(run.server.model)
        assert any(not torch.equal(adapted[n], own[n]) for n in own)
        assert torch.equal(adapted["predictor.weight"], own["predictor.weight"])


@pytest.mark.parametrize("fields", [RANDOM, {"shots": 3, "noise_scale": 0.5}])
def test_resumed_equals_uninterrupted_bit_for_bit(fields, tmp_path):
    toys.assert_resumes(lambda: embedded.start("MPFT", fields={**QUICK, **fields}), tmp_path)


def test_images_are_one_clear_error():
    run = toys.start("MPFT")
    with pytest.raises(FedReproError, match=r"works on embeddings; choose .* data\.encoder"):
        run.one_round()
