"""What every method declares, checked on what really happens in a run."""

import ast
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, get_args

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Status
from fedrepro.engine import in_order
from fedrepro.federated.aggregation import RunningAverage
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Batch, Method, hyper
from fedrepro.methods.messages import Network
from tests import toys

ALL = toys.ON_IMAGES
FILES = sorted(Path(methods.__file__).parent.glob("*.py"))


def training(name, federation=None, model="tiny-cnn", batch_size=4, **fields):
    protocol = toys.protocol(model=model, batch_size=batch_size)
    return Training(
        methods.create(name, **fields), protocol, federation or toys.federation(), seed=0
    )


def record_messages(run):
    """Let one round pass; return the messages down and the uploads of that round, whole."""
    downs, ups = [], []
    download, upload = run._download, run._upload

    def up(*args):
        sent = upload(*args)
        ups.append(replace(sent, message=dict(sent.message)))
        return sent

    run._download = lambda client: downs.append(download(client)) or downs[-1]
    run._upload = up
    run.one_round()
    return downs, ups


def losses(run):
    """The names of the losses that a method's phases minimise, the twin's apart."""
    return sorted({phase.loss for phase in run.method.phases(run.protocol)})


def only(run, job, method=None):
    """The result of a single job."""
    return in_order(run.engine.train(method or run.method, [job]))[0]


def test_all_are_registered():
    assert set(ALL) <= set(methods.names())


