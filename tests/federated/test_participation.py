"""Who takes part: drawn afresh, in turns, and for several rounds."""

import pytest

from fedrepro.federated.server import participants, turns_of
from tests import toys


def drawn(rounds: int, clients: int, **settings: object) -> list[list[int]]:
    protocol = toys.protocol(**settings)
    return [participants(protocol, 0, number, clients) for number in range(1, rounds + 1)]


def test_all_where_no_share_is_asked_for() -> None:
    assert drawn(2, 4) == [[0, 1, 2, 3]] * 2


def test_draws_are_afresh_sorted_and_of_one_size() -> None:
    rounds = drawn(40, 10, participation=0.3)
    assert all(len(set(r)) == 3 and r == sorted(r) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 10
    counts = [sum(i in r for r in rounds) for i in range(10)]
    assert len(set(counts)) > 1  # chance gives no turns


def test_turns_give_every_client_one_before_any_has_another() -> None:
    rounds = drawn(20, 5, participation=0.2, turns=True)
    for start in range(0, 20, 5):
        assert sorted(i for r in rounds[start : start + 5] for i in r) == [0, 1, 2, 3, 4]
    assert len({tuple(map(tuple, rounds[s : s + 5])) for s in range(0, 20, 5)}) > 1


def test_drawn_clients_stay() -> None:
    alone, staying = drawn(5, 10, participation=0.3), drawn(10, 10, participation=0.3, stay=2)
    assert staying == [r for r in alone for _ in range(2)]


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"rounds": 100}, 100),
        ({"rounds": 100, "participation": 0.2}, 100),
        ({"rounds": 100, "participation": 0.2, "turns": True}, 20),
        ({"rounds": 101, "participation": 0.2, "turns": True}, 21),
        ({"rounds": 10, "participation": 0.2, "turns": True, "stay": 2}, 2),
    ],
)
def test_most_rounds_of_one_client(settings: dict[str, object], most: int) -> None:
    assert turns_of(toys.protocol(**settings), 5) == most
