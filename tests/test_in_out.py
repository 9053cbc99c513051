"""Numbers of MPFT's tables: accuracy in and out of domain at the best round, traffic to it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.federated.curve import CURVE_COLUMNS
from fedrepro.quantities.cells import cells

MPFT = papers.load("mpft")
DOMAINS = ("photo", "sketch")
TESTED = {"photo": 100, "sketch": 300}
MIB = 1024 * 1024
# by domain, in rounds 1 to 3; the loss is lowest in round 2
ACCURACY = {"photo": (10.0, 80.0, 99.0), "sketch": (20.0, 40.0, 99.0)}
LOSS = {"photo": (3.0, 1.0, 2.0), "sketch": (3.0, 2.0, 2.0)}


def finished(label: str, sends: bool = True, own: Any = None, dataset: str = "pacs") -> Any:
    """A run of three rounds with two clients. own: cross-accuracies by client and domain, in every
    round, where they keep networks of their own. Each round sends 1 MiB down and 2 up."""
    rows: list[tuple[Any, ...]] = []
    for i in range(3):
        for domain in DOMAINS:
            accuracy, loss = ACCURACY[domain][i], LOSS[domain][i]
            rows.append((i + 1, "accuracy", "global", domain, "test", accuracy))
            rows.append((i + 1, "loss", "global", domain, "validation", loss))
        for (name, domain), value in (own or {}).items():
            rows.append((i + 1, "cross-accuracy", name, domain, "test", value))
        if sends:
            rows.append((i + 1, "bytes", "down/model", "", "", 1.0 * MIB))
            rows.append((i + 1, "bytes", "up/model", "", "", 2.0 * MIB))
    data = {
        "dataset": dataset,
        "domains": list(DOMAINS),
        "standins": [],
        "deviations": {},
        "clients": [{"name": f"of {name}", "domain": name} for name in DOMAINS],
        # two classes of each split, whose sum counts; other splits do not
        "counts": [
            {"client": "", "domain": name, "split": split, "class": k, "images": n}
            for name in DOMAINS
            for split, k, n in (
                ("test", "cat", 30),
                ("test", "dog", TESTED[name] - 30),
                ("train", "cat", 7000),
            )
        ],
    }
    record = SimpleNamespace(curve=pd.DataFrame(rows, columns=list(CURVE_COLUMNS)), data=data)
    arm = SimpleNamespace(row="", column=None, alternative=False)
    return SimpleNamespace(label=label, record=record, arm=arm, clients=2)


def found(experiment: str, *runs: Any) -> dict[tuple[str, str], float]:
    rows = cells(MPFT, MPFT.experiment(experiment), runs)
    return {(row["method"], row["column"]): row["value"] for row in rows}


def test_one_network_in_and_out_of_domain_at_the_best_round() -> None:
    assert found("table-1-pacs", finished("FedAvg")) == {
        ("FedAvg", "ood_acc"): pytest.approx(0.7),  # (100 * 40 + 300 * 80) / 400
        ("FedAvg", "ind_acc"): pytest.approx(0.5),  # (100 * 80 + 300 * 40) / 400
        ("FedAvg", "rounds"): 2.0,
    }


def test_own_networks_in_and_out_of_domain_where_nothing_travels() -> None:
    own = {
        ("of photo", "photo"): 90.0,
        ("of photo", "sketch"): 10.0,
        ("of sketch", "photo"): 30.0,
        ("of sketch", "sketch"): 50.0,
    }
    assert found("table-1-pacs", finished("local", sends=False, own=own)) == {
        ("local", "ood_acc"): pytest.approx(0.25),  # (100 * 10 + 300 * 30) / 400
        ("local", "ind_acc"): pytest.approx(0.6),  # (100 * 90 + 300 * 50) / 400
        ("local", "rounds"): 0.0,
    }


def test_other_data_than_the_printed_tables_have_columns_of_their_own() -> None:
    rows = found("table-1-pacs", finished("FedAvg", dataset="minidigits"))
    assert {column for _, column in rows} == {"out of domain", "in domain", "best round"}
    printed = MPFT.table("table-1-pacs").columns
    assert not {column for _, column in rows} & set(printed)


def test_traffic_is_all_clients_to_the_best_round_in_mebibytes() -> None:
    runs = finished("FedAvg"), finished("local", sends=False)
    assert found("table-3-communication", *runs) == {
        ("FedAvg", "PACS"): pytest.approx(6.0),  # two rounds of 1 + 2
        ("local", "PACS"): 0.0,
    }
