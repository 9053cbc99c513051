"""The printed quantities by the `kind` of experiments, and a paper's runs that they are made from.
To add a quantity, write a function with the decorator `quantity` in a file of this folder or of
`extras`; it is found automatically."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pandas as pd

from fedrepro import methods, papers
from fedrepro.base.errors import Diverged, FedReproError, need, one_of
from fedrepro.base.files import RUNS, modules_of
from fedrepro.base.progress import Progress, Tracker
from fedrepro.base.protocol import Protocol
from fedrepro.data.federation import Federation
from fedrepro.federated import metrics
from fedrepro.papers import Arm, Experiment, Paper, Question, Table
from fedrepro.records import Probe, Record, RunSpec, Store, federation_of

ROOMS = ("fedrepro.quantities", "fedrepro.extras")  # packages whose modules may hold quantities


@dataclass(frozen=True)
class Result:
    """One arm's finished run. trials: the runs of a tuned setting's values. past: its settings are
    not those that the paper's file asks for today."""

    arm: Arm
    record: Record
    trials: Mapping[str, Record] = field(default_factory=dict)
    past: bool = False

    @property
    def tries(self) -> dict[str, float]:
        """Mean validation accuracy in percent of each value of a tuned setting."""
        return {value: metrics.validated(run.curve) for value, run in self.trials.items()}

    @property
    def label(self) -> str:
        return self.arm.label

    def curve(self) -> pd.DataFrame:
        """By round: test accuracy per domain, `avg`, and `bytes`, one client's traffic so far."""
        table = metrics.accuracies(self.record.curve)
        sent = metrics.traffic(self.record.curve).sum(axis=1).cumsum()
        sent /= len(self.record.data["clients"])
        table["bytes"] = sent.reindex(table.index, method="ffill").fillna(0.0)
        return table


@dataclass(frozen=True)
class Asked:
    """An experiment under a protocol, and its finished runs. runs: the folder for arrays."""

    paper: Paper
    experiment: Experiment
    protocol: Protocol
    results: Sequence[Result] = ()
    seed: int = 0
    runs: Path = RUNS
    root: Path | None = None
    diverged: Sequence[tuple[Arm, Diverged]] = ()

    @property
    def dataset(self) -> str:
        """Our data set: the embedded one at scale smoke."""
        return self.protocol.data.dataset

    @property
    def federation(self) -> Federation:
        return federation_of(self.protocol.data, self.root)

    @property
    def table(self) -> Table:
        return self.paper.table(self.experiment.table or self.experiment.id)

    @property
    def column(self) -> str:
        """The printed column of the data set; its own name if none is printed."""
        return self.paper.column(self.table.id, self.dataset)

    def unit(self, name: str) -> float:
        """The bytes of the paper's own ``gigabyte`` or ``megabyte``."""
        return float(self.paper.reporting[f"{name}_bytes"].value)

    def digits(self, row: str, column: str) -> int:
        """Decimals of a printed number, 1 if there is none."""
        cell = self.table.cell(row, column)
        return len(cell.printed.partition(".")[2]) if cell is not None else 1

    def scores(self, result: Result) -> dict[str, float]:
        """Accuracy in percent by domain and `avg` under the paper's score rule."""
        return metrics.scores(result.record.curve, self.paper.rule)


@dataclass(frozen=True)
class Figure:
    """Arrays of a figure for which nothing is trained; their names, settings and environment."""

    arrays: dict[str, npt.NDArray[Any]]
    facts: dict[str, Any]


# Row, column and value of each number, None if there is none; a fourth item has keys for `cells`.
Values = Iterator[tuple[str, str, float | None] | tuple[str, str, float | None, dict[str, Any]]]
Computes = Callable[[Asked], Values]


@dataclass(frozen=True)
class Quantity:
    """A printed quantity. values: computes its numbers. counted: they do not depend on chance.
    given: they are input of the protocol. per_arm: no row mixes arms in one column. of_one_set:
    each row is of one data set. probe: measures at the end of a training. figure: computes its
    arrays. whole: an accuracy if all images are right (100 or 1); 0 for other numbers."""

    values: Computes
    counted: bool = False
    given: bool = False
    per_arm: bool = True
    of_one_set: bool = False
    probe: Probe | None = None
    figure: Callable[[Asked], Figure] | None = None
    whole: float = 0.0


