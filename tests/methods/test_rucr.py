"""RUCR: rectification, and what travels."""

from dataclasses import replace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from tests import toys

D = 16  # tiny-cnn's features


def training(model="tiny-cnn", **fields):
    return toys.start("RUCR", (8, 6), fields=fields, model=model)


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


def trained(run, phases, round=2, method=None):
    """A client's network at the start and after some phases."""
    client = run.clients[0]
    job = run._job(client, run._download(client), round)
    job = replace(job, phases=phases)
    return job.state, dict(run.engine.train(method or run.method, [job]))[0]


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
            job = run._job(client, run._download(client), 1)
            job = replace(job, phases=method.phases(run.protocol)[:1])
            state = dict(run.engine.train(method, [job]))[0].state
            weight = next(n for n, i in run.layout.items() if i.part == "predictor")
            torch.testing.assert_close(job.state[weight] - state[weight], 0 * state[weight] + 5)
        assert set(sizes) == {min(images, 4), 4}
