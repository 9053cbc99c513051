"""RUCR: rectification."""

from dataclasses import replace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from tests import toys
from tests.methods.test_methods import only


def training(model="tiny-cnn", **fields):
    return toys.start("RUCR", (8, 6), fields=fields, model=model)


def trained(run, phases, round=2, client=None):
    """A client's network at the start and after some phases."""
    client = client or run.clients[0]
    job = replace(run._job(client, run._download(client), round), phases=phases)
    return job.state, only(run, job)


def test_rectification_moves_the_predictor_and_no_statistics():
    run = training(model="small-cnn")
    run.one_round()
    before, result = trained(run, run.method.phases(run.protocol)[:1])
    assert result.terms["rectify"] > 0
    for name, info in run.layout.items():
        moves = info.part == "predictor" and not info.is_buffer
        if not info.is_counter and ("weight" in name or not moves):
            assert torch.equal(result.state[name], before[name]) != moves, name


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
        run = toys.start(sizes=(images, 11), method=method, engine=engine)
        for client in run.clients:
            before, result = trained(run, method.phases(run.protocol)[:1], 1, client)
            weight = next(n for n, i in run.layout.items() if i.part == "predictor")
            moved = before[weight] - result.state[weight]
            torch.testing.assert_close(moved, torch.full_like(moved, 5))
        assert set(sizes) == {min(images, 4), 4}
