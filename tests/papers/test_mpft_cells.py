"""MPFT's numbers from a run: whose images weigh the means, and when its clock stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.quantities.cells import cells

MPFT = papers.load("mpft")
COLUMNS = ["round", "measure", "subject", "domain", "split", "value"]


def result(label: str = "FedAvg", **data: Any) -> Any:
    """Two domains under one network, of accuracies 90 and 50; best in round 2 of 4."""
    rows: list[tuple[Any, ...]] = []
    for number, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 2.0)):
        rows += [(number, "accuracy", "global", "a", "test", 90.0 - number),
                 (number, "accuracy", "global", "b", "test", 50.0)]  # fmt: skip
        rows += [(number, "loss", "global", "a", "validation", loss),
                 (number, "seconds", "train", "", "", 10.0),
                 (number, "seconds", "evaluate", "", "", 99.0),
                 (number, "bytes", "up/model", "", "", 1.0)]  # fmt: skip
    facts = {
        "dataset": "pacs",
        "domains": ["a", "b"],
        "clients": [{"name": n, "domain": n} for n in "ab"],
        "counts": [{"split": "test", "domain": "a", "images": 10},
                   {"split": "test", "domain": "b", "images": 30}],
        "standins": [],
        "deviations": {},
        **data,
    }  # fmt: skip
    record = SimpleNamespace(curve=pd.DataFrame(rows, columns=COLUMNS), data=facts)
    return SimpleNamespace(label=label, record=record, clients=2,
                           arm=SimpleNamespace(alternative=False))  # fmt: skip


def values(experiment: str, *results: Any) -> dict[tuple[str, str], float]:
    found = cells(MPFT, MPFT.experiment(experiment), results)
    return {(row["method"], row["column"]): row["value"] for row in found}


def test_domains_count_as_their_test_images_unless_the_data_say_otherwise() -> None:
    plain = values("table-1-pacs", result())
    assert plain["FedAvg", "ind_acc"] == pytest.approx((10 * 0.88 + 30 * 0.5) / 40)
    assert plain["FedAvg", "ood_acc"] == pytest.approx((10 * 0.5 + 30 * 0.88) / 40)
    mixed = values("table-1-pacs", result(weights={"a": 3, "b": 1}))
    assert mixed["FedAvg", "ind_acc"] == pytest.approx((3 * 0.88 + 0.5) / 4)


def test_seconds_end_at_the_reported_round() -> None:
    """20 of FedAvg's 40 seconds; the other's best round is its first."""
    short = result("local")
    curve = short.record.curve
    curve.loc[(curve.measure == "loss") & (curve["round"] == 1), "value"] = 0.0
    assert values("table-3-computation", result(), short) == {
        ("FedAvg", "PACS"): 1.0,
        ("local", "PACS"): 0.5,
    }
