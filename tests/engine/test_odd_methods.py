"""Methods that no paper here needs, but a file of somebody else's may hold, on both engines."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from fedrepro.base.protocol import OptimizerSpec
from fedrepro.engine import in_order
from fedrepro.methods.base import Method, Phase
from fedrepro.methods.losses import cross_entropy
from fedrepro.methods.messages import Network, network_of, tensor_of, tensors_of
from tests.engine.test_fused import SIZES, assert_engines_agree, start


@dataclass(frozen=True)
class Odd(Method):
    """Phases with their own optimisers, kept momenta, a part of the network no loss reaches,
    messages of every form: shared, personal, and of different shapes."""

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

    def init_server(self, server):
        layers = torch.nn.Linear(server.feature_size, 4), torch.nn.BatchNorm1d(4)
        server.add_module("judge", torch.nn.Sequential(*layers))

    def download(self, server, client):
        centre = torch.full((server.feature_size,), 0.1 * client, dtype=server.dtype)
        return {
            "centre": centre,
            "judge": Network(server.modules["judge"], training=True),
            "anchors": {"points": centre.expand(1 + client % 2, -1).clone()},
        }

    def client_loss(self, model, batch, received):
        features = model(batch.x).features
        again = model(batch.x.flip(-1))  # a second pass: BatchNorm follows both
        judged = network_of(received, "judge")(features)
        points = tensors_of(received, "anchors")["points"]
        terms = {
            "pull": ((features - tensor_of(received, "centre")) ** 2).mean(),
            "judge": judged.square().mean() + (features[:, None] - points).square().mean(),
        }
        # only what trains the head reaches it; the other phases leave it without a gradient
        if all(name.startswith("predictor") for name in model.params):
            terms["ce"] = cross_entropy(again.logits, batch.y)
            del terms["pull"], terms["judge"]
        return terms


@dataclass(frozen=True)
class Forgetful(Method):
    """Momentum starts anew in a second phase of the same parameters."""

    name: ClassVar[str] = "Forgetful"
    reference: ClassVar[str] = "nobody"

    def phases(self, protocol):
        return Phase("one", 1), Phase("two", 1)


def test_momentum_is_forgotten_between_phases_as_in_the_reference():
    assert_engines_agree(method=Forgetful())


@pytest.mark.parametrize("sizes", [SIZES, (13, 13, 5)])
def test_an_odd_method_equals_the_reference(sizes):
    assert_engines_agree(method=Odd(), sizes=sizes)


def test_parameters_without_a_gradient_are_not_decayed():
    run = start(method=Odd(), rounds=1, optimizer__weight_decay=0.5)
    job = run._job(run.clients[0], run._download(run.clients[0]), 1)
    features_only = job.__class__(**{**vars(job), "phases": job.phases[:1]})
    result = in_order(run.engine.train(run.method, [features_only]))[0]
    for name, info in run.layout.items():
        if info.part == "predictor" and not info.is_counter:
            assert torch.equal(result.state[name], job.state[name]), name