_registry: dict[str, Quantity] = {}


def quantity(*kinds: str, **traits: Any) -> Callable[[Computes], Computes]:
    """Decorator of a function that computes kinds of experiments. traits: as in `Quantity`."""

    def register(values: Computes) -> Computes:
        _registry.update(dict.fromkeys(kinds, Quantity(values, **traits)))
        return values

    return register


def get(kind: str) -> Quantity:
    """The quantity of a kind. FedReproError, with the choices, if there is none."""
    if kind not in _registry:
        modules_of(*ROOMS)
    return _registry[one_of(kind, sorted(_registry), "quantity")]


Row = dict[str, Any]


def cells(asked: Asked) -> list[Row]:
    """Rows with keys table, method, column, value, standin, caveats, alternative, alone (nothing
    travelled, so no other's stand-in touches it), counted, given (`Quantity`), subset, past; of
    accuracies at scale paper one_image, what one test image moves it by, and parts: each run it
    follows from, after what its accuracy (0 to 1) counts, in column `of` if not the printed one. A
    diverged arm has no value but a reason in each column that its row lacks."""
    kind = get(asked.experiment.kind)
    plain: Row = {"table": asked.experiment.id, "counted": kind.counted, "given": kind.given}
    plain |= dict.fromkeys(("standin", "alternative", "subset", "past", "alone"), False)
    plain["caveats"] = []
    silent = {r.label for r in asked.results if not (r.record.curve.measure == "bytes").any()}
    rows: list[Row] = []
    for method, column, value, *more in kind.values(asked):
        row = {**plain, "method": method, "column": column, "value": value}
        own = runs_of(asked.results, method, column)
        if used := own or asked.results:
            row |= _of_run(used[0], column)
        row["past"] = any(one.past for one in used)
        row["alone"] = not used or method in silent
        row["alternative"] = bool(own) and own[0].arm.alternative
        if len(own) == 1 and kind.whole:
            row["parts"] = [(kind.whole, own[0].record)]
        row.update(*more)
        if asked.protocol.scale != "paper":
            row.pop("parts", None)
        elif "parts" in row:
            whole, run = row["parts"][0]
            row["one_image"] = whole * _one_image(run, row.get("of", column))
        rows.append(row)
    columns = list(dict.fromkeys(row["column"] for row in rows))
    had = {(row["method"], row["column"]) for row in rows}  # of arms that share a row
    for arm, end in asked.diverged if kind.per_arm else ():
        known: Row = {"method": arm.row or arm.label, "alternative": arm.alternative}
        known |= {"value": None, "caveats": [f"seed {end.seed} diverged in round {end.round}"]}
        every = [arm.column] if arm.column else columns
        for column in (one for one in every if (known["method"], one) not in had):
            standin = any(row["standin"] for row in rows if row["column"] == column)
            rows.append({**plain, **known, "column": column, "standin": standin})
    return rows


def runs_of(results: Sequence[Result], method: str, column: str) -> list[Result]:
    """The runs that a row's number in a column is of; none of a row that is not of arms, such as a
    ratio."""
    own = [one for one in results if method in (one.label, one.arm.row)]
    return [one for one in own if one.arm.column in (None, column)]


def tested_images(record: Record) -> dict[str, int]:
    """Number of test images by domain."""
    found: Counter[str] = Counter()
    for row in (one for one in record.data["counts"] if one["split"] == "test"):
        found[row["domain"]] += row["images"]
    return dict(found)


def domain_weights(record: Record) -> dict[str, int]:
    """Weights of the domains' accuracies in a mean: their test images, unmixed if tests mix."""
    return record.data.get("weights") or tested_images(record)


def _one_image(record: Record, column: str) -> float:
    """The most that one test image moves an accuracy by, from 0 to 1."""
    images = tested_images(record)
    domains = [column] if column in images else list(images)
    return 1 / min(images[domain] for domain in domains) / len(domains)


