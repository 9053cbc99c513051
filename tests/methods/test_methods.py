"""What every method declares, checked on what really happens in a run."""

import math
import sys
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.methods.base import Method, hyper
from fedrepro.methods.messages import Network
from tests import toys

ALL = toys.ON_IMAGES


def training(name, given=None, model="tiny-cnn", batch_size=4, **fields):
    return toys.start(name, given=given, fields=fields, model=model, batch_size=batch_size)


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


def only(run, job, method=None):
    """The result of a single job."""
    return dict(run.engine.train(method or run.method, [job]))[0]


@pytest.mark.parametrize("name", methods.names())
def test_every_field_has_a_source(name):
    for row in methods.get(name).describe():
        assert row["source"] not in ("", "base class"), row["name"]


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
def test_without_any_one_term_the_update_is_another(name):
    run = training(name)
    run.one_round()  # where prototypes and memories come from
    job = run._job(run.clients[0], run._download(run.clients[0]), 2)
    whole, losses = only(run, job), {phase.loss for phase in run.method.phases(run.protocol)}

    def lacking(loss, term):
        def client_loss(self, model, batch, received):
            terms = getattr(run.method, loss)(model, batch, received)
            return {key: 0 * value if key == term else value for key, value in terms.items()}

        return client_loss

    for term in whole.terms:
        body = {loss: lacking(loss, term) for loss in losses}
        method = type("Lacking", (type(run.method),), body)(**run.method.fields())
        other = only(run, job, method).state
        assert any(not torch.equal(other[n], whole.state[n]) for n in whole.state), term


def test_bn_first_takes_the_first_clients_statistics():
    run = training("FedAvg", bn_policy="first")
    first = record_messages(run)[1][0].message["model"]
    for name, info in run.layout.items():
        if not info.is_counter:
            same = torch.equal(run.server.model[name], first[name])
            assert same == (info.is_bn and info.is_buffer), name


def test_bn_recompute_gives_the_data_statistics():
    run = training("FedAvg", bn_policy="recompute")
    run.one_round()
    client = run.clients[0]
    assert run.evaluated == ("personal",)
    buffers = [n for n in client.kept if run.layout[n].is_buffer]
    assert buffers and set(buffers) == set(client.kept)
    again = run.engine.bn_statistics(client.personal(run.server.model), client.data.train)
    for name in buffers:
        torch.testing.assert_close(client.kept[name], again[name])


def test_solo_sends_nothing_and_keeps_its_momentum():
    run = training("SOLO")
    downs, ups = record_messages(run)
    assert [*downs, *(upload.message for upload in ups)] == [{}] * 6
    assert all(client.optimizer for client in run.clients)


def test_adcol_averages_nothing_and_may_send_a_share_of_the_representations():
    run = training("ADCOL", sampling=0.5)
    start = {n: v.clone() for n, v in run.server.model.items()}
    downs, ups = record_messages(run)
    assert [len(up.message["representations"]) for up in ups] == [11, 7, 5]
    assert all(set(message) == {"discriminator"} for message in downs)
    assert all(isinstance(message["discriminator"], Network) for message in downs)
    assert all(set(upload.message) == {"representations"} for upload in ups)
    assert all(torch.equal(start[n], v) for n, v in run.server.model.items())
    one, other = (client.personal(run.server.model) for client in run.clients[:2])
    assert not torch.equal(*(state[next(iter(one))] for state in (one, other)))


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


def test_what_partialfed_sends_and_keeps():
    """It sends all and loads a part."""
    run = training("PartialFed", model="tiny-cnn")
    everything = {n for n, info in run.layout.items() if not info.is_counter}
    own = {n for n in everything if run.layout[n].is_bn or run.layout[n].part == "predictor"}
    check_sent(run, sent=everything, kept=own)


@pytest.mark.parametrize("shortcut_bn", ["local", "average"])
def test_fedbn_keeps_batch_norm(shortcut_bn):
    """All of it; as FedPall's code has it, all but the shortcuts'."""
    run = training("FedBN", model="resnet10", shortcut_bn=shortcut_bn)
    everything = {n for n, info in run.layout.items() if not info.is_counter}
    kept = {n for n in everything if run.layout[n].is_bn}
    assert any("downsample" in n for n in kept)
    if shortcut_bn == "average":
        kept = {n for n in kept if ".bn" in n}  # the names by which the code selects
    check_sent(run, sent=everything - kept, kept=kept)


def check_sent(run, sent, kept):
    downs, ups = record_messages(run)
    for client, down, up in zip(run.clients, downs, ups, strict=True):
        assert set(down["model"]) == sent == set(up.message["model"])
        assert set(client.kept) == kept
    assert run.evaluated == ("personal",)


