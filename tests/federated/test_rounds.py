"""The round loop: determinism, bytes, resume, early stop, participation."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from fedrepro.base.errors import Diverged, FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import EarlyStop
from fedrepro.federated import metrics
from fedrepro.federated.clients import participants, turns_of
from fedrepro.federated.metrics import Curve
from fedrepro.methods.base import Method, Phase
from fedrepro.methods.ditto import Ditto
from fedrepro.methods.server import under
from fedrepro.records.store import FileCheckpoint
from tests import toys
from tests.toys import numbers, start

SMALL = {"model": "small-cnn", "local_epochs": 1}
KEPT = {"lr": 0.01, "momentum": 0.9, "kept": True, "cosine": 4}
ADAMW = {"kind": "adamw", "lr": 0.003, "clip": 1.0, "warmup": 2, "cosine": 5, "kept": True}
CASES = [(name, {}) for name in toys.ON_IMAGES] + [("FedProx", SMALL)]
CASES += [("FedRep", {**SMALL, "optimizer": {"lr": 0.02}})]
CASES += [("ADCOL", {**SMALL, "optimizer": KEPT}), ("SOLO", {**SMALL, "optimizer": ADAMW})]


@pytest.mark.parametrize("engine", ["reference", "fused"])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_resumed_equals_uninterrupted_bit_for_bit(name, engine, settings, tmp_path):
    toys.assert_resumes(lambda: start(name, engine=engine, **settings), tmp_path)


def of_tests(curve, measure="accuracy", number=3):
    return curve[(curve.measure == measure) & (curve.split == "test") & (curve["round"] == number)]


@pytest.mark.parametrize("place", ["engine.train", "engine.evaluate", "server.fit", "log.scored"])
def test_an_interrupt_in_a_round_keeps_the_last_whole_round(place, tmp_path, monkeypatch):
    """Ctrl-C while clients train, while testing, after the discriminator's training, at the end."""
    expected, run = start("ADCOL").run(Silent()), start("ADCOL")
    owner, moment = type(getattr(run, place.split(".")[0])), place.split(".")[1]
    original = getattr(owner, moment)

    def interrupted(*args, **kwargs):
        result = original(*args, **kwargs)
        if run.server.round == 2:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(owner, moment, interrupted)
        run.run(Silent(), FileCheckpoint(tmp_path))
    curve = start("ADCOL").run(Silent(), FileCheckpoint(tmp_path))
    pd.testing.assert_frame_equal(numbers(curve), numbers(expected), check_exact=True)


@pytest.mark.parametrize("engine", ["reference", "fused"])
def test_training_that_diverges_stops_with_one_line_and_keeps_its_rounds(engine, tmp_path):
    training = start(seed=7, engine=engine)
    training.one_round()
    for value in training.server.model.values():
        value.mul_(1e38)  # the first batch's numbers are beyond float32
    before = training.server.state()
    said = r"^FedAvg, seed 7: the loss of client \d in round 2 is not finite \(ce = nan\): .* lower"
    with pytest.raises(Diverged, match=said):
        training.run(Silent(), FileCheckpoint(tmp_path))
    saved, facts = FileCheckpoint(tmp_path).load()
    toys.assert_equal(under(saved, "server/"), before)
    assert facts["round"] == 1
    broken = lambda at, _: [next(iter(at.model.values())).fill_(np.nan)].clear()  # noqa: E731
    object.__setattr__((training := start(engine=engine)).method, "server_step", broken)
    with pytest.raises(Diverged, match="of the server in round 1 is not finite"):
        training.one_round()


