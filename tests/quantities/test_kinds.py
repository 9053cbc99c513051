"""Printed quantities of made runs, worked out by hand; and numbers that need no training: sizes,
distances, messages."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import linalg

from fedrepro import papers
from fedrepro.base.errors import Diverged
from fedrepro.data.federation import Samples
from fedrepro.federated.metrics import CURVE_COLUMNS
from fedrepro.quantities import base, costs, counted
from fedrepro.quantities.accuracy import Noise, binomial
from fedrepro.quantities.base import Asked, cells, study
from fedrepro.quantities.costs import core_hours, pflop, pflop_done, pflop_unread
from fedrepro.quantities.counted import frechet
from fedrepro.records import Record, federation_of
from fedrepro.report.results import recorded

ADCOL, FEDPALL, I2PFL, MPFT = map(papers.load, ("adcol", "fedpall", "i2pfl", "mpft"))
MIB = 1024 * 1024


def result(label: str, rows: list[tuple[Any, ...]], arm: Any = None, **data: Any) -> Any:
    """A finished run of two clients with a curve of its own."""
    domains = list(dict.fromkeys(row[3] for row in rows if row[3]))
    facts = {"domains": domains, "standins": [], "subsets": [], "deviations": {}, **data}
    facts.setdefault("clients", [{"name": f"of {name}", "domain": name} for name in domains])
    facts.setdefault("counts", [{"split": "test", "domain": d, "images": 9} for d in domains])
    curve = pd.DataFrame(rows, columns=list(CURVE_COLUMNS))
    arm = {"row": "", "column": None, "alternative": False, "fields": {}, **(arm or {})}
    more = {"config": {"method": arm}, "environment": {"device": ""}}
    run = SimpleNamespace(curve=curve, data=facts, **more)
    return SimpleNamespace(label=label, record=run, arm=SimpleNamespace(**arm), clients=2, past=0)


def last(label: str, *accuracies: float, **arm: Any) -> Any:
    """One round with these test accuracies on d0, d1, ..."""
    rows = [(1, "accuracy", "personal", f"d{i}", "test", v) for i, v in enumerate(accuracies)]
    return result(label, rows, arm)


def found(paper: Any, name: str, *runs: Any, dataset: str = "digits5", lost: Any = ()) -> Any:
    asked = Asked(paper, paper.experiment(name), paper.protocol(dataset, "reduced"), runs)
    return cells(replace(asked, diverged=lost))


def values(*args: Any, **more: Any) -> dict[tuple[str, str], Any]:
    return {(row["method"], row["column"]): row["value"] for row in found(*args, **more)}


def test_grid_puts_each_mean_in_its_place_and_keeps_that_of_a_diverged_arm():
    low = last("ADCOL, rate=0.1", 30.0, 40.0, row="ADCOL", column="rate 0.1")
    high = last("ADCOL, rate=1", 70.0, 90.0, row="ADCOL", column="rate 1")
    places = {("ADCOL", "rate 0.1"): 35.0, ("ADCOL", "rate 1"): 80.0}
    assert values(ADCOL, "table-8", low, high) == places
    assert values(ADCOL, "table-18", last("FedBN", 10.0, 20.0)) == {("FedBN", "accuracy"): 15.0}
    kept, lost = found(ADCOL, "table-8", low, lost=[(high.arm, Diverged("", seed=2, round=7))])
    assert (lost["method"], lost["column"], lost["value"]) == ("ADCOL", "rate 1", None)
    assert lost["caveats"] == ["seed 2 diverged in round 7"] and lost.keys() == kept.keys()


def test_printed_differences_of_two_rows_are_left_out_with_either():
    full, plain, other = last("FedPall", 70.0), last("CE", 66.5), last("ADCOL", 69.0)
    named = {"office10": "FedPall over ADCOL on Office-10 (about)"}
    found = values(FEDPALL, "prose-gains", full, plain, other, dataset="office10")
    assert found[named["office10"], "value"] == pytest.approx(1.0) and len(found) == 2
    assert values(FEDPALL, "prose-gains", plain, other, dataset="office10") == {}


def test_pace_is_counted_to_the_lowest_end_and_swings_in_rounds_that_all_have():
    def run(label: str, *means: float) -> Any:
        rows = [(i + 1, "accuracy", "global", "d0", "test", v) for i, v in enumerate(means)]
        return result(label, rows)

    ours = run("Ours", 10, 20, 30, 40, 50, 60, 60, 60)
    plain = run("Ours w/o EMA", 40, 44, 42, 50, 46, 50)
    asked = I2PFL.experiment("table-10-digits").model_copy(update={"kind": "pace"})
    asked = Asked(I2PFL, asked, I2PFL.protocol("digits4", "reduced"), (ours, plain))
    pace = {(row["method"], row["column"]): row["value"] for row in cells(asked)}
    assert pace["Ours", "rounds"] == 5 and pace["Ours w/o EMA", "rounds"] == 4  # 46.4 %
    assert pace["Ours", "swing"] == 10 and pace["Ours w/o EMA", "swing"] == 4
    assert not cells(replace(asked, results=[ours]))
    end = SimpleNamespace(label=plain.label, **vars(plain.arm)), Diverged("", seed=2, round=7)
    lost = cells(replace(asked, results=[ours], diverged=[end]))
    assert len(lost) == 4 and {row["value"] for row in lost} == {None}


def test_each_target_fills_its_own_column():
    def fada(target: int, *accuracies: float) -> Any:
        return last(f"FADA {target}", *accuracies, row="FADA", fields={"target": target})

    runs = [last("SOLO", 10.0, 20.0, fields={}), fada(0, 30.0, 99.0), fada(1, 99.0, 50.0)]
    places = {("SOLO", "d0"): 10.0, ("SOLO", "d1"): 20.0, ("SOLO", "avg"): 15.0}
    places |= {("FADA", "d0"): 30.0, ("FADA", "d1"): 50.0, ("FADA", "avg"): 40.0}
    asked = Asked(ADCOL, ADCOL.experiment("table-21"), ADCOL.protocol("digits5", "paper"), runs)
    behind = {(r["method"], r["column"]): [id(run) for _, run in r["parts"]] for r in cells(asked)}
    assert behind["FADA", "avg"] == [id(one.record) for one in runs[1:]]
    # The last client, named twice, is one column; without all targets there is no mean.
    assert values(ADCOL, "table-21", *runs, fada(-1, 99.0, 50.0)) == places
    assert values(ADCOL, "table-21", fada(-1, 99.0, 50.0)) == {("FADA", "d1"): 50.0}


# MPFT's tables. By domain, in rounds 1 to 3; the validation loss is lowest in round 2.
ACCURACY = {"photo": (10.0, 80.0, 99.0), "sketch": (20.0, 40.0, 99.0)}
LOSS = {"photo": (3.0, 1.0, 2.0), "sketch": (3.0, 2.0, 2.0)}


def mpft(label: str, sends: bool = True, best: int = 1, **data: Any) -> Any:
    """Each round sends 1 MiB down and 2 up and takes 10 seconds."""
    rows: list[tuple[Any, ...]] = []
    for i in range(3):
        for domain in ACCURACY:
            loss = -1.0 if i == best else LOSS[domain][i]
            rows.append((i + 1, "accuracy", "global", domain, "test", ACCURACY[domain][i]))
            rows.append((i + 1, "loss", "global", domain, "validation", loss))
        for phase, spent in (("train", 10.0), ("evaluate", 99.0)):
            rows.append((i + 1, "seconds", phase, "", "", spent))
        for way, size in (("down/model", 1.0 * MIB), ("up/model", 2.0 * MIB)) if sends else ():
            rows.append((i + 1, "bytes", way, "", "", size))
    counts = [("test", "photo", 30), ("test", "photo", 70), ("test", "sketch", 300)]
    counts.append(("train", "photo", 7000))
    listed = [dict(zip(("split", "domain", "images"), row, strict=True)) for row in counts]
    return result(label, rows, counts=listed, **data)


def test_one_network_in_and_out_of_domain_at_the_best_round():
    common = values(MPFT, "table-1-pacs", mpft("FedAvg"), dataset="pacs")
    assert common["FedAvg", "ood_acc"] == pytest.approx((100 * 0.4 + 300 * 0.8) / 400)
    assert common["FedAvg", "ind_acc"] == pytest.approx((100 * 0.8 + 300 * 0.4) / 400)
    assert common["FedAvg", "rounds"] == 2 and len(common) == 3
    weighed = mpft("FedAvg", weights={"photo": 3, "sketch": 1})
    weighed = values(MPFT, "table-1-pacs", weighed, dataset="pacs")
    assert weighed["FedAvg", "ind_acc"] == pytest.approx((3 * 0.8 + 0.4) / 4)
    rows = values(MPFT, "table-1-pacs", mpft("FedAvg"), dataset="minidigits")
    assert {column for _, column in rows} == {"out of domain", "in domain", "best round"}
    rows = found(MPFT, "table-1-pacs", mpft("local", sends=False), dataset="pacs")
    assert {row["column"]: row["value"] for row in rows if row["alone"]}["rounds"] == 0.0


def test_traffic_and_seconds_end_at_the_best_round():
    runs = mpft("FedAvg"), mpft("local", sends=False, best=0)
    traffic = values(MPFT, "table-3-communication", *runs, dataset="pacs")
    assert traffic == {("FedAvg", "PACS"): 6.0, ("local", "PACS"): 0.0}  # two rounds of 1 + 2 MiB
    seconds = values(MPFT, "table-3-computation", *runs, dataset="pacs")
    assert seconds == {("FedAvg", "PACS"): 1.0, ("local", "PACS"): 0.5}
    runs[1].record.environment["device"] = "another machine"
    seconds = values(MPFT, "table-3-computation", *runs, dataset="pacs")
    assert seconds["local", "PACS"] is None


RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 200)


def run(name: str, predicted: list[np.ndarray[Any, Any]], keep: bool = True) -> Any:
    """A record of one domain whose rounds predicted so."""
    rows = [
        (number, "accuracy", "global", "here", "test", 100 * float((guess == LABELS).mean()))
        for number, guess in enumerate(predicted, 1)
    ]
    kept = {f"predicted/{n}/global/server/here": guess for n, guess in enumerate(predicted, 1)}
    return SimpleNamespace(
        run_id=name,
        curve=pd.DataFrame(rows, columns=list(CURVE_COLUMNS)),
        predictions=kept | {"labels/here": LABELS} if keep else {},
        config={"method": {"fields": {}}},
        protocol=SimpleNamespace(tested_at=50, rounds=len(predicted)),
        data={"domains": ["here"], "clients": [{"name": "a", "domain": "here"}],
              "counts": [{"domain": "here", "split": "test", "images": 200}]},
    )  # fmt: skip


def guesses(right: float) -> np.ndarray[Any, Any]:
    wrong = RNG.random(200) > right
    return np.where(wrong, (LABELS + 1) % 3, LABELS)


def test_paired_variance_is_what_a_bootstrap_over_images_gives():
    ours = [guesses(0.7) for _ in range(3)]
    theirs = [np.where(RNG.random(200) < 0.8, one, guesses(0.5)) for one in ours]

    def rows(**how: bool) -> list[list[Any]]:
        sides = (("a", ours), ("b", theirs))
        return [[run(f"{s}{i}", [g], **how) for i, g in enumerate(side)] for s, side in sides]

    found = Noise("last").variance(rows(), "here")
    right = [np.mean([g == LABELS for g in side], axis=0) for side in (ours, theirs)]
    draws = RNG.integers(0, 200, (4000, 200))
    again = (right[0] - right[1])[draws].mean(axis=1)
    assert found == pytest.approx(again.var(), rel=0.1)
    high, low = (side.mean() for side in right)  # a relative gain, by the delta method
    again = right[0][draws].mean(axis=1) / right[1][draws].mean(axis=1)
    gain = Noise("last").variance(rows(), "here", (1 / low, -high / low**2))
    assert gain == pytest.approx(again.var(), rel=0.1)
    lost = run("lost", [ours[0]], keep=False)  # the others' predictions stand for it
    assert Noise("last").variance([[*rows()[0], lost], rows()[1]], "here") == found
    bound = Noise("last").variance(rows(keep=False), "here")
    assert bound == pytest.approx(sum(binomial(float(r.mean()), 200) for r in right))
    assert bound > found
    early = run("a", [guesses(0.9), *[guesses(0.4)] * 5], keep=False)  # its test was of a sample
    shares = [Noise(rule).variance([[early]], "here", [1.0]) for rule in ("best-test", "last")]
    best, last = early.curve.value[[0, 5]] / 100
    assert shares == pytest.approx([binomial(best, 50), binomial(last, 200)])


def gaussian(n: int, d: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return shift + scale * np.random.default_rng(seed).normal(size=(n, d))


def test_as_with_the_square_root_of_the_product():
    mix = np.random.default_rng(3).normal(size=(5, 5))
    x, y = gaussian(60, 5, 0) @ mix, gaussian(90, 5, 1, shift=0.4)
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    difference = x.mean(0) - y.mean(0)
    expected = difference @ difference + np.trace(s + t - 2 * linalg.sqrtm(s @ t).real)
    assert frechet(x, y) == pytest.approx(expected)
    few = frechet(gaussian(4, 30, 0), gaussian(5, 30, 1))  # fewer images than features
    assert np.isfinite(few) and few > 0


def counted_cells(experiment, dataset="minidigits", scale="smoke", paper="adcol", **more):
    rows = study(paper, dataset, scale, **more).cells(experiment)
    return {(row["method"], row["column"]): row for row in rows}


def test_the_example_of_message_sizes():
    rows = counted_cells("prose-communication-example")
    value = {method: row["value"] for (method, _), row in rows.items()}
    assert value["MLP parameters"] == 199_210
    assert value["FedAvg MB per round"] == pytest.approx(159.4, abs=0.05)
    assert value["discriminator bytes"] == 4 * (128 * 128 + 128 + 100 * 129)
    assert value["discriminator bytes, 5 outputs"] == 68_628  # what the paper prints
    assert value["ADCOL MB per round, 5 outputs"] == pytest.approx(37.6, abs=0.05)
    assert rows["ADCOL MB per round, 5 outputs", "value"]["alternative"]


def test_sizes_and_distances_of_sources_are_those_before_clients_get_theirs():
    whole, *each = counted_cells("table-3-fid").values()
    assert whole["value"] == pytest.approx(np.mean([row["value"] for row in each]))
    assert whole["standin"] and "Inception" in whole["caveats"][0]
    rows = counted_cells("table-3-sizes")
    assert rows["minidigits / mini-scanned", "train"]["value"] == 1437
    assert rows["minidigits / mini-scanned", "test"]["value"] == 360


def test_what_counts_a_subset_says_so_and_the_size_of_a_network_does_not(monkeypatch):
    whole, real = counted.sources, base.federation_of

    def cut(asked):
        return {k: replace(v, subset=k == "mini-font") for k, v in whole(asked).items()}

    monkeypatch.setattr(counted, "sources", cut)
    lesser = {"subsets": ("mini-font",)}
    monkeypatch.setattr(base, "federation_of", lambda *where: replace(real(*where), **lesser))
    sizes = counted_cells("table-3-sizes")
    assert {m for (m, _), row in sizes.items() if row["subset"]} == {"minidigits / mini-font"}
    messages = counted_cells("prose-cost", paper="fedpall")
    lesser_rows = {method for (method, _), row in messages.items() if row["subset"]}
    up = "bytes up in a round, relative to FedAvg (percent)"
    assert lesser_rows == {"images per client, minidigits", up}


def test_the_clients_of_each_domain_are_the_printed_ones(real_data, tmp_path):
    given = {"data_root": real_data, "runs_dir": tmp_path, "paper": "i2pfl"}
    rows = counted_cells("table-2-pacs", "pacs", "paper", **given)
    printed = {"photo": 3, "art_painting": 2, "cartoon": 1, "sketch": 4}
    assert {domain: row["value"] for (_, domain), row in rows.items()} == printed
    assert {method for method, _ in rows} == {"clients"} and not list(tmp_path.iterdir())
    rows = counted_cells("table-2", "digits4-standin", "paper", **given)
    assert [domain for (_, domain), row in rows.items() if row["standin"]] == ["syn-standin"]


def test_the_counted_table_is_the_printed_one(monkeypatch):
    """PACS from the domains' real sizes: 0.56 of 9,991 images, cut by class, in the printed rounds
    at 512 values; rates 0.1 and 0.3 send ceil(rate n_k) rows a class and client. DomainNet's rows
    need no image, except those whose number of prototypes is a share of the images."""
    spec, clients = MPFT.protocol("pacs").data, []
    federation = costs.one_each(spec)
    for client, n in zip(federation.clients, (1670, 2048, 2344, 3929), strict=True):
        labels = torch.arange(round(0.56 * n)) % 7
        clients.append(replace(client, train=Samples(torch.zeros(len(labels), 3), labels)))
    whole = replace(federation, clients=tuple(clients))
    monkeypatch.setattr(costs, "federation_of", lambda *_: whole)
    rows = cells(Asked(MPFT, MPFT.experiment("table-3-traffic"), MPFT.protocol("pacs")))
    table = MPFT.table("table-3-communication")
    found = pd.Series([row["dataset"] for row in rows]).value_counts(sort=False)
    assert found.to_dict() == {"pacs": 12} | {f"domainnet-{n}": 8 for n in (50, 100, 150)}
    for row in rows:
        cell = table.cell(row["method"], row["column"])
        assert row["counted"] and cell is not None and row["value"] == cell.value, row


def test_operations_are_three_passes_for_each_image_and_epoch():
    asked = study("mpft", "minidigits", "smoke")
    arm = next(arm for arm in asked.arms("table-1-pacs") if arm.label == "FedAvg")
    data = federation_of(arm.protocol.data)
    images, size, classes = sum(len(c.train) for c in data.clients), data.size, len(data.classes)
    adapter = 2 * (2 * size * (size // 4) + size * classes)
    rounds = arm.protocol.rounds * arm.protocol.local_epochs
    found = pflop(arm.protocol, images, classes, size)
    assert found == pytest.approx(3 * adapter * images * rounds / 1e15)
    assert pflop_unread(arm.protocol, []) is None  # embedded


def _runs(paper: str, experiment: str) -> list[Record]:
    return [result.record for _, _, result in recorded(paper).runs(experiment)]


@pytest.mark.parametrize(
    ("paper", "experiment", "known"),
    [
        ("adcol", "table-4", None),  # 125 images for every client
        ("i2pfl", "table-8-digits", None),  # a stated number for every domain
        ("i2pfl", "table-8-office10", "table-3-office10"),  # a share, and other numbers of clients
    ],
)
def test_a_run_is_estimated_before_it_is_made(paper, experiment, known):
    others = _runs(paper, known) if known else []
    first, *_ = runs = _runs(paper, experiment)
    assert all((core_hours(r) is None) == ("NVIDIA" in r.environment["device"]) for r in runs)
    assert pflop_unread(first.protocol, others) == pytest.approx(pflop_done(first), rel=0.01)
    assert (pflop_unread(first.protocol, []) is None) == bool(known)


def test_all_images_are_estimated_from_a_run_on_a_quarter_of_them():
    (run, *_) = runs = _runs("fedpall", "table-1-office10")
    assert run.protocol.data.allocation.per_client == 0.25
    whole = run.protocol.changed(**{"data.allocation.per_client": "all"})
    assert pflop_unread(whole, runs) == pytest.approx(4 * pflop_done(run), rel=0.01)


def test_label_skew_divides_all_images_of_the_release():
    (arm,) = [a for a in papers.load("adcol").arms("table-12") if a.label == "FedAvg"]
    assert pflop_unread(arm.protocol, []) == pflop(arm.protocol, 50_000, 10, 32)
    tenth = arm.protocol.changed(**{"data.allocation.per_client": 0.1})
    assert pflop_unread(tenth, []) == pflop(tenth, 5_000, 10, 32)
