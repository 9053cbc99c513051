import pandas as pd
import pytest

from fedrepro.base.errors import FedReproError
from fedrepro.federated import metrics
from fedrepro.federated.metrics import CURVE_COLUMNS

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


def test_last_rounds():
    assert metrics.scores(curve(), "last") == {"a": 30, "b": 10, "avg": 20}
    assert metrics.scores(curve(), "last5") == {"a": 40, "b": 44, "avg": 42}


def test_best_test_takes_one_round_for_all_domains_the_latest_on_a_tie():
    # Means 15, 40, 60, 60, 30, 20: rounds 3 and 4 tie.
    assert metrics.scores(curve(), "best-test") == {"a": 60, "b": 60, "avg": 60}


@pytest.mark.parametrize("rounds", [[(1, 2, 3), (3, 2, 1)], [(3, 2, 1), (1, 2, 3)]])
def test_means_that_differ_by_rounding_alone_are_equal(rounds):
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in float, their means too."""
    rows = [
        (n, "accuracy", "global", domain, "test", value / 10)
        for n, values in enumerate(rounds, 1)
        for domain, value in zip("abc", values, strict=True)
    ]
    small = pd.DataFrame(rows, columns=list(CURVE_COLUMNS))
    first, second = metrics.accuracies(small)["avg"]
    assert first != second
    highest = max(first, second)
    assert metrics.rounds_to_target(small, "avg", highest) == 1
    assert metrics.scores(small, "best-test")["a"] == rounds[1][0] / 10  # the latest of equals
    assert metrics.rounds_to_target(small, "avg", highest + 1e-6) is None
    assert metrics.best_value({"low": 0.1, "one": min(first, second), "two": highest}) == "one"


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


def test_the_best_round_is_that_of_the_lowest_mean_validation_loss():
    # Mean losses 3, 2, 2, 2, 1.5, 2.
    assert metrics.best_round(curve()) == 5
    assert metrics.best_round(curve(validation=False)) == 6


CLIENTS = [{"name": "one", "domain": "a"}, {"name": "two", "domain": "b"}]
TESTED = {"a": 100, "b": 300}


def judged(common, own=()):
    """A curve of round 1: accuracies of one network by domain, and of clients' own by both."""
    rows = [(1, "accuracy", "global", d, "test", float(v)) for d, v in common.items()]
    rows += [(1, "cross-accuracy", name, d, "test", float(v)) for name, d, v in own]
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def test_clients_of_one_domain_share_its_test_images():
    own = [("one", "a", 90), ("one", "b", 10), ("two", "a", 30), ("two", "b", 50)]
    own += [("three", "a", 70), ("three", "b", 50)]
    clients = [*CLIENTS, {"name": "three", "domain": "a"}]
    found = metrics.in_and_out(judged({"a": 80, "b": 50}, own), clients, TESTED)
    assert found.ind.tolist() == [57.5]  # (50 * 90 + 50 * 70 + 300 * 50) / 400
    assert found.ood.tolist() == [30.0]  # (50 * 10 + 50 * 50 + 300 * 30) / 400


def test_the_late_gain_is_what_a_line_through_the_last_half_adds_in_a_quarter():
    def curve(means):
        rows = {"measure": "accuracy", "subject": "global", "domain": "a", "split": "test"}
        return pd.DataFrame([{**rows, "round": i, "value": v} for i, v in enumerate(means, 1)])

    assert metrics.late_gain(curve(range(20))) == pytest.approx(5.0)
    last_rounds = curve([10.0] * 95 + [13.0] * 5)  # three points more in five rounds of a hundred
    assert 0.5 < metrics.late_gain(last_rounds) < 1
    assert metrics.late_gain(curve([1.0, 50.0, 90.0])) == 0.0  # a protocol of few rounds
