"""The printed quantities by the `kind` that experiments name. Adding one takes one file: a function
with the decorator `quantity`, in this folder or in `extras`, is found by itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pandas as pd

from fedrepro.base.errors import Diverged, FedReproError, choices
from fedrepro.base.places import RUNS, modules_of
from fedrepro.base.protocol import Protocol
from fedrepro.data.federation import Federation
from fedrepro.federated import metrics
from fedrepro.papers import Arm, Experiment, Paper, Table
from fedrepro.quantities.noise import Noise, tested_images
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
    scale: str = "reduced"
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

    def scores(self, result: Result) -> dict[str, float]:
        """Accuracy in percent by domain and `avg` under the paper's score rule."""
        return metrics.scores(result.record.curve, self.paper.rule)


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
    """values: its numbers. counted: no draw can move them. given: they are the protocol's own
    input. per_arm: every row is one arm's. probe: what is measured at the end of a training.
    figure: the arrays a figure is drawn from. whole: of accuracies, the number for all images right
    (100 or 1); 0 of other numbers."""

    values: Callable[[Asked], Values]
    counted: bool = False
    given: bool = False
    per_arm: bool = True
    probe: Probe | None = None
    figure: Callable[[Asked], Figure] | None = None
    whole: float = 0.0


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


def get(kind: str) -> Quantity:
    """The quantity of a kind; FedReproError naming the choices where there is none."""
    if kind not in _registry:
        modules_of(*ROOMS)
    if kind not in _registry:
        raise FedReproError(f"no quantity {kind!r}; choose from {choices(kind, sorted(_registry))}")
    return _registry[kind]


Row = dict[str, Any]


def cells(asked: Asked, diverged: Sequence[tuple[Arm, Diverged]] = ()) -> list[Row]:
    """Rows with keys table, method, column, value, standin, caveats, alternative, alone (nothing
    travelled, so that no other's stand-in can touch it), counted and given (`Quantity`), subset;
    of accuracies at scale paper also one_image, what one test image moves it by, and images, its
    variance over draws of test images.

    An arm whose training diverged has no value, and why, in each column the others have; printed
    rows that are not one arm each (a ratio of two, say) get none.
    """
    kind = get(asked.experiment.kind)
    plain = {"standin": False, "caveats": [], "alternative": False, "subset": False}
    plain |= {"counted": kind.counted, "given": kind.given}
    noise = Noise(asked.paper.rule)
    by_label = {result.label: result for result in asked.results}
    silent = {r.label for r in asked.results if not (r.record.curve.measure == "bytes").any()}
    rows: list[Row] = []
    for method, column, value, *more in kind.values(asked):
        place = {"table": asked.experiment.id, "method": method, "column": column, "value": value}
        result = by_label.get(method)
        known = _of_run(result or asked.results[0], column) if asked.results else {}
        alone = not asked.results or method in silent
        known["alternative"] = bool(result and result.arm.alternative)
        if asked.scale == "paper" and kind.whole and result is not None:
            known |= _of_images(result, column, kind.whole, noise)
        rows.append({**place, **plain, "alone": alone, **known, **(more[0] if more else {})})
    columns = list(dict.fromkeys(row["column"] for row in rows))
    for arm, end in diverged if kind.per_arm else ():
        for column in [arm.column] if arm.column else columns:
            place = {"table": asked.experiment.id, "method": arm.row or arm.label, "column": column}
            standin = any(row["standin"] for row in rows if row["column"] == column)
            caveats = [f"seed {end.seed} diverged in round {end.round}"]
            known = {"standin": standin, "caveats": caveats, "alternative": arm.alternative}
            rows.append({**place, **plain, "value": None, "alone": False, **known})
    return rows


def _of_images(result: Result, column: str, whole: float, noise: Noise) -> Row:
    """What the test images add to an accuracy's error: nothing where all test the same ones."""
    images, record = tested_images(result.record), result.record
    domains = [column] if column in images else list(images)
    share = whole / min(images[domain] for domain in domains) / len(domains)
    drawn = 0.0 if record.protocol.data.same_tests else noise.variance([[record]], column)
    return {"one_image": share, "images": whole**2 * drawn}


def _of_run(result: Result, column: str) -> Row:
    """Whether the column is a stand-in's or a subset's, and the deviations behind it."""
    data = result.record.data
    domains = [column] if column in data["domains"] else data["domains"]
    caveats = [clause for domain in domains for clause in data["deviations"].get(domain, [])]
    standin = any(domain in data["standins"] for domain in domains)
    cut = any(domain in data["subsets"] for domain in domains)
    return {"standin": standin, "subset": cut, "caveats": list(dict.fromkeys(caveats))}


def wide(rows: Sequence[Row]) -> pd.DataFrame:
    """Our numbers as a table: one row per method, one column per column."""
    frame = pd.DataFrame(rows)
    methods, columns = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.column))
    table = frame.pivot_table(
        index="method", columns="column", values="value", aggfunc="mean", dropna=False
    )
    return table.reindex(index=methods, columns=columns).rename_axis(index=None, columns=None)
