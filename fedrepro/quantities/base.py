"""The printed quantities by the `kind` that experiments name. Adding one takes one file: a function
with the decorator `quantity`, in this folder or in `extras`, is found by itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pandas as pd

from fedrepro.base.errors import FedReproError
from fedrepro.base.places import RUNS
from fedrepro.base.protocol import Protocol
from fedrepro.data.federation import Federation
from fedrepro.federated import metrics
from fedrepro.papers import Arm, Experiment, Paper, Table
from fedrepro.records import Probe, Record, federation_of

ROOMS = ("fedrepro.quantities", "fedrepro.extras")  # packages whose modules may hold quantities


@dataclass(frozen=True)
class Result:
    """One arm's finished run. trials: where a setting was tuned, the runs of its values in
    words."""

    arm: Arm
    record: Record
    trials: Mapping[str, Record] = field(default_factory=dict)

    @property
    def tries(self) -> dict[str, float]:
        """Mean validation accuracy in percent of each value of a tuned setting."""
        return {value: metrics.validated(run.curve) for value, run in self.trials.items()}

    @property
    def label(self) -> str:
        return self.arm.label

    @property
    def clients(self) -> int:
        return len(self.record.data["clients"])

    def curve(self) -> pd.DataFrame:
        """By round: test accuracy per domain, `avg`, and `bytes`, one client's traffic so far."""
        table = metrics.accuracies(self.record.curve)
        sent = metrics.traffic(self.record.curve).sum(axis=1).cumsum() / self.clients
        table["bytes"] = sent.reindex(table.index).fillna(0.0)
        return table


@dataclass(frozen=True)
class Asked:
    """What a quantity is computed from: an experiment of a paper under a protocol, and its finished
    runs (none where nothing is trained). runs: the folder in which figures keep their arrays."""

    paper: Paper
    experiment: Experiment
    protocol: Protocol
    results: Sequence[Result] = ()
    seed: int = 0
    runs: Path = RUNS
    root: Path | None = None

    @property
    def dataset(self) -> str:
        """Our data set: the embedded one at scale smoke."""
        return self.protocol.data.dataset

    @property
    def federation(self) -> Federation:
        return federation_of(self.protocol.data, self.root)

    @property
    def table(self) -> Table:
        """The printed table."""
        return self.paper.table(self.experiment.table or self.experiment.id)

    @property
    def column(self) -> str | None:
        """The printed column of the data set, None where there is none."""
        return self.paper.column(self.table.id, self.dataset)

    def unit(self, name: str) -> float:
        """The paper's own ``gigabyte`` or ``megabyte`` in bytes."""
        return float(self.paper.reporting[f"{name}_bytes"].value)

    def digits(self, row: str, column: str) -> int:
        """Decimals of a printed number, 1 where there is none."""
        cell = self.table.cell(row, column)
        return len(cell.printed.partition(".")[2]) if cell is not None else 1

    @property
    def rule(self) -> str:
        """The paper's score rule."""
        return str(self.paper.reporting["score_rule"].value)

    def scores(self, result: Result) -> dict[str, float]:
        """Accuracy in percent by domain and `avg` under the paper's score rule."""
        return metrics.scores(result.record.curve, self.rule)


@dataclass(frozen=True)
class Figure:
    """Arrays behind a figure for which nothing is trained, and what they are of: names, settings,
    environment."""

    arrays: dict[str, npt.NDArray[Any]]
    facts: dict[str, Any]


# Row, column and value of each number; a value is None where the target was not reached, or there
# is none. A fourth item holds what else `cells` shall say of it.
Values = Iterator[tuple[str, str, float | None] | tuple[str, str, float | None, dict[str, Any]]]


@dataclass(frozen=True)
class Quantity:
    """values: its numbers. counted: no draw can move them. per_arm: every row is one arm's. probe:
    what is measured at the end of a training. figure: the arrays a figure is drawn from."""

    values: Callable[[Asked], Values]
    counted: bool = False
    per_arm: bool = True
    probe: Probe | None = None
    figure: Callable[[Asked], Figure] | None = None


_registry: dict[str, Quantity] = {}


def quantity(
    *kinds: str, **traits: Any
) -> Callable[[Callable[[Asked], Values]], Callable[[Asked], Values]]:
    """Decorator: make a function of `Asked` known by the kinds of experiments it has the numbers
    of. traits: as `Quantity` takes them."""

    def register(values: Callable[[Asked], Values]) -> Callable[[Asked], Values]:
        _registry.update(dict.fromkeys(kinds, Quantity(values, **traits)))
        return values

    return register


@cache
def _discover() -> None:
    for room in ROOMS:
        for module in pkgutil.iter_modules(importlib.import_module(room).__path__):
            importlib.import_module(f"{room}.{module.name}")


def get(kind: str) -> Quantity:
    """The quantity of a kind; FedReproError naming the choices where there is none."""
    _discover()
    if kind not in _registry:
        raise FedReproError(f"no quantity {kind!r}; choose from {', '.join(sorted(_registry))}")
    return _registry[kind]
