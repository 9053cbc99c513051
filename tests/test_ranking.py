"""Ranks, their intervals, and agreement with printed orders."""

from __future__ import annotations

from itertools import product

import pandas as pd
import pytest

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.report import ranking


def scores(values: dict[str, list[list[float]]]) -> pd.DataFrame:
    """By method: seeds, and in each the accuracy on domains a, b, ..."""
    rows = [
        {"method": name, "seed": seed, "column": "ab"[d], "value": value}
        for name, table in values.items()
        for seed, row in enumerate(table)
        for d, value in enumerate(row)
    ]
    return pd.DataFrame(rows)


def test_ranks_by_the_mean_and_ties_share() -> None:
    frame = scores({"low": [[1, 3]], "top": [[9, 9]], "tied": [[2, 2]]})
    found = ranking.ranks(frame, draws=10)
    assert found["mean"].to_dict() == {"top": 9, "low": 2, "tied": 2}
    assert found["rank"].to_dict() == {"top": 1, "low": 2.5, "tied": 2.5}
    assert next(iter(found.index)) == "top"


def test_a_method_better_everywhere_is_first_in_every_draw() -> None:
    frame = scores({"a": [[9, 5], [8, 6]], "b": [[1, 2], [3, 1]]})
    found = ranking.ranks(frame)
    assert found.loc["a", ["rank", "low", "high"]].tolist() == [1, 1, 1]
    assert found.loc["b", ["rank", "low", "high"]].tolist() == [2, 2, 2]


def test_draws_of_domains_are_those_of_the_whole_enumeration() -> None:
    """One seed, domains a and b: x wins by 3 on a, loses by 2 on b. Of the four draws of two
    domains x wins aa, ab and ba: three quarters."""
    found = ranking.ranks(scores({"x": [[5, 0]], "y": [[2, 2]]}))
    assert found.loc["x", ["rank", "low", "high"]].tolist() == [1, 1, 2]
    outcomes = [(3 * draw.count(0) - 2 * draw.count(1)) > 0 for draw in product((0, 1), repeat=2)]
    assert sum(outcomes) == 3


def test_seeds_are_drawn_too() -> None:
    found = ranking.ranks(scores({"x": [[9, 9], [0, 0]], "y": [[3, 3], [3, 3]]}))
    assert found.loc["x", ["rank", "low", "high"]].tolist() == [1, 1, 2]


def test_missing_seed_is_one_line() -> None:
    frame = scores({"a": [[1, 2], [3, 4]], "b": [[1, 2]]})
    with pytest.raises(FedReproError, match="b lack a seed") as caught:
        ranking.ranks(frame)
    assert "\n" not in str(caught.value)


def test_printed_order_is_the_papers_own() -> None:
    printed = ranking.printed(papers.load("fedapc"), "table-1-office10")
    assert printed["FedAPC"] == 66.39 and set(printed) == {"FedAvg", "MOON", "FedProto", "FedAPC"}


def test_agreement_by_hand() -> None:
    """FedAPC's Office: FedAPC 66.39 > FedProto 64.41 > ... ; ours reversed gives tau -1."""
    common = papers.load("common").experiment("methods")
    known = {name: papers.load(name) for name in papers.list()}
    theirs = ranking.printed(known["fedapc"], "table-1-office10")
    same = ranking.agreement(common, "office10", theirs, known).set_index("paper")
    assert same.loc["FedAPC", "tau"] == pytest.approx(1) and same.loc["FedAPC", "methods"] == 4
    turned = {method: -value for method, value in theirs.items()}
    other = ranking.agreement(common, "office10", turned, known).set_index("paper")
    assert other.loc["FedAPC", "tau"] == pytest.approx(-1)
    assert other.loc["FedAPC", "best there"] == "FedAPC" != other.loc["FedAPC", "best here"]
    # Orders of four with one neighbouring pair exchanged: 5 pairs agree, 1 does not.
    ranked = sorted(theirs, key=theirs.__getitem__)
    ranked[0], ranked[1] = ranked[1], ranked[0]
    near = ranking.agreement(common, "office10", {m: i for i, m in enumerate(ranked)}, known)
    assert near.set_index("paper").loc["FedAPC", "tau"] == pytest.approx(4 / 6)


def test_every_compared_table_is_printed() -> None:
    known = {name: papers.load(name) for name in papers.list()}
    for experiment in map(papers.load("common").experiment, ("methods", "frozen")):
        labels = {arm.method for arm in papers.load("common").arm_specs(experiment.id)}
        assert experiment.compared
        for tables in experiment.compared.values():
            for name, table, column in tables:
                shared = labels & set(ranking.printed(known[name], table, column))
                assert len(shared) >= 4, (name, table)