def test_what_a_method_returns_and_keeps_is_checked_in_one_line():
    own, log = {"memory": torch.zeros(1)}, lambda server, _: server.log.update(drift="large")
    noisy = lambda model, batch, _: {"ce": F.dropout(model(batch.x).logits).mean()}  # noqa: E731
    for hook, wrong, said in (
        ("upload", lambda _: own, "memory is a name of what a client gets anyway"),
        ("download", lambda *_: {"own": 3}, "own must be a tensor, not int"),
        ("weights", lambda *_: [1.0], "weights must return one weight per client"),
        ("weights", lambda _, counts: counts, "weights must have the sum 1, not 43"),
        ("before_test", lambda *_: Phase("own", 1), "must return a tuple, not Phase"),
        ("personal_phases", lambda _: [Phase("own", 1, loss="mine")], "unknown loss 'mine'"),
        ("phases", lambda _: [Phase("idle", 1, lambda _: False)], "idle trains no parameter"),
        ("phases", lambda _: [Phase("own", 1, steps=0)], "steps >= 1, not Phase"),
        ("phases", lambda _: [Phase("one", 1, apart=(("x", None),))], "no tensor x to train apart"),
        ("phases", lambda _: [Phase("a", 1, lookahead=0.1, steps=1)], "FedAvg reads two batches"),
        ("phases", lambda _: [Phase("a", 1, unclipped=("x",))], "name some of the terms ce,"),
        ("draw", lambda *_: 0.5, "draw must return None or a tensor, a row for"),
        ("adapts_on", lambda _: 5, "adapts_on must return None or two whole numbers, .* not 5"),
        ("client_loss", lambda *_: {"ce": torch.zeros(())}, "depends on no trained parameter"),
        ("upload", lambda own: {"b": own.received["model"]["predictor.bias"].zero_()}, "in place"),
        ("upload", lambda own: {"y": own.labels.add_(0)}, "in place"),
        ("upload", lambda _: {"own": torch.rand(1)}, "draws from torch's global generator"),
        ("client_loss", noisy, "draws from torch's global generator"),
        ("server_step", lambda *_: np.random.seed(1), "generator or numpy's"),
        ("server_step", lambda *_: {}, "server_step|lambda> must return nothing, not dict"),
        ("upload", lambda _: {"model": {}}, "model must have all shared tensors"),
        ("server_step", lambda server, _: server.model.clear(), "not add or remove server.model"),
        ("server_step", log, "logged server values must be numbers: drift"),
    ):
        adapts = "Per-FedAvg" if hook == "adapts_on" else "FedAvg"
        object.__setattr__((training := start(adapts)).method, hook, wrong)
        with pytest.raises(FedReproError, match=said):
            training.one_round()
    object.__setattr__(method := training.method, "init_server", lambda *_: np.random.seed(2))
    with pytest.raises(FedReproError, match="generator or numpy's"):
        start(method=method)
    training.server.tensors["mean"] = [torch.zeros(1)]
    with pytest.raises(FedReproError, match="mean must be a tensor, not list"):
        training.state()


def test_seeds_matter_and_neither_global_generators_nor_other_clients_do():
    first = numbers(start(seed=0).run(Silent()))
    torch.manual_seed(99), np.random.seed(99)
    pd.testing.assert_frame_equal(first, numbers(start(seed=0).run(Silent())), check_exact=True)
    assert not np.allclose(first.value, numbers(start(seed=1).run(Silent())).value)
    one, two = (start("SOLO", sizes=sizes).run(Silent()) for sizes in ((21,), (21, 13)))
    of_first = two[(two.domain == one.domain.iloc[0]) & (two.measure == "accuracy")]
    assert one[one.measure == "accuracy"].value.tolist() == of_first.value.tolist()


def test_a_method_may_change_its_clients_memory_in_place():
    class Counts(Method):
        name = reference = "Counts"

        def first_memory(self, server):
            return {"rounds": torch.zeros(())}

        def remember(self, client):
            client.received["memory"]["rounds"] += 1
            return client.received["memory"]

    run = start(method=Counts(), sizes=(12, 12))
    run.run(Silent())
    assert [int(client.memory["rounds"]) for client in run.clients] == [run.round] * 2
    object.__setattr__(run.method, "remember", lambda _: {"rounds": torch.zeros(9)})
    with pytest.raises(FedReproError, match="remember must also return rounds"):
        run.one_round()


