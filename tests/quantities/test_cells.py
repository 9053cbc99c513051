"""Printed quantities of made runs, worked out by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.base.errors import Diverged
from fedrepro.federated.metrics import CURVE_COLUMNS
from fedrepro.quantities.accuracy import Noise, binomial
from fedrepro.quantities.base import Asked, cells

ADCOL, FEDPALL, MPFT = (papers.load(name) for name in ("adcol", "fedpall", "mpft"))
MIB = 1024 * 1024


def result(label: str, rows: list[tuple[Any, ...]], arm: Any = None, **data: Any) -> Any:
    """A finished run of two clients with a curve of its own."""
    domains = list(dict.fromkeys(row[3] for row in rows if row[3]))
    facts = {"domains": domains, "standins": [], "subsets": [], "deviations": {}, **data}
    facts.setdefault("clients", [{"name": f"of {name}", "domain": name} for name in domains])
    curve = pd.DataFrame(rows, columns=list(CURVE_COLUMNS))
    arm = {"row": "", "column": None, "alternative": False, "fields": {}, **(arm or {})}
    run = SimpleNamespace(curve=curve, data=facts, config={"method": arm})
    return SimpleNamespace(label=label, record=run, arm=SimpleNamespace(**arm), clients=2, past=0)


def last(label: str, *accuracies: float, **arm: Any) -> Any:
    """One round with these test accuracies on d0, d1, ..."""
    rows = [(1, "accuracy", "personal", f"d{i}", "test", v) for i, v in enumerate(accuracies)]
    return result(label, rows, arm)


def found(paper: Any, name: str, *runs: Any, dataset: str = "digits5", lost: Any = ()) -> Any:
    asked = Asked(paper, paper.experiment(name), paper.protocol(dataset, "reduced"), runs)
    return cells(asked, lost)


def values(*args: Any, **more: Any) -> dict[tuple[str, str], Any]:
    return {(row["method"], row["column"]): row["value"] for row in found(*args, **more)}


def test_grid_puts_each_mean_in_its_place_and_keeps_that_of_a_diverged_arm():
    low = last("ADCOL, rate=0.1", 30.0, 40.0, row="ADCOL", column="rate 0.1")
    high = last("ADCOL, rate=1", 70.0, 90.0, row="ADCOL", column="rate 1")
    places = {("ADCOL", "rate 0.1"): 35.0, ("ADCOL", "rate 1"): 80.0}
    assert values(ADCOL, "table-8", low, high) == places
    assert values(ADCOL, "table-18", last("FedBN", 10.0, 20.0)) == {("FedBN", "accuracy"): 15.0}
    end = Diverged("no number", seed=2, round=7)
    kept, lost = found(ADCOL, "table-8", low, lost=[(high.arm, end)])
    assert (lost["method"], lost["column"], lost["value"]) == ("ADCOL", "rate 1", None)
    assert lost["caveats"] == ["seed 2 diverged in round 7"] and lost.keys() == kept.keys()


def test_printed_differences_of_two_rows_are_left_out_with_either():
    full, plain, other = last("FedPall", 70.0), last("CE", 66.5), last("ADCOL", 69.0)
    named = {"office10": "FedPall over ADCOL on Office-10 (about)"}
    found = values(FEDPALL, "prose-gains", full, plain, other, dataset="office10")
    assert found[named["office10"], "value"] == pytest.approx(1.0) and len(found) == 2
    assert values(FEDPALL, "prose-gains", plain, other, dataset="office10") == {}


def test_each_target_fills_its_own_column():
    def fada(target: int, *accuracies: float) -> Any:
        return last(f"FADA {target}", *accuracies, row="FADA", fields={"target": target})

    solo = last("SOLO", 10.0, 20.0, fields={})
    runs = [solo, fada(0, 30.0, 99.0), fada(1, 99.0, 50.0)]
    places = {("SOLO", "d0"): 10.0, ("SOLO", "d1"): 20.0, ("SOLO", "avg"): 15.0}
    places |= {("FADA", "d0"): 30.0, ("FADA", "d1"): 50.0, ("FADA", "avg"): 40.0}
    assert values(ADCOL, "table-21", *runs) == places
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


def test_a_run_that_sends_nothing_stands_alone_and_needs_no_round():
    """In and out of domain of clients' own networks: `metrics.in_and_out`, tested there."""
    rows = found(MPFT, "table-1-pacs", mpft("local", sends=False), dataset="pacs")
    assert {row["column"]: row["value"] for row in rows if row["alone"]}["rounds"] == 0.0


def test_traffic_and_seconds_end_at_the_best_round():
    runs = mpft("FedAvg"), mpft("local", sends=False, best=0)
    traffic = values(MPFT, "table-3-communication", *runs, dataset="pacs")
    assert traffic == {("FedAvg", "PACS"): 6.0, ("local", "PACS"): 0.0}  # two rounds of 1 + 2 MiB
    seconds = values(MPFT, "table-3-computation", *runs, dataset="pacs")
    assert seconds == {("FedAvg", "PACS"): 1.0, ("local", "PACS"): 0.5}


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