def test_fedrep_shares_the_representation_and_trains_the_head_first():
    run = training("FedRep", bn_policy="local")
    assert run.travelling and all(run.layout[n].part != "predictor" for n in run.travelling)
    job = run._job(run.clients[0], run._download(run.clients[0]), 1)
    head, body = run.method.phases(run.protocol)
    assert (head.epochs, body.epochs) == (2, 1)
    result = only(run, replace(job, phases=[head]))
    for name, info in run.layout.items():
        if not info.is_buffer:
            same = torch.equal(result.state[name], job.state[name])
            assert same == (info.part != "predictor"), name


def test_feddyn_leaves_local_batch_norm_alone():
    run = training("FedDyn", bn_policy="local")
    run.run(Silent())
    assert not any(run.layout[name].is_bn for name in run.clients[0].memory)
    assert all(run.layout[name].is_bn for name in run.clients[0].kept)


def test_per_fedavg_tests_an_adapted_copy_only():
    run = training("Per-FedAvg")
    run.one_round()
    assert run.evaluated == ("personal",)
    assert all(client.kept == {} for client in run.clients)
    for client, (_, adapted) in zip(run.clients, run.tested_networks(1).items(), strict=True):
        shared = client.personal(run.server.model)
        assert any(not torch.equal(adapted[n], shared[n]) for n in shared)
    assert training("Per-FedAvg", adapt_epochs=0).evaluated == ("global",)


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


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("FedAvgg", {}, "no method 'FedAvgg'; choose from FedAvg, "),
        ("zzz", {}, "no method 'zzz'; choose from ADCOL, "),
        ("ADCOL", {"discriminator_lrs": 1}, "no field 'discriminator_lrs'; choose from discrimin"),
        ("ADCOL", {"mu": -1}, "mu = -1: give a value at least 0"),
        ("ADCOL", {"sampling": 2}, "sampling = 2: give a value between"),
        ("ADCOL", {"mu": "much"}, "mu = 'much'"),
    ],
)
def test_a_wrong_name_or_value_is_one_clear_line(name, fields, said):
    with pytest.raises(FedReproError, match=said) as caught:
        methods.create(name, **fields)
    assert "\n" not in str(caught.value)


# Methods from elsewhere.


@dataclass(frozen=True)
class Lazy(Method):
    name = "Lazy"
    reference = "nobody"
    effort: float = hyper(0.5, source="made for this test")

    def client_loss(self, model, batch, received):
        terms = super().client_loss(model, batch, received)
        return {key: self.effort * value for key, value in terms.items()}


def test_a_method_from_elsewhere_needs_one_class(registry):
    assert methods.register(Lazy) is Lazy
    assert methods.register(Lazy) is Lazy, "a cell may run twice"
    run = training("Lazy", effort=0.25)
    assert run.evaluated == ("global",)
    assert len(run.run(Silent())) > 0
    assert Lazy.describe()[1]["status"] == "decided"


def made(decorated=True, **body):
    made = type("Made", (Method,), {"__module__": "elsewhere", **body})
    return dataclass(frozen=True)(made) if decorated else made


NAMED = {"name": "Made", "reference": "nobody"}


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (int, "int is not a method; make it a subclass of Method"),
        (made(reference="nobody"), 'Made has no name; add name = "Made"'),
        (made(name="Made"), "Made has no reference"),
        (made(decorated=False, **NAMED), r"Made is not a dataclass; write @dataclass"),
        (made(**NAMED, __annotations__={"w": float}, w=0.1), r"Made.w has no source; write hyper"),
        (made(name="FedAvg", reference="n"), "'FedAvg' is taken by fedrepro.methods.fedavg.FedAvg"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_register_says_what_is_wrong_with_a_class(registry, method, said):
    with pytest.raises(FedReproError, match=said):
        methods.register(method)


def test_a_broken_entry_point_is_named_and_stops_no_other(registry, monkeypatch, tmp_path, capsys):
    (tmp_path / "leaves.py").write_text("raise SystemExit('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"broken": "no_such_module:Mine", "gone": "leaves:Mine", "lazy": "good:Lazy"}
    entries = [EntryPoint(name, place, methods.ENTRY_POINTS) for name, place in named.items()]
    monkeypatch.setitem(sys.modules, "good", SimpleNamespace(Lazy=Lazy))
    monkeypatch.setattr(methods, "entry_points", lambda group: entries)
    monkeypatch.setattr(methods, "_discovered", False)
    assert methods.get("Lazy") is Lazy
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: ")
    assert "broken = no_such_module:Mine is left out: ModuleNotFoundError: No" in first
    assert "gone = leaves:Mine is left out: SystemExit: not here" in second