def _of_run(result: Result, column: str) -> Row:
    """Whether the column is from a stand-in or a subset, and its deviations."""
    data = result.record.data
    domains = [column] if column in data["domains"] else data["domains"]
    said = {one: data["deviations"].get(one, []) for one in data["domains"]}
    start = {d: rf"^({re.escape(d)}|{re.escape(d.rstrip('-0123456789'))}): " for d in said}
    plain = {one: [re.sub(start[one], "", c) for c in said[one]] for one in said}
    every = set.intersection(*map(set, plain.values()))  # what holds of all domains is said once
    pairs = (pair for one in domains for pair in zip(plain[one], said[one], strict=True))
    caveats = [short if short in every else clause for short, clause in pairs]
    standin, cut = (any(one in data[key] for one in domains) for key in ("standins", "subsets"))
    return {"standin": standin, "subset": cut, "caveats": list(dict.fromkeys(caveats))}


def wide(rows: Sequence[Row]) -> pd.DataFrame:
    """Our numbers as a table: one row per method, one column per column."""
    frame = pd.DataFrame(rows)
    table = frame.pivot_table("value", "method", "column", aggfunc="mean", dropna=False)
    table = table.reindex(index=frame.method.unique(), columns=frame.column.unique())
    return table.rename_axis(index=None, columns=None)


# A paper's experiments on one data set, at one scale, for one seed: from runs to numbers.