def test_what_the_server_changes_in_place_reaches_clients_in_the_next_round_alone():
    class Halves(Method):
        name = reference = "Halves"

        def init_server(self, server):
            server.tensors["g"] = torch.ones(1)
            server.add_module("d", torch.nn.Linear(1, 1))

        def first_memory(self, server):
            return {"g": server.tensors["g"], "d": torch.ones(1, 1)}

        def download(self, server, client):
            return {"g": server.tensors["g"], "d": server.network("d")}

        def remember(self, client):
            return {"g": client.received["g"], "d": client.received["d"].tensors["weight"]}

        def server_step(self, server, uploads):
            server.tensors["g"].mul_(0.5)
            server.modules["d"].weight.data.mul_(0.5)

    run = start(method=Halves(), sizes=(12, 12))
    run.one_round(), run.one_round()
    assert [client.memory["g"].item() for client in run.clients] == [0.5, 0.5]
    assert run.clients[0].memory["d"].item() == 2 * run.server.modules["d"].weight.item()
    run.server.modules["d"].steps = [torch.optim.SGD(run.server.modules["d"].parameters())]
    with pytest.raises(FedReproError, match="e is added in a round; add it in init_server"):
        run.server.add_module("e", torch.nn.Linear(1, 1))
    with pytest.raises(FedReproError, match="the optimiser in d is lost on resume"):
        run.saved()


def test_dropout_and_changes_in_place_resume_with_the_same_bits():
    class Shaky(Method):
        name = reference = "Shaky"

        def network(self, module):
            module.encoder = torch.nn.Sequential(module.encoder, torch.nn.Dropout(0.5))
            return module

        def server_step(self, server, uploads):
            for key, value in server.model.items():
                server.model[key] = server.tensors.setdefault(key, value).add_(value, alpha=0.5)

    one, two = start(method=Shaky()), start(method=Shaky())
    one.one_round()
    whole = one.saved()
    one.one_round(), two.resume(*whole), two.one_round()
    pd.testing.assert_frame_equal(numbers(one.curve()), numbers(two.curve()), check_exact=True)


def test_several_clients_of_a_domain_count_as_their_mean():
    given = toys.federation((12, 12))
    first, second = given.clients
    clients = first, replace(second, name="twin", domain=first.domain, validation=None)
    tests = {first.domain: given.tests[first.domain]}
    twins = replace(given, clients=clients, domains=(first.domain,), tests=tests)
    rows = of_tests((run := start("SOLO", given=twins)).run(Silent()))
    networks = [c.personal(run.server.model) for c in run.clients]
    values = [run.engine.evaluate(network, tests[first.domain])[0] for network in networks]
    assert rows.value.tolist() == [pytest.approx(np.mean(values))]


def test_means_of_fewer_domains_and_sums_of_tensors_are_refused():
    given = toys.federation((12, 12))
    alone = replace(given, clients=given.clients[:1])
    start(given=alone).one_round()  # one network is tested on both domains
    with pytest.raises(FedReproError, match="domain1 has no client, so its mean would have fewer"):
        start("SOLO", given=alone)
    with pytest.raises(FedReproError, match="FedRep trains more before the last test"):
        start("FedRep", early_stop={"patience": 1})
    with pytest.raises(FedReproError, match="needs a client for each of the 20 tensors, not 3"):
        start(weighting="tensors").one_round()


def test_every_kind_of_network_that_a_method_names_is_tested():
    class Both(Ditto):
        def evaluated_models(self, layout):
            return ("twin", "global")

    both = of_tests(start(method=Both()).run(Silent())).groupby("subject").value.agg(list)
    for kind, alone in (("twin", "Ditto"), ("global", "FedAvg")):
        assert both[kind] == of_tests(start(alone).run(Silent())).value.tolist()
    assert len(both) == 2


