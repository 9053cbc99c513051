"""The plain loop: clients at once give its bits, torch's own steps, memory kept."""

import threading

import pytest
import torch

from fedrepro.methods.fedavg import FedAvg
from tests.engine.test_fused import assert_same_run, start


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
    """One client, one batch a round: AdamW on the clipped gradient, its state kept for round 2."""
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
