"""Optimisers beyond plain SGD: schedules, clipping, AdamW, in both engines and across a resume."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import OptimizerSpec
from fedrepro.records.checkpoint import FileCheckpoint
from tests import toys
from tests.engine.test_fused import assert_engines_agree, numbers, start
from tests.engine.test_odd_methods import Forgetful, Odd

ADAMW = {"kind": "adamw", "lr": 0.003, "clip": 1.0, "warmup": 2, "cosine": 5}
SETTINGS = {
    "adamw": {"kind": "adamw", "lr": 0.003},
    "adamw, scheduled, clipped": ADAMW,
    "adamw, kept": ADAMW | {"kept": True},
    "sgd, scheduled": {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3, "warmup": 2},
    "sgd, clipped": {"lr": 0.02, "momentum": 0.5, "clip": 0.05},
    "sgd, kept": {"lr": 0.02, "momentum": 0.9, "kept": True, "cosine": 4},
}


def test_the_rate_rises_evenly_then_falls_as_a_cosine() -> None:
    spec = OptimizerSpec(lr=0.001, warmup=10, cosine=200)
    assert [spec.rate(r) for r in (1, 5, 10, 11)] == pytest.approx([1e-4, 5e-4, 1e-3, 1e-3])
    assert spec.rate(106) == pytest.approx(5e-4)  # half of the 190 rounds that it falls
    assert spec.rate(200) == pytest.approx(0.0005 * (1 + math.cos(math.pi * 189 / 190)))
    assert spec.rate(201) == spec.rate(500) == 0
    assert OptimizerSpec(lr=0.1).rate(1) == OptimizerSpec(lr=0.1).rate(99) == 0.1
    assert OptimizerSpec(lr=0.1, warmup=4).rate(9) == 0.1


def test_what_is_not_given_is_pytorchs_own_or_an_error() -> None:
    adamw, torchs = OptimizerSpec(kind="adamw"), torch.optim.AdamW([torch.zeros(1)])
    assert adamw.weight_decay == torchs.defaults["weight_decay"] == 0.01
    assert OptimizerSpec(kind="adamw", weight_decay=0.0).weight_decay == 0
    with pytest.raises(FedReproError, match="leave momentum at 0"):
        toys.protocol(optimizer={"kind": "adamw", "momentum": 0.9})
    with pytest.raises(FedReproError, match="cosine must end after the warm-up"):
        toys.protocol(optimizer={"warmup": 10, "cosine": 10})


def test_a_plain_optimisers_dump_is_as_it_was() -> None:
    assert OptimizerSpec().model_dump() == {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}
    assert OptimizerSpec.model_validate(OptimizerSpec(**ADAMW).model_dump()) == OptimizerSpec(
        **ADAMW
    )


def test_a_step_is_torchs_own() -> None:
    """One client, one batch a round: AdamW on the clipped gradient, its state kept for round 2."""
    spec = {"kind": "adamw", "lr": 0.01, "clip": 0.1, "warmup": 4, "kept": True}
    run = start("SOLO", "reference", sizes=(8,), optimizer=spec, local_epochs=1, rounds=2)
    module = run.engine.module
    weights = {n: v.clone().requires_grad_() for n, v in run.clients[0].kept.items() if v.is_leaf}
    names = [n for n, _ in module.named_parameters()]
    twin = torch.optim.AdamW([weights[n] for n in names], lr=0.01)
    for number in (1, 2):
        state = {
            n: v.detach().clone() for n, v in run.clients[0].personal(run.server.model).items()
        }
        run.engine._load(state)
        samples = run.clients[0].data.train
        x = ((samples.images.double() / 255) - 0.5) / 0.5
        loss = torch.nn.functional.cross_entropy(module.train()(x).logits, samples.labels)
        gradients = torch.autograd.grad(loss, [dict(module.named_parameters())[n] for n in names])
        for name, gradient in zip(names, gradients, strict=True):
            weights[name].grad = gradient
        length = torch.nn.utils.clip_grad_norm_([weights[n] for n in names], 0.1)
        assert length > 0.1, "nothing was clipped"
        twin.param_groups[0]["lr"] = 0.01 * number / 4
        twin.step()
        run.one_round()
        for name in names:
            torch.testing.assert_close(run.clients[0].kept[name], weights[name].detach())


@pytest.mark.parametrize("name", ["FedAvg", "SOLO"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_engines_agree(setting: str, name: str) -> None:
    assert_engines_agree(name=name, optimizer=SETTINGS[setting], rounds=4)


@pytest.mark.parametrize("method", [Odd(), Forgetful()], ids=["Odd", "Forgetful"])
def test_engines_agree_over_phases(method: Odd | Forgetful) -> None:
    assert_engines_agree(method=method, optimizer=ADAMW | {"kept": True})


def test_lookahead_steps_agree() -> None:
    assert_engines_agree(name="Per-FedAvg", optimizer=ADAMW)


class Interrupt(Exception):
    pass


@pytest.mark.parametrize("engine", ["reference", "fused"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("setting", ["adamw, kept", "sgd, kept"])
def test_resumed_equals_uninterrupted_bit_for_bit(
    setting: str, precision: str, engine: str, tmp_path: Path
) -> None:
    class StopAfterTwo(FileCheckpoint):
        def due(self) -> bool:
            return True

        def save(self, tensors: object, facts: dict[str, object]) -> None:
            super().save(tensors, facts)
            if facts["round"] == 2:
                raise Interrupt

    def begin() -> object:
        return start(
            "FedAvg", engine, optimizer=SETTINGS[setting], rounds=4, precision=precision,
            model="small-cnn", local_epochs=1,
        )  # fmt: skip

    whole = begin()
    expected = whole.run(Silent())
    with pytest.raises(Interrupt):
        begin().run(Silent(), StopAfterTwo(tmp_path))
    resumed = begin()
    curve = resumed.run(Silent(), FileCheckpoint(tmp_path))
    pd.testing.assert_frame_equal(numbers(curve), numbers(expected), check_exact=True)
    for one, other in zip(whole.clients, resumed.clients, strict=True):
        assert one.optimizer.keys() == other.optimizer.keys() and one.optimizer
        assert all(torch.equal(one.optimizer[n], other.optimizer[n]) for n in one.optimizer)
