"""Stacked clients get the plain loop's numbers, clients at once its bits; its steps are torch's."""

import threading
from dataclasses import replace
from typing import ClassVar, get_args

import numpy as np
import pandas as pd
import pytest
import torch

from fedrepro.base.progress import Silent
from fedrepro.base.protocol import OptimizerSpec
from fedrepro.methods.base import BNPolicy, Method, Phase
from fedrepro.methods.fedavg import FedAvg
from fedrepro.methods.losses import cross_entropy
from fedrepro.models import networks
from tests import toys

# Batches of 8 cut these into full ones, rests of 5, and a 17 whose last joins the one before.
SIZES = (21, 13, 17, 13, 16)
# Of toy batches of 4 at a large step the plain loop itself turns 1e-16 into 1e-6 within 3 rounds;
# here it keeps within 1e-14, so that what is compared is the engines and not chaos.
STEP = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3}
CALM = {"batch_size": 8, "optimizer": STEP, "precision": "float64"}


def start(name="FedAvg", engine="fused", sizes=SIZES, **settings):
    return toys.start(name, sizes, engine=engine, **{**CALM, **settings})


def assert_same_run(a, b, tolerance=1e-8):
    """Run both and compare all tensors, and the curves, which hold every term and the bytes of
    every message. Returns the second curve."""
    near = {"rtol": tolerance, "atol": tolerance}
    curves = [toys.numbers(run.run(Silent())) for run in (a, b)]
    one, other = a.state(), b.state()
    assert one.keys() == other.keys()
    for name, value in one.items():
        if not name.startswith("predicted/"):
            torch.testing.assert_close(other[name], value, **near, msg=name)
    pd.testing.assert_frame_equal(*curves, check_exact=False, **near)
    return curves[1]


def assert_engines_agree(tolerance=1e-8, **settings):
    one, two = (start(engine=engine, **settings) for engine in ("reference", "fused"))
    return assert_same_run(one, two, tolerance)


@pytest.mark.parametrize("name", toys.ON_IMAGES)
def test_every_method_equals_the_reference(name):
    assert_engines_agree(1e-7, name=name)


@pytest.mark.parametrize("name", toys.ON_IMAGES)
def test_every_method_runs_in_bf16(name):
    run = start(name, engine="reference", precision="bf16", rounds=2, local_epochs=1)
    curve = run.run(Silent())
    assert np.isfinite(curve[curve.measure == "term"].value).all()
    tensors = [*run.server.model.values(), *(v for c in run.clients for v in c.memory.values())]
    assert all(v.dtype != torch.bfloat16 for v in tensors)


ADAMW = {"kind": "adamw", "lr": 0.003, "clip": 1.0, "warmup": 2, "cosine": 5}
OPTIMIZERS = {
    "plain sgd": {"lr": 0.02},
    "adamw": {"kind": "adamw", "lr": 0.003},
    "adamw, scheduled, clipped": ADAMW,
    "adamw, kept": ADAMW | {"kept": True},
    "sgd, scheduled": {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3, "warmup": 2},
    "sgd, clipped": {"lr": 0.02, "momentum": 0.5, "clip": 0.05},
    "sgd, kept": {"lr": 0.02, "momentum": 0.9, "kept": True, "cosine": 4},
}