@pytest.mark.parametrize("name", methods.names())
def test_every_field_has_a_source(name):
    for row in methods.get(name).describe():
        assert row["source"] and row["source"] != "base class", row["name"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_field_of_the_package_says_its_status(path):
    """Given in the call, not left to the default, which is for methods from elsewhere."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    for call in (call for call in calls if getattr(call.func, "id", "") == "hyper"):
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert ast.literal_eval(given.get("status", "''")) in get_args(Status), ast.unparse(call)


@pytest.mark.parametrize("name", ALL)
def test_a_round_learns_and_is_logged(name):
    run = training(name)
    curve = run.run(Silent())
    assert set(curve["round"]) == {1, 2, 3}
    ce = curve[(curve.measure == "term") & (curve.subject == "ce")].groupby("round").value.mean()
    assert ce.loc[3] < math.log(toys.CLASSES)
    terms = curve[(curve.measure == "term") & (curve["round"] == 2)]
    assert (terms.value > 0).all(), "every term is alive in round 2"


@pytest.mark.parametrize("name", ALL)
def test_every_term_has_a_gradient_and_changes_the_update(name):
    run = training(name)
    run.one_round(), run.one_round()  # schedules may end with the third
    client = run.clients[0]
    job = run._job(client, run._download(client), run.round)
    state = client.personal(run.server.model)
    module = run.engine.module
    run.engine._load(state)
    # A trained network stands apart from what it received: FedProx's term is zero only there.
    with torch.no_grad():
        for value in module.parameters():
            value += 0.01
    params = dict(module.named_parameters())
    for value in params.values():
        value.requires_grad_(True)
    from fedrepro.engine.loop import BoundModel

    model = BoundModel(module.train(), params, run.engine._run_other)
    x = torch.rand(6, 3, toys.SIZE, toys.SIZE)
    batch = Batch(x, torch.arange(6) % 3, run.method.draw(6, torch.Generator().manual_seed(0)))
    gradients = Counter()
    for loss in losses(run):
        for term, value in getattr(run.method, loss)(model, batch, job.received).items():
            found = torch.autograd.grad(
                value, list(params.values()), retain_graph=True, allow_unused=True
            )
            gradients[term] += sum(float(g.abs().sum()) for g in found if g is not None)
            assert value.item() != 0 or gradients[term], term
    assert all(size > 0 for size in gradients.values()), gradients


@pytest.mark.parametrize("name", ALL)
def test_without_any_one_term_the_update_is_another(name):
    run = training(name)
    run.one_round()  # where prototypes and memories come from
    client = run.clients[0]
    job = run._job(client, run._download(client), 2)
    whole = only(run, job)

    def without(term):
        def lacking(loss):
            def client_loss(self, model, batch, received):
                terms = getattr(run.method, loss)(model, batch, received)
                return {key: 0 * value if key == term else value for key, value in terms.items()}

            return client_loss

        changed = type(
            "Lacking", (type(run.method),), {loss: lacking(loss) for loss in losses(run)}
        )
        return changed(**run.method.fields())

    for term in whole.terms:
        lacking = only(run, job, without(term))
        assert any(not torch.equal(lacking.state[n], whole.state[n]) for n in whole.state), term


def average(run, models, counts=(10, 30)):
    """The average of two clients' tensors under a run's method and protocol."""
    weights = run.method.weights(run.protocol, counts)
    total = RunningAverage(run.layout, run.method.bn_policy == "first")
    for position, (model, weight) in enumerate(zip(models, weights, strict=True)):
        total.add(position, model, weight)
    return total.tensors


def test_fedavg_averages_by_number_of_images():
    run = training("FedAvg")
    name = run.travelling[-1]
    models = [{name: torch.tensor([0.0, 4.0])}, {name: torch.tensor([4.0, 0.0])}]
    assert average(run, models)[name].tolist() == [3.0, 1.0]


def test_uniform_weighting():
    protocol = toys.protocol(weighting="uniform")
    run = Training(methods.create("FedAvg"), protocol, toys.federation(), seed=0)
    name = run.travelling[0]
    models = [{name: torch.tensor([0.0])}, {name: torch.tensor([4.0])}]
    assert average(run, models)[name].tolist() == [2.0]


def test_bn_first_takes_the_first_clients_statistics():
    run = training("FedAvg", bn_policy="first")
    name = next(n for n in run.travelling if run.layout[n].is_bn and run.layout[n].is_buffer)
    models = [{name: torch.tensor([1.0])}, {name: torch.tensor([5.0])}]
    assert average(run, models)[name].tolist() == [1.0]


def test_the_server_holds_the_average_of_what_was_sent():
    run = training("FedAvg")
    _, ups = record_messages(run)
    counts, sent_models = [u.n for u in ups], [u.message for u in ups]
    for name in run.travelling:
        sent = [
            n / sum(counts) * m["model"][name] for n, m in zip(counts, sent_models, strict=True)
        ]
        torch.testing.assert_close(run.server.model[name], sum(sent))


def test_bn_recompute_gives_the_data_statistics():
    run = training("FedAvg", bn_policy="recompute")
    run.one_round()
    client = run.clients[0]
    assert run.judged == ("personal",)
    buffers = [n for n in client.kept if run.layout[n].is_buffer]
    assert buffers and set(buffers) == set(client.kept)
    again = run.engine.bn_statistics(client.personal(run.server.model), client.data.train)
    for name in buffers:
        torch.testing.assert_close(client.kept[name], again[name])


def test_solo_sends_nothing():
    downs, ups = record_messages(training("SOLO"))
    assert all(message == {} for message in downs)
    assert all(upload.message == {} for upload in ups)


def test_solo_rounds_are_one_long_training():
    """Kept momentum: what separates rounds is only the order stream."""
    run = training("SOLO")
    run.run(Silent())
    assert all(client.optimizer for client in run.clients)


def test_adcol_averages_nothing():
    run = training("ADCOL")
    start = {n: v.clone() for n, v in run.server.model.items()}
    downs, ups = record_messages(run)
    assert all(set(message) == {"discriminator"} for message in downs)
    assert all(isinstance(message["discriminator"], Network) for message in downs)
    assert all(set(upload.message) == {"representations"} for upload in ups)
    assert all(torch.equal(start[n], v) for n, v in run.server.model.items())
    states = [client.personal(run.server.model) for client in run.clients]
    weights = [state[next(iter(state))] for state in states]
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("mode", [True, False])
def test_adcol_representations_are_the_trained_networks_features(mode):
    run = training("ADCOL", batch_size=32, representations_in_training_mode=mode)
    _, ups = record_messages(run)
    for client, upload in zip(run.clients, ups, strict=True):
        state = client.personal(run.server.model)
        z = run.engine.features(state, client.data.train, training=mode)
        other = run.engine.features(state, client.data.train, training=not mode)
        torch.testing.assert_close(upload.message["representations"], z)  # one batch, in any order
        assert not torch.allclose(z, other, atol=0.1)


def test_adcol_sampling_sends_a_share_of_the_representations():
    _, ups = record_messages(training("ADCOL", sampling=0.5))
    assert [len(u.message["representations"]) for u in ups] == [11, 7, 5]


def test_adcol_discriminator_learns_who_sent_what():
    run = training("ADCOL", mu=0.0, discriminator_epochs=30)
    run.run(Silent())
    assert run.server.log["discriminator_accuracy"] > 60


def test_adcol_mu_zero_is_solo_with_fresh_momentum():
    run = training("ADCOL", mu=0.0)
    curve = run.run(Silent())
    kl = curve[(curve.measure == "term") & (curve.subject == "kl")]
    assert (kl.value == 0).all()


def test_adcol_kl_moves_the_encoder_towards_indistinguishable_features():
    free, held = training("ADCOL", mu=0.0), training("ADCOL", mu=10.0)
    free.run(Silent()), held.run(Silent())
    name = next(n for n in free.layout if free.layout[n].part == "encoder")
    assert not torch.equal(free.clients[0].kept[name], held.clients[0].kept[name])


def test_linear_discriminators():
    run = training("ADCOL", discriminator_hidden=())
    module = run.server.modules["discriminator"]
    x = torch.rand(2, run.server.feature_size)
    mean = (module(x[:1]) + module(x[1:])) / 2
    torch.testing.assert_close(module(x.mean(0, keepdim=True)), mean)


@pytest.mark.parametrize("model", ["tiny-cnn", "resnet10"])
def test_fedbn_keeps_every_bn_tensor_shortcuts_included(model):
    run = training("FedBN", model=model)
    downs, ups = record_messages(run)
    bn = {n for n, info in run.layout.items() if info.is_bn and not info.is_counter}
    if model == "resnet10":
        assert any("shortcut" in n or "downsample" in n for n in bn)
    for client, down, up in zip(run.clients, downs, ups, strict=True):
        assert not bn & set(down["model"]) and not bn & set(up.message["model"])
        assert set(client.kept) == bn
    assert run.judged == ("personal",)


def test_fedrep_shares_the_representation_and_trains_in_two_phases():
    run = training("FedRep")
    downs, _ = record_messages(run)
    assert all(run.layout[n].part != "predictor" for n in downs[0]["model"])
    assert {run.layout[n].part for n in run.clients[0].kept} == {"predictor"}
    head, body = run.method.phases(run.protocol)
    assert (head.epochs, body.epochs) == (2, 1)


def test_fedrep_head_phase_leaves_the_body_alone():
    run = training("FedRep", bn_policy="local")
    job = run._job(run.clients[0], run._download(run.clients[0]), 1)
    head_only = job.__class__(**{**vars(job), "phases": run.method.phases(run.protocol)[:1]})
    result = only(run, head_only)
    for name, info in run.layout.items():
        if not info.is_buffer:
            same = torch.equal(result.state[name], job.state[name])
            assert same == (info.part != "predictor"), name


def test_partialfed_sends_all_and_loads_a_part():
    run = training("PartialFed")
    downs, ups = record_messages(run)
    everything = {n for n, info in run.layout.items() if not info.is_counter}
    assert set(downs[0]["model"]) == everything == set(ups[0].message["model"])
    kept = set(run.clients[0].kept)
    assert kept == {
        n for n in everything if run.layout[n].is_bn or run.layout[n].part == "predictor"
    }


def test_per_fedavg_step_by_hand():
    """One weight, quadratic loss: w' = w - alpha w, then w - beta w'."""
    run = training("Per-FedAvg", toys.federation((8,)), alpha=0.1, beta=0.2)

    @dataclass(frozen=True)
    class Quadratic(methods.get("Per-FedAvg")):
        def client_loss(self, model, batch, received):
            return {"half-square": 0.5 * sum((p**2).sum() for p in model.params.values())}

    method = Quadratic(alpha=0.1, beta=0.2)
    protocol = toys.protocol(local_epochs=1, optimizer__weight_decay=0.0)
    run.engine.protocol = protocol
    job = run._job(run.clients[0], {}, 1)
    job = job.__class__(**{**vars(job), "phases": method.phases(protocol)})
    result = only(run, job, method)
    name = next(n for n, info in run.layout.items() if not info.is_buffer)
    # Eight images in batches of four: one step of two batches.
    torch.testing.assert_close(result.state[name], job.state[name] * (1 - 0.2 * (1 - 0.1)))


def test_per_fedavg_tests_an_adapted_copy_only():
    run = training("Per-FedAvg")
    run.one_round()
    assert run.judged == ("personal",)
    assert all(client.kept == {} for client in run.clients)
    for client, (_, adapted) in zip(run.clients, run.tested_networks(1).items(), strict=True):
        shared = client.personal(run.server.model)
        assert any(not torch.equal(adapted[n], shared[n]) for n in shared)
    assert training("Per-FedAvg", adapt_epochs=0).judged == ("global",)


def test_per_fedavg_may_adapt_in_one_step_of_one_batch():
    """Fallah et al., Eq. 3: w - alpha grad. Nine images are three batches, one of them read."""
    run = training("Per-FedAvg", toys.federation((9,)), adapt_steps=1, alpha=0.1)

    @dataclass(frozen=True)
    class Quadratic(methods.get("Per-FedAvg")):
        def client_loss(self, model, batch, received):
            return {"half-square": 0.5 * sum((p**2).sum() for p in model.params.values())}

    for steps, factor in ((1, 0.9), (None, 0.9**2), (5, 0.9**5)):  # a rest of one joins a batch
        method = Quadratic(alpha=0.1, adapt_steps=steps)
        job = run._adaptation(run.clients[0], 1, method.before_test(run.protocol, False))
        name = next(n for n, info in run.layout.items() if not info.is_buffer)
        after = only(run, job, method).state[name]
        torch.testing.assert_close(after, factor * job.state[name])


def test_all_clients_adapt_in_one_call_before_a_test(monkeypatch):
    run, calls = training("Per-FedAvg"), []
    train = run.engine.train

    def counted(method, jobs):
        calls.append([(job.client, job.stream) for job in jobs])
        return train(method, jobs)

    monkeypatch.setattr(run.engine, "train", counted)
    run.one_round()
    clients = range(len(run.clients))
    assert calls == [[(i, stream) for i in clients] for stream in ("batches", "adaptation")]


def test_unknown_method_field_and_value_are_single_clear_lines():
    with pytest.raises(FedReproError, match="no method 'FedMagic'; choose from ADCOL"):
        methods.create("FedMagic")
    with pytest.raises(FedReproError, match="ADCOL has no field 'nu'"):
        methods.create("ADCOL", nu=1)
    with pytest.raises(FedReproError, match="mu = -1: give a value at least 0"):
        methods.create("ADCOL", mu=-1)
    with pytest.raises(FedReproError, match="sampling = 2: give a value between"):
        methods.create("ADCOL", sampling=2)
    with pytest.raises(FedReproError, match="mu"):
        methods.create("ADCOL", mu="much")


def test_a_method_from_elsewhere_needs_one_class():
    @methods.register
    @dataclass(frozen=True)
    class Lazy(Method):
        name: ClassVar[str] = "Lazy"
        reference: ClassVar[str] = "nobody"
        effort: float = hyper(0.5, source="made for this test")

        def client_loss(self, model, batch, received):
            return {
                k: self.effort * v for k, v in super().client_loss(model, batch, received).items()
            }

    try:
        run = training("Lazy", effort=0.25)
        assert run.judged == ("global",)
        assert len(run.run(Silent())) > 0
        assert Lazy.describe()[1]["status"] == "decided"
    finally:
        methods._registry.pop("Lazy")
