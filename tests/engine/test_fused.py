"""Stacked clients get the plain loop's numbers, whatever is stacked with what."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fedrepro import engine as engines
from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.engine import LoopEngine, StackedEngine, stacked
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import BN_POLICIES
from fedrepro.methods.messages import Network
from fedrepro.records.checkpoint import FileCheckpoint
from tests import toys

# Batches of 8 cut these into full ones, rests of 5, and a 9 whose last sample joins the one before.
SIZES = (21, 13, 9, 13, 16)
# Of toy batches of 4 at a large step the plain loop itself turns 1e-16 into 1e-6 within 3 rounds;
# here it keeps within 1e-14, so that what is compared is the engines and not chaos.
CALM = {
    "batch_size": 8,
    "optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3},
    "precision": "float64",
}


def start(name="FedAvg", engine="fused", seed=0, sizes=SIZES, method=None, fields=None, **changes):
    return Training(
        method or methods.create(name, **(fields or {})),
        toys.protocol(**{**CALM, **changes}),
        toys.federation(sizes),
        seed,
        engine=engine,
    )


def listen(run):
    """All messages of a run by round, client and way, as flat copies of their tensors."""
    heard = {}
    download, upload = run._download, run._upload

    def down(client):
        message = download(client)
        key = run.server.round, client.index
        nth = sum(k[:2] == key for k in heard)  # a second one before a test
        heard[*key, f"down {nth}"] = flat(message)
        return message

    def up(client, *args):
        sent = upload(client, *args)
        heard[run.server.round, client.index, "up"] = flat(sent.message)  # in any order
        return sent

    run._download, run._upload = down, up
    return heard


def flat(message):
    tensors = {}
    for kind, payload in message.items():
        named = payload.tensors if isinstance(payload, Network) else payload
        named = {"": named} if isinstance(named, torch.Tensor) else named
        tensors |= {f"{kind}/{name}": value.clone() for name, value in named.items()}
    return tensors


def numbers(curve):
    return curve[curve.measure != "seconds"].reset_index(drop=True)


def close(a, b, tolerance):
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=tolerance, atol=tolerance, msg=name)


def assert_same_run(a, b, tolerance=1e-8):
    """Run both and compare: messages, server, clients, momenta, curve."""
    one, two = listen(a), listen(b)
    curves = [numbers(run.run(Silent())) for run in (a, b)]
    assert one.keys() == two.keys()
    for key, message in one.items():
        close(message, two[key], tolerance)
    close(a.server.state(), b.server.state(), tolerance)
    for x, y in zip(a.clients, b.clients, strict=True):
        assert x.groups.keys() == y.groups.keys()
        for group, named in x.groups.items():
            close(named, y.groups[group], tolerance)
    pd.testing.assert_frame_equal(*curves, check_exact=False, rtol=tolerance, atol=tolerance)


def assert_engines_agree(tolerance=1e-8, **settings):
    assert_same_run(
        start(engine="reference", **settings), start(engine="fused", **settings), tolerance
    )


# The same numbers as the plain loop.


@pytest.mark.parametrize("name", toys.ON_IMAGES)
def test_every_method_equals_the_reference(name):
    assert_engines_agree(name=name)


@pytest.mark.parametrize("policy", BN_POLICIES)
def test_every_bn_policy_equals_the_reference(policy):
    assert_engines_agree(fields={"bn_policy": policy})


@pytest.mark.parametrize("model", ["small-cnn", pytest.param("resnet10", marks=pytest.mark.slow)])
def test_other_networks_equal_the_reference(model):
    assert_engines_agree(model=model, sizes=(13, 9), rounds=2, local_epochs=1)


def test_float32_equals_the_reference_to_1e_4():
    assert_engines_agree(precision="float32", tolerance=1e-4)


def test_bf16_stays_near_the_reference():
    """Losses of the first round, within bfloat16's 3 digits."""
    ce = []
    for engine in ("reference", "fused"):
        run = start(engine=engine, precision="bf16", rounds=1, local_epochs=1)
        curve = run.run(Silent())
        ce.append(curve[curve.subject == "ce"].value.to_numpy())
        assert all(value.dtype == torch.float32 for value in run.server.model.values())
    assert ce[0] == pytest.approx(ce[1], rel=0.03)


