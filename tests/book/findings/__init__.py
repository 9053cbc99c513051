"""The checks of what the result pages say in words: a module a paper, and what they share."""

from functools import cache

import pandas as pd

from fedrepro.report import ranking, recorded, standings

CHECKS = {}


def check(page, point):
    """The function holds the point of that page which begins with these words."""

    def keep(function):
        CHECKS[page, point] = function
        return function

    return keep


@cache
def found(paper):
    """The recorded notebooks at scale reduced, of which points speak that name no other."""
    return recorded.notebooks(paper).where(scale="reduced")


@cache
def cells(paper, experiment, dataset, column="avg"):
    """Accuracy in percent (or what the table holds) by arm and seed."""
    frame = found(paper).where(dataset=dataset).cells
    frame = frame[(frame.table == experiment) & (frame.column == column)]
    return frame.pivot(index="method", columns="seed", values="value")


def means(*of):
    return cells(*of).mean(axis=1)


@cache
def by_rule(paper, experiment, dataset, rule):
    """Mean accuracy by arm and seed under a score rule."""
    rows = [
        {"method": label, "seed": run["seed"], "value": run["scores"][rule]["avg"]}
        for run in found(paper).where(dataset=dataset).runs
        for used, label in run["used"]
        if used == experiment
    ]
    return pd.DataFrame(rows).pivot(index="method", columns="seed", values="value")


@cache
def order(dataset, experiment="methods"):
    """The methods of the common protocol, best first."""
    return ranking.ranks(standings.scores(found("common"), experiment, dataset))


def first(series, count=1):
    return set(series.sort_values(ascending=False).index[:count])
