"""Who takes part: drawn afresh, in turns, and for several rounds."""

import pytest

from fedrepro.federated.server import participants, turns_of
from tests import toys


def drawn(rounds: int, clients: int, **settings: object) -> list[list[int]]:
    protocol = toys.protocol(**settings)
    return [participants(protocol, 0, number, clients) for number in range(1, rounds + 1)]


def test_draws_are_afresh_sorted_and_of_one_size():
    assert drawn(2, 4) == [[0, 1, 2, 3]] * 2  # no share is asked for
    rounds = drawn(40, 10, participation=0.3)
    assert all(len(set(r)) == 3 and r == sorted(r) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 10
    assert len({sum(i in r for r in rounds) for i in range(10)}) > 1  # chance gives no turns
    assert drawn(10, 10, participation=0.3, stay=2) == [r for r in rounds[:5] for _ in range(2)]


def test_turns_give_every_client_one_before_any_has_another():
    rounds = drawn(20, 5, participation=0.2, turns=True)
    cycles = [[i for r in rounds[start : start + 5] for i in r] for start in range(0, 20, 5)]
    assert all(sorted(cycle) == [0, 1, 2, 3, 4] for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) > 1


@pytest.mark.parametrize(
    ("rounds", "settings", "most"),
    [
        (100, {}, 100),
        (100, {"participation": 0.2}, 100),
        (100, {"participation": 0.2, "turns": True}, 20),
        (101, {"participation": 0.2, "turns": True}, 21),
        (10, {"participation": 0.2, "turns": True, "stay": 2}, 2),
    ],
)
def test_most_rounds_of_one_client(rounds, settings, most):
    assert turns_of(toys.protocol(rounds=rounds, **settings), 5) == most