@dataclass
class Study(Question):
    """A question to a paper and its answer: runs from a store, trained where it lacks them."""

    data_root: Path | None = None
    store: Store = field(default_factory=lambda: Store(RUNS))
    progress: Progress | None = None
    track: str | type[Tracker] = ""

    def results(self, experiment: str) -> list[Result]:
        """The finished runs of an experiment, trained if they are not in the store, except arms
        whose training `diverged`. Diverged: every arm's training diverged."""
        return self._ended(experiment)[0]

    def diverged(self, experiment: str) -> dict[str, Diverged]:
        """The errors of the arms without results, by label."""
        return {arm.label: end for arm, end in self._ended(experiment)[1]}

    def _ended(self, experiment: str) -> tuple[list[Result], list[tuple[Arm, Diverged]]]:
        results, diverged = [], []
        for arm in self.arms(experiment):
            try:
                results.append(self.result(experiment, arm))
            except Diverged as end:
                diverged.append((arm, end))
        if diverged and not results:
            raise diverged[0][1]
        return results, diverged

    def result(self, experiment: str, arm: Arm) -> Result:
        """The finished run of an experiment's arm, trained if it is not in the store. Diverged."""
        probe = get(self.paper.experiment(experiment).kind).probe
        try:
            tuned, trials = self._tuned(arm)
            return Result(tuned, self.trained(tuned, probe), trials)
        finally:
            if self.progress is not None:
                self.progress.row(arm.what)

    def announce(self, experiments: Sequence[str]) -> None:
        """Send the rows to come to the progress display, without those sent already. FedReproError:
        a row's fields do not fit, its clients lack embeddings, or it needs other tests."""
        rounds = {}
        home = any(self.paper.experiment(name).kind == "in-out" for name in experiments)
        home = home and self.protocol().tested_on == "home"
        need(not home, "out of domain needs tests on all domains; leave tested_on as it is")
        for arm in (arm for name in experiments for arm in self.arms(name)):
            fits = not self.spec(arm).method.needs_embeddings or arm.protocol.data.encoder
            need(fits, f"{arm.label} works on embeddings; leave it out, or see `common frozen`")
            tried = [run for *_, run in (*arm.trials(), *arm.constants(""))]
            rounds[arm.what] = sum(run.protocol.rounds for run in [arm, *tried])
        if self.progress is not None:
            self.progress.plan(rounds)

    def _tuned(self, arm: Arm) -> tuple[Arm, dict[str, Record]]:
        """An arm with its tuned setting, if it has one, and the runs of the values, without those
        that diverge. Diverged: all values diverge."""
        if arm.tuning is None:
            return arm, {}
        tried: dict[str, tuple[Arm, Record]] = {}
        first = self._best(arm.trials(), tried)
        best = self._best(tried[first][0].constants(first), tried)
        return tried[best][0], {value: run for value, (_, run) in tried.items()}

    def _best(
        self, trials: Iterable[tuple[str, Arm, Arm]], tried: dict[str, tuple[Arm, Record]]
    ) -> str:
        """Add further trials to those tried. Returns the best value of all."""
        diverged: Diverged | None = None
        for value, chosen, run in trials:
            try:
                tried[value] = chosen, self.trained(run)
            except Diverged as error:
                diverged = error
        if diverged is not None and not tried:
            raise diverged
        return metrics.best_value({v: metrics.validated(r.curve) for v, (_, r) in tried.items()})

    def spec(self, arm: Arm) -> RunSpec:
        seed = self.seed if arm.seed is None else arm.seed
        return RunSpec(methods.create(arm.method, **arm.fields), arm.protocol, seed, self.engine)

    def trained(self, arm: Arm, probe: Probe | None = None) -> Record:
        if self.progress is not None:
            self.progress.name = arm.label
        where = {name: getattr(self, name) for name in ("device", "data_root", "progress", "track")}
        return self.store.obtain(self.spec(arm), probe=probe, **where)

    def curves_of(self, results: Sequence[Result]) -> pd.DataFrame:
        """Tidy curves of runs: label, seed, dataset, round, avg, bytes and domains."""
        frames = [
            r.curve().reset_index().assign(label=r.label, seed=self.seed, dataset=self.dataset)
            for r in results
        ]
        return pd.concat(frames, ignore_index=True)

    def trial(self, method: str, **fields: Any) -> Result:
        """A run of any method under this study's protocol. Other fields are the paper's for it."""
        method, own = papers.row_of(method)
        need(not own.keys() & fields, f"{method}: a field is given twice; leave one out")
        changed = ", ".join(f"{key}={value}" for key, value in (own | fields).items())
        label = methods.get(method).name + f" ({changed})" * bool(changed)
        given = self.paper.settings_of(method, self.paper.dataset(self.dataset).protocol)
        every = {key: setting.value for key, setting in given.items()} | own | fields
        arm = Arm(label, method, every, self.protocol())
        return Result(arm, self.trained(arm))

    def federation(self) -> Federation:
        """The clients and test sets of this data set; without an encoder's weights, its images."""
        data = self.protocol().data
        try:
            return federation_of(data, self.data_root)
        except FedReproError:
            if data.encoder is None:
                raise
            return federation_of(data.model_copy(update={"encoder": None}), self.data_root)

    def _asked(self, experiment: str, results: Sequence[Result] = ()) -> Asked:
        protocol = self.paper.protocol(self.dataset, self.scale, experiment).changed(**self.changes)
        how = protocol, results, self.seed, self.store.root, self.data_root
        return Asked(self.paper, self.paper.experiment(experiment), *how)

    def figure(self, experiment: str) -> Figure:
        """The arrays of a figure for which nothing is trained, stored with the runs."""
        figure = get(self.paper.experiment(experiment).kind).figure
        if figure is None:
            raise FedReproError(f"{experiment} has no arrays; choose a figure that trains nothing")
        return figure(self._asked(experiment))

    def cells(self, experiment: str, kind: str = "") -> list[dict[str, Any]]:
        """Our numbers of one experiment: one row per method and column, with `base.cells`' keys.
        kind: another quantity of the same runs."""
        common = {"dataset": self.dataset, "seed": self.seed, "scale": self.scale}
        results, diverged = self._ended(experiment)
        own = list(filter(None, [self.paper.dataset(self.dataset).caveat]))
        asked = self._asked(experiment, results)
        spec = asked.experiment.model_copy(update={"kind": kind or asked.experiment.kind})
        rows = cells(replace(asked, experiment=spec, diverged=diverged))
        return [common | r | {"caveats": [*r["caveats"], *own[: "dataset" not in r]]} for r in rows]


def study(
    paper: str,
    dataset: str,
    scale: str = "smoke",
    seed: int = 0,
    runs_dir: str | Path | None = None,
    data_root: str | Path | None = None,
    **where: Any,
) -> Study:
    """A `Study` from plain values: paper by name, folders as text or paths."""
    where["store"] = Store(runs_dir or RUNS)
    where["data_root"] = Path(str(data_root)) if data_root else None
    return Study(papers.load(paper), dataset, scale, seed, **where)
