"""What every method declares, checked on what really happens in a run."""

import math
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
import torch

from fedrepro import methods
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.methods.base import Method, hyper
from tests import toys
from tests.data.made import one_line

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
    return dict(run.engine.train(method or run.method, [job]))[0]


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


def test_the_networks_that_are_tested():
    shared = {"FedAPC", "FedAvg", "FedDyn", "FedProc", "FedProx", "FPL", "I2PFL", "MOON", "RUCR"}
    for name in ALL:
        other = {"Ditto": "twin", "FedPall": "trained"}.get(name, "personal")
        assert training(name).evaluated == ("global" if name in shared else other,), name
    assert training("Per-FedAvg", adapt_epochs=0).evaluated == ("global",)


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
    buffers = [n for n in client.kept if run.layout[n].is_buffer]
    assert buffers and set(buffers) == set(client.kept)
    again = run.engine.bn_statistics(client.personal(run.server.model), client.data.train)
    for name in buffers:
        torch.testing.assert_close(client.kept[name], again[name])


@pytest.mark.parametrize("mode", [True, False])
def test_adcol_representations_are_the_trained_networks_features(mode):
    run = training("ADCOL", batch_size=32, representations_in_training_mode=mode)
    _, ups = record_messages(run)
    for client, upload in zip(run.clients, ups, strict=True):
        state = client.personal(run.server.model)
        z = run.engine.outputs(state, client.data.train, training=mode)
        other = run.engine.outputs(state, client.data.train, training=not mode)
        torch.testing.assert_close(upload.message["representations"], z)  # one batch, in any order
        assert not torch.allclose(z, other, atol=0.1)
    _, shares = record_messages(training("ADCOL", sampling=0.5))
    assert [len(up.message["representations"]) for up in shares] == [11, 7, 5]


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("FedAvgg", {}, "choose from FedAvg, Per-FedAvg, FedAPC; your own needs --load"),
        ("ADCOL", {"sampling": 2}, "sampling = 2: give a value between"),
        ("ADCOL", {"discriminator_hidden": (8, True)}, r"\(8, True\): give finite numbers"),
        ("ADCOL", {"epsilon": 2.0, "two_stages": True}, "epsilon trains one MLP in every round"),
        ("Per-FedAvg", {"alpha": 0.0}, "alpha = 0.0: give a value at least 1e-06"),
    ],
)
def test_a_wrong_name_or_value_is_one_clear_line(name, fields, said):
    with one_line(said):
        methods.create(name, **fields)


class Lazy(Method):
    name = "Lazy"
    reference = "nobody"
    effort: float = hyper(0.5, source="made for this test")


def made(**body):
    return type("Made", (Method,), {"__module__": "elsewhere", **body})


NAMED = {"name": "Made", "reference": "nobody"}


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (int, "int is not a method; make it a subclass of Method"),
        (made(reference="nobody"), 'Made has no name; add name = "Made"'),
        (made(name="Made"), "Made has no reference"),
        (made(**NAMED, __annotations__={"w": float}, w=0.1), r"Made.w has no source; write hyper"),
        (made(**NAMED, clientloss=lambda *_: 0), "Made.clientloss has no effect; write client_l"),
        (made(**NAMED, local_loss=lambda *_: 0), "Made.local_loss has no effect, and nothing else"),
        (made(name="A, B", reference="nobody"), "Made.name has one of , ; = in it"),
        (made(**NAMED, client_loss=lambda self, model: 0), "take self, model, batch, received"),
        (made(**NAMED, average=False), "Made.average has no effect; write averages"),
        (made(**NAMED, bn_policy="local"), "Made.bn_policy without a type has no effect"),
        (made(**NAMED, __annotations__={"shares": float}, shares=hyper(1.0, "x")), "shares hides"),
        (made(**NAMED, __annotations__={"w": float}, w=hyper(math.inf, "x")), "w = inf is not"),
        (made(**NAMED, __annotations__={"w": torch.Tensor}, w=hyper(1, "x")), "type of a field"),
        (made(name="FedAvg", reference="n"), "'FedAvg' is taken by fedrepro.methods.fedavg.FedAvg"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_register_says_what_is_wrong_with_a_class(registry, method, said):
    with pytest.raises(FedReproError, match=said):
        methods.register(method)


def test_a_function_that_is_used_may_be_named_like_another(registry):
    used = {"remembered": lambda self: 0, "upload": lambda self, _: self.remembered()}
    assert methods.register(made(**NAMED, **used)).name == "Made"


def test_a_broken_entry_point_is_named_and_stops_no_other(registry, monkeypatch, tmp_path, capsys):
    (tmp_path / "leaves.py").write_text("raise SystemExit('not here')")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"broken": "no_such_module:Mine", "gone": "leaves:Mine", "lazy": "good:Lazy"}
    entries = [EntryPoint(name, place, methods.ENTRY_POINTS) for name, place in named.items()]
    monkeypatch.setitem(sys.modules, "good", SimpleNamespace(Lazy=Lazy))
    monkeypatch.setattr(methods, "entry_points", lambda group: entries)
    monkeypatch.setattr(methods, "_discovered", False)
    assert methods.get("Lazy") is methods.register(Lazy) is methods.register(Lazy) is Lazy  # twice
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: ")
    assert "broken = no_such_module:Mine is left out: ModuleNotFoundError: No" in first
    assert "gone = leaves:Mine is left out: SystemExit: not here" in second