TURNED = {"data__rotate": 20.0, "data__normalise": "imagenet", "rounds": 2}
SETTINGS = {
    **{f"BatchNorm: {policy}": {"fields": {"bn_policy": policy}} for policy in get_args(BNPolicy)},
    **{name: {"name": "FedRep", "optimizer": spec} for name, spec in OPTIMIZERS.items()},
    "projection": {"model": "small-cnn", "sizes": (13, 9), "rounds": 2, "local_epochs": 1},
    "float32": {"precision": "float32", "tolerance": 1e-4},
    "some of SOLO's clients": {"name": "SOLO", "participation": 0.4},
    "some of ADCOL's clients": {"name": "ADCOL", "participation": 0.4},
    "flipped": {"data__flip": True},
    "turned": TURNED,
    "flipped and turned": {"data__flip": True, **TURNED},
    "two batches a step": {"name": "Per-FedAvg", "optimizer": ADAMW},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_equals_the_reference(setting):
    assert_engines_agree(**SETTINGS[setting])


def test_the_memory_format_moves_no_meaning(monkeypatch):
    runs = []
    for layout in (torch.channels_last, torch.contiguous_format):
        monkeypatch.setattr(networks, "FASTEST", layout)
        runs.append(start(engine="reference", model="small-cnn", sizes=(13, 9), rounds=2))
    assert [run.engine.format for run in runs] == [torch.channels_last, torch.contiguous_format]
    assert_same_run(*runs)


class Odd(Method):
    """What no paper here needs, but a file of somebody else's may hold: phases with their own
    optimisers, kept momenta, a part that no loss reaches, messages of different shapes."""

    name: ClassVar[str] = "Odd"
    reference: ClassVar[str] = "nobody"
    keeps_optimizer: ClassVar[bool] = True

    def phases(self, protocol):
        quick = OptimizerSpec(lr=0.02, momentum=0.5)
        return (
            Phase("features", 1, optimizer=quick),
            Phase("head", 2, trains=lambda tensor: tensor.part == "predictor"),
            Phase("ahead", 1, optimizer=OptimizerSpec(lr=0.01), lookahead=0.02),
        )

    def download(self, server, client):
        centre = torch.full((server.feature_size,), 0.1 * client, dtype=server.dtype)
        return {"anchors": {"points": centre.expand(1 + client % 2, -1).clone()}}

    def client_loss(self, model, batch, received):
        features = model(batch.x).features
        again = model(batch.x.flip(-1))  # a second pass: BatchNorm follows both
        # only what trains the head reaches it; the other phases leave it without a gradient
        if all(name.startswith("predictor") for name in model.params):
            return {"ce": cross_entropy(again.logits, batch.y)}
        points = received["anchors"]["points"]
        return {"pull": (features[:, None] - points).square().mean()}


@pytest.mark.parametrize("optimizer", [STEP, ADAMW | {"kept": True}])
def test_an_odd_method_equals_the_reference(optimizer):
    assert_engines_agree(method=Odd(), optimizer=optimizer)


def test_a_part_may_have_its_first_gradient_after_the_others():
    class Late(Method):
        name = reference = "Late"

        def client_loss(self, model, batch, received):
            out = model(batch.x)
            return {"ce": cross_entropy(out.logits if len(batch.y) == 5 else out.features, batch.y)}

    assert_engines_agree(method=Late(), sizes=(13, 21), rounds=2)


def test_parameters_without_a_gradient_are_not_decayed():
    run = start(method=Odd(), rounds=1, optimizer__weight_decay=0.5)
    job = run._job(run.clients[0], run._download(run.clients[0]), 1)
    result = dict(run.engine.train(run.method, [replace(job, phases=job.phases[:1])]))[0]
    for name, info in run.layout.items():
        if info.part == "predictor" and not info.is_counter:
            assert torch.equal(result.state[name], job.state[name]), name


def several(**settings):
    """Three clients at once, on that thread's core; otherwise tests have one thread."""
    run = start(engine="reference", **settings)
    run.engine.lanes = 3
    return run


@pytest.mark.parametrize("precision", ["float64", "bf16"])
@pytest.mark.parametrize("name", ["ADCOL", "MOON", "FedRep"])
def test_clients_at_once_have_the_plain_loops_bits(name, precision):
    settings = {"name": name, "precision": precision, "rounds": 2}
    assert_same_run(start(engine="reference", **settings), several(**settings), tolerance=0)


class Broken(FedAvg):
    """One of its clients fails, whichever the first thread trains; the others have hours to go."""

    def client_loss(self, model, batch, received):
        if threading.current_thread().name.endswith("_0"):
            raise RuntimeError("broken")
        return super().client_loss(model, batch, received)


def test_clients_under_way_end_after_their_batch():
    run = several(method=Broken(), sizes=(16, 16, 16), local_epochs=100_000)
    with pytest.raises(RuntimeError, match="broken"):
        run.one_round()
    assert not any(thread.name.startswith("client_") for thread in threading.enumerate())


def test_a_step_is_torchs_own():
    spec = {"kind": "adamw", "lr": 0.01, "clip": 0.1, "warmup": 4, "kept": True}
    run = start("SOLO", "reference", sizes=(8,), optimizer=spec, local_epochs=1, rounds=2)
    module, client = run.engine.module, run.clients[0]
    weights = {n: client.kept[n].clone().requires_grad_() for n, _ in module.named_parameters()}
    own = torch.optim.AdamW(weights.values(), lr=0.01)
    for number in (1, 2):
        run.engine._load({n: v.clone() for n, v in client.kept.items()})
        samples = client.data.train
        x = ((samples.images.double() / 255) - 0.5) / 0.5
        loss = torch.nn.functional.cross_entropy(module.train()(x).logits, samples.labels)
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        for value, gradient in zip(weights.values(), gradients, strict=True):
            value.grad = gradient
        assert torch.nn.utils.clip_grad_norm_(weights.values(), 0.1) > 0.1, "nothing was clipped"
        own.param_groups[0]["lr"] = 0.01 * number / 4
        own.step()
        run.one_round()
        for name, value in weights.items():
            torch.testing.assert_close(client.kept[name], value.detach())


SWITCHES = "discriminator_batch_norm", "discriminator_in_training_mode", "closing_pass"
FEDPALL = {**dict.fromkeys(SWITCHES, True), "discriminator_weight_decay": 1e-5}
READINGS = [
    ("ADCOL", {"share_predictor": True, "bn_policy": "average"}),
    ("ADCOL", {"discriminators": 3}),
    ("ADCOL", {"two_stages": True}),
    ("ADCOL", {"local_epsilon": 5.0}),
    ("ADCOL", FEDPALL),
    ("DBE", {"first_round": "averaged", "mean_lr": 0.001}),
    ("DBE", {"momentum": 1.0, "kappa": 10.0, "bn_policy": "local"}),
    ("Ditto", {"personal_epochs": None, "lam": 0.1, "bn_policy": "local"}),
    ("FedAPC", {"augmented": False, "prototypes_in_training_mode": True}),
    ("FedAPC", {"all_in_each": True, "views": 2}),
    ("FedDyn", {"form": "inert"}),
    ("FedProc", {"form": "idle-start", "prototype_weighting": "clients"}),
    ("FedProto", {"averages_networks": True, "second_pass": True}),
    ("FedProto", {"inference": "prototype", "prototype_weighting": "images"}),
    ("FPL", {"prototypes_in_training_mode": True, "prototypes_of_augmented_images": True}),
    ("I2PFL", {"mixup": "images", "augmented_constant": False}),
    ("I2PFL", {"mixup": "none", "rule": "clustering"}),
    ("I2PFL", {"one_lambda": True, "alignment": "sum", "rule": "averaging", "decay": 0.0}),
    ("I2PFL", {"augmented_over": "client", "distance": "squared"}),
    ("MOON", {"references_in_training_mode": True, "second_pass": True}),
    ("RUCR", {"rectify_steps": 5, "anchors": "raw", "rectify_at": "end"}),
]


@pytest.mark.parametrize(("name", "fields"), READINGS, ids=str)
def test_a_reading_is_another_run_in_both_engines(name, fields):
    sizes = (21, 13, 5) if name == "RUCR" else (21, 13, 13)  # more and less than a batch
    settings = {"name": name, "rounds": 2, "local_epochs": 1, "sizes": sizes}
    found = assert_engines_agree(fields=fields, **settings)
    default = toys.numbers(start(engine="reference", **settings).run(Silent()))
    assert not found.equals(default)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("DBE", {"first_round": "averaged"}),
        *(("FedAPC", {}), ("FedDyn", {"form": "inert"}), ("FedProc", {}), ("FPL", {})),
        *(("FedProto", {"averages_networks": True}), ("I2PFL", {"apa": 0.0}), ("MOON", {})),
        ("RUCR", {"rectify_at": "end"}),
    ],
)
def test_the_first_round_is_fedavgs(name, fields):
    run, plain = toys.start(name, fields=fields), toys.start()
    run.one_round(), plain.one_round()
    for key, value in plain.server.model.items():
        torch.testing.assert_close(run.server.model[key], value)
    run.one_round(), plain.one_round()
    moved = any(not torch.allclose(run.server.model[k], v) for k, v in plain.server.model.items())
    assert moved == (fields.get("form") != "inert")
