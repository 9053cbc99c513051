"""Scores by their rules, targets, the best round, in and out of domain, in closed form."""

import pytest

from fedrepro.federated import metrics
from fedrepro.federated.metrics import framed
from tests.data.made import one_line

ACCURACY = {"a": [10, 50, 40, 60, 20, 30], "b": [20, 30, 80, 60, 40, 10]}
LOSS = {"a": [3, 2, 2, 1, 2, 3], "b": [3, 2, 2, 3, 1, 1]}  # means 3, 2, 2, 2, 1.5, 2


def rows(measure, split, by_domain):
    return [
        (number, measure, "global", domain, split, float(value))
        for domain, values in by_domain.items()
        for number, value in enumerate(values, 1)
    ]


def curve(validation=True):
    found = rows("accuracy", "test", ACCURACY)
    found += rows("loss", "validation", LOSS) if validation else []
    for number in range(1, 7):
        found.append((number, "bytes", "down/model", "", "", 100.0))
        found.append((number, "bytes", "up/model", "", "", 50.0))
    return framed(found)


def test_scores_and_what_cannot_be_scored():
    for rule, scores in (
        ("last", {"a": 30, "b": 10, "avg": 20}),
        ("last5", {"a": 40, "b": 44, "avg": 42}),
        # one round for all domains; of means 15, 40, 60, 60, 30, 20 the latest on a tie
        ("best-test", {"a": 60, "b": 60, "avg": 60}),
        ("validation", {"a": 20, "b": 40, "avg": 30}),  # the round of lowest mean loss
    ):
        assert metrics.scores(curve(), rule) == scores
    with one_line("no validation images"):
        metrics.scores(curve(validation=False), "validation")
    with one_line("choose from last, last5"):
        metrics.scores(curve(), "luckiest")


@pytest.mark.parametrize("rounds", [[(1, 2, 3), (3, 2, 1)], [(3, 2, 1), (1, 2, 3)]])
def test_means_that_differ_by_rounding_alone_are_equal(rounds):
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in float, their means too."""
    tenths = {d: [v / 10 for v in values] for d, *values in zip("abc", *rounds, strict=True)}
    small = framed(rows("accuracy", "test", tenths))
    first, second = means = metrics.accuracies(small)["avg"]
    assert first != second
    highest = max(first, second)
    assert metrics.rounds_to_target(means, highest) == 1
    assert metrics.scores(small, "best-test")["a"] == rounds[1][0] / 10  # the latest of equals
    assert metrics.rounds_to_target(means, highest + 1e-6) is None
    assert metrics.best_value({"low": 0.1, "one": min(first, second), "two": highest}) == "one"


def test_rounds_to_target_and_the_best_round():
    table = metrics.accuracies(curve())
    assert metrics.rounds_to_target(table["a"], 50) == 2
    assert metrics.rounds_to_target(table["avg"], 60) == 3
    assert metrics.rounds_to_target(table["a"], 99) is None
    assert metrics.best_round(curve()) == 5  # the lowest mean validation loss
    assert metrics.best_round(curve(validation=False)) == 6


def test_clients_of_one_domain_share_its_test_images():
    accuracies = {"one": (90, 10), "two": (30, 50), "three": (70, 50)}
    own = [
        (1, "cross-accuracy", name, domain, "test", float(value))
        for name, values in accuracies.items()
        for domain, value in zip("ab", values, strict=True)
    ]
    judged = framed(rows("accuracy", "test", {"a": [80], "b": [50]}) + own)
    clients = [{"name": n, "domain": d} for n, d in zip(accuracies, "aba", strict=True)]
    found = metrics.in_and_out(judged, clients, {"a": 100, "b": 300})
    assert found.ind.tolist() == [57.5]  # (50 * 90 + 50 * 70 + 300 * 50) / 400
    assert found.ood.tolist() == [30.0]  # (50 * 10 + 50 * 50 + 300 * 30) / 400


def test_the_late_gain_is_what_a_line_through_the_last_half_adds_in_a_quarter():
    def gain(means):
        return metrics.late_gain(framed(rows("accuracy", "test", {"a": means})))

    assert gain(range(20)) == pytest.approx(5.0)
    # three points more in five rounds of a hundred
    assert 0.5 < gain([10.0] * 95 + [13.0] * 5) < 1
    assert gain([1.0, 50.0, 90.0]) == 0.0  # a protocol of few rounds
