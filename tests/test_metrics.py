import pandas as pd
import pytest

from fedrepro import metrics
from fedrepro.errors import FedReproError
from fedrepro.rounds import CURVE_COLUMNS

ACCURACY = {"a": [10, 50, 40, 60, 20, 30], "b": [20, 30, 80, 60, 40, 10]}
LOSS = {"a": [3, 2, 2, 1, 2, 3], "b": [3, 2, 2, 3, 1, 1]}


def curve(validation=True):
    rows = []
    for domain in "ab":
        for i in range(6):
            rows.append((i + 1, "accuracy", "global", domain, "test", float(ACCURACY[domain][i])))
            if validation:
                rows.append((i + 1, "loss", "global", domain, "validation", float(LOSS[domain][i])))
    for i in range(6):
        rows.append((i + 1, "bytes", "down/model", "", "", 100.0))
        rows.append((i + 1, "bytes", "up/model", "", "", 50.0))
        rows.append((i + 1, "seconds", "train", "", "", 2.0))
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def test_last():
    assert metrics.scores(curve(), "last") == {"a": 30, "b": 10, "avg": 20}


def test_last5():
    assert metrics.scores(curve(), "last5") == {"a": 40, "b": 44, "avg": 42}


def test_best_test_takes_one_round_for_all_domains_the_latest_on_a_tie():
    # Means 15, 40, 60, 60, 30, 20: rounds 3 and 4 tie.
    assert metrics.scores(curve(), "best-test") == {"a": 60, "b": 60, "avg": 60}


def test_validation_takes_the_round_of_lowest_mean_loss():
    # Mean losses 3, 2, 2, 2, 1.5, 2.
    assert metrics.scores(curve(), "validation") == {"a": 20, "b": 40, "avg": 30}


def test_validation_without_images_is_one_clear_line():
    with pytest.raises(FedReproError, match="no validation images"):
        metrics.scores(curve(validation=False), "validation")


def test_unknown_rule():
    with pytest.raises(FedReproError, match="choose from last, last5"):
        metrics.scores(curve(), "luckiest")


def test_rounds_and_bytes_to_target():
    assert metrics.rounds_to_target(curve(), "a", 50) == 2
    assert metrics.rounds_to_target(curve(), "avg", 60) == 3
    assert metrics.rounds_to_target(curve(), "a", 99) is None
    assert metrics.bytes_to_round(curve(), 2, clients=3) == 100


def test_seconds_by_phase():
    assert metrics.seconds(curve())["train"] == 12