@pytest.mark.parametrize("name", toys.ON_IMAGES)
def test_every_method_runs_in_bf16(name):
    """Whatever a method sends or keeps is of the run's own type again."""
    run = start(name, engine="reference", precision="bf16", rounds=2, local_epochs=1)
    curve = run.run(Silent())
    assert np.isfinite(curve[curve.measure == "term"].value).all()
    tensors = [*run.server.model.values(), *(v for c in run.clients for v in c.memory.values())]
    assert all(v.dtype != torch.bfloat16 for v in tensors)


@pytest.mark.parametrize("name", ["SOLO", "ADCOL"])
def test_partial_participation_equals_the_reference(name):
    assert_engines_agree(name=name, participation=0.4)


def test_augmentation_equals_the_reference():
    assert_engines_agree(data__flip=True, data__rotate=20.0)


def test_a_discriminator_with_batch_norm_equals_the_reference():
    assert_engines_agree(name="ADCOL", fields={"discriminator_batch_norm": True})


def test_plain_sgd_equals_the_reference():
    assert_engines_agree(name="SOLO", optimizer={"lr": 0.02})


# What is stacked with what does not matter.


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["FedProx", "ADCOL"])
def test_the_size_of_a_stack_does_not_matter(name, size):
    limited = start(name)
    limited.engine.max_stack = size
    assert_same_run(start(name), limited)


def test_a_stack_takes_no_more_memory_than_its_share(monkeypatch):
    run = start("FedAvg")
    size = stacked.COPIES * sum(value.nbytes for value in run.server.model.values())
    free = SimpleNamespace(available=2.5 * size / stacked.SHARE)
    monkeypatch.setattr(stacked.psutil, "virtual_memory", lambda: free)
    assert run.engine._largest(run._job(run.clients[0], {}, 1)) == 2
    assert_same_run(start("FedAvg"), run)


# Equal bits.


def test_same_seed_gives_the_same_bits():
    first, second = (start("ADCOL").run(Silent()) for _ in range(2))
    pd.testing.assert_frame_equal(numbers(first), numbers(second), check_exact=True)


class Interrupt(Exception):
    pass


@pytest.mark.parametrize("name", ["FedAvg", "SOLO", "FedRep", "ADCOL"])
def test_resumed_equals_uninterrupted_bit_for_bit(name, tmp_path):
    class StopAfterTwo(FileCheckpoint):
        def due(self):
            return True

        def save(self, tensors, facts):
            super().save(tensors, facts)
            if facts["round"] == 2:
                raise Interrupt

    whole = start(name, rounds=4)
    expected = whole.run(Silent())
    with pytest.raises(Interrupt):
        start(name, rounds=4).run(Silent(), StopAfterTwo(tmp_path))
    resumed = start(name, rounds=4)
    curve = resumed.run(Silent(), FileCheckpoint(tmp_path))
    pd.testing.assert_frame_equal(numbers(curve), numbers(expected), check_exact=True)
    for a, b in zip(whole.clients, resumed.clients, strict=True):
        assert all(torch.equal(a.kept[n], b.kept[n]) for n in a.kept)
        assert all(torch.equal(a.optimizer[n], b.optimizer[n]) for n in a.optimizer)


# Which engine runs.


def test_auto_is_the_plain_loop():
    assert engines.resolve("auto") == engines.resolve("reference") == "reference"
    assert engines.resolve("loop") == "reference"
    assert engines.resolve("stacked") == engines.resolve("fused") == "fused"
    assert {"reference": LoopEngine, "fused": StackedEngine} == engines.ENGINES
    with pytest.raises(FedReproError, match="choose from auto, loop, stacked, reference, fused"):
        engines.resolve("warp")


# Where there is a GPU.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", toys.ON_IMAGES)
def test_every_method_equals_the_reference_on_a_gpu(name):
    def run(engine):
        protocol, federation = toys.protocol(**CALM), toys.federation(SIZES)
        return Training(methods.create(name), protocol, federation, 0, "cuda", engine)

    assert_same_run(run("reference"), run("fused"))