def test_participation_trains_a_share_and_leaves_the_rest():
    run = start("ADCOL", participation=0.34)
    before = [dict(client.kept) for client in run.clients]
    run.one_round()
    name, pairs = next(iter(before[0])), zip(before, run.clients, strict=True)
    assert sum(not torch.equal(b[name], c.kept[name]) for b, c in pairs) == 1


def test_patience_counts_rounds_since_the_lowest_mean_loss():
    watched = Curve(EarlyStop(patience=2))
    for number, mean in enumerate((9.0, 3.0, 4.0, 3.0)):  # of two domains
        for domain, shift in (("a", -0.5), ("b", 0.5)):
            watched.rows.append((number, "loss", "global", domain, "validation", mean + shift))
    # round 1 is the best, and no later one as low is better
    assert [watched.stopped(number) for number in (1, 2, 3)] == [False, False, True]
    watched.rows.append((4, "loss", "global", "a", "validation", 2.9))
    assert [watched.stopped(number) for number in (4, 5, 6)] == [False, False, True]


def test_the_untrained_network_is_tested_and_may_be_the_best():
    worse = {"rounds": 10, "optimizer": {"lr": 2.5}}  # in every round
    run = start("FedAvg", early_stop={"patience": 2, "untrained": True}, **worse)
    before = [run.engine.evaluate(run.server.model, t) for t in run.federation.tests.values()]
    curve = run.run(Silent())
    assert of_tests(curve, number=0).value.tolist() == [a for a, *_ in before]
    assert of_tests(curve, "loss", 0).value.tolist() == [loss for _, loss, _ in before]
    assert set(curve[curve["round"] == 0].measure) == {"accuracy", "loss"}, "nothing was sent"
    assert metrics.best_round(curve) == 0 and curve["round"].max() == 2
    assert start("FedAvg", early_stop={"patience": 2}, **worse).run(Silent())["round"].min() == 1


def test_tested_everywhere_is_each_clients_network_on_every_domain():
    run = start("SOLO", tested_on="everywhere")
    curve = run.run(Silent())
    assert (curve.measure == "cross-accuracy").sum() == 3 * 3 * 3
    last = of_tests(curve, "cross-accuracy").pivot(index="subject", columns="domain")["value"]
    for client in run.clients:
        for domain, samples in run.federation.tests.items():
            accuracy, *_ = run.engine.evaluate(client.personal(run.server.model), samples)
            assert last.loc[client.data.name, domain] == accuracy
            predicted = run.predicted[f"3/personal/{client.data.name}/{domain}"]
            hits = (predicted == samples.labels).double().mean()
            assert 100 * float(hits) == pytest.approx(accuracy)
    assert of_tests(curve).value.tolist() == np.diag(last).tolist()


def drawn(rounds: int, clients: int, **settings: object) -> list[list[int]]:
    protocol = toys.protocol(**settings)
    return [participants(protocol, 0, number, clients) for number in range(1, rounds + 1)]


def test_who_takes_part_is_drawn_afresh_or_in_turns():
    rounds = drawn(40, 10, participation=0.3)
    assert all(len(set(r)) == 3 and r == sorted(r) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 10
    assert len({sum(i in r for r in rounds) for i in range(10)}) > 1  # chance gives no turns
    assert drawn(10, 10, participation=0.3, stay=2) == [r for r in rounds[:5] for _ in range(2)]
    rounds = drawn(20, 5, participation=0.2, turns=True)
    cycles = [[i for r in rounds[start : start + 5] for i in r] for start in range(0, 20, 5)]
    assert all(sorted(cycle) == [0, 1, 2, 3, 4] for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) > 1
    turns = {"participation": 0.2, "turns": True}
    most = [(100, {}, 100), (101, turns, 21)]
    most += [(n, {**turns, "stay": s}, m) for n, s, m in ((10, 2, 2), (3, 5, 3), (27, 5, 7))]
    for number, settings, rounds_of_one in most:
        assert turns_of(toys.protocol(rounds=number, **settings), 5) == rounds_of_one
