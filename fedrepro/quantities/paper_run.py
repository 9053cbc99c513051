"""A paper's experiments on one data set, at one scale, for one seed: runs in, cells and curves out.

What the command line prints and what the notebooks glue is computed here, once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro import methods, papers
from fedrepro.base.errors import Diverged, FedReproError
from fedrepro.base.progress import Progress
from fedrepro.base.protocol import Protocol
from fedrepro.data.federation import Federation
from fedrepro.extras.mutual_information import leakage
from fedrepro.federated import metrics
from fedrepro.papers import UNTRAINED, Arm, Paper
from fedrepro.quantities import figure_arrays
from fedrepro.quantities.cells import cells, without_numbers
from fedrepro.quantities.counted import facts
from fedrepro.quantities.figure_arrays import Figure
from fedrepro.records import Probe, Record, RunSpec, Store, federation_of
from fedrepro.report.verdicts import build_table

DEFAULT_RUNS = Path("runs")
PROBES = {"leakage": Probe("leakage", leakage)}  # by kind of experiment


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
        """By round: test accuracy a domain, `avg`, and `bytes`, one client's traffic so far."""
        table = metrics.accuracies(self.record.curve)
        sent = metrics.traffic(self.record.curve).sum(axis=1).cumsum() / self.clients
        table["bytes"] = sent.reindex(table.index).fillna(0.0)
        return table

    def summary(self) -> dict[str, Any]:
        """The run in plain values, as a notebook glues it."""
        record, curve = self.record, self.record.curve
        rules = [
            rule
            for rule in metrics.SCORE_RULES
            if rule != "validation" or (curve.split == "validation").any()
        ]
        return {
            "run_id": record.run_id,
            "label": self.label,
            "method": record.config["method"],
            "scale": record.config["protocol"]["scale"],
            "seed": record.config["seed"],
            "engine": record.config["engine"],
            "rounds": int(curve["round"].max()),
            "scores": {rule: metrics.scores(curve, rule) for rule in rules},
            "seconds": {str(k): float(v) for k, v in metrics.seconds(curve).items()},
            "bytes": {str(k): float(v) for k, v in metrics.traffic(curve).sum().items()},
            "clients": self.clients,
            "standins": record.data["standins"],
            "deviations": record.data["deviations"],
            "hashes": record.data["hashes"],
            "environment": record.environment,
            "curve": self.curve().reset_index().to_dict(orient="list"),
            **({"tries": dict(self.tries)} if self.tries else {}),
        }


@dataclass
class Study:
    """A paper on one data set at one scale for one seed.

    only: labels or methods of the arms to run (all where None). changes: settings of the protocol
    to replace, dotted keys as `Protocol.changed` takes them; not at scale paper, which is the
    paper's own.
    """

    paper: Paper
    dataset: str
    scale: str = "smoke"
    seed: int = 0
    only: Sequence[str] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    engine: str = "auto"
    data_root: Path | None = None
    store: Store = field(default_factory=lambda: Store(DEFAULT_RUNS))
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.changes and self.scale == "paper":
            raise FedReproError(
                "scale paper is the paper's own protocol; change settings at reduced"
            )
        self.protocol()
        if self.seed < 0:
            raise FedReproError(f"seed {self.seed}: give 0 or a positive whole number")
        known = set(methods.names()) | {
            spec.label for e in self.paper.experiments for spec in self.paper.arm_specs(e.id)
        }
        for label in self.only or ():
            if label not in known:
                raise FedReproError(
                    f"no method or row {label!r} in {self.paper.short}; "
                    f"choose from {', '.join(sorted(known, key=str.lower))}"
                )

    def runnable(self) -> list[str]:
        """Ids of the experiments that run on this data set at this scale without being named."""
        return [
            e.id
            for e in self.paper.experiments
            if e.state == "runs"
            and self.scale not in e.named_only
            and self.dataset in self.paper.datasets_for(e.id)
        ]

    def chosen(self, experiment: str) -> list[str]:
        """Ids behind an experiment's name; `all` stands for everything that can run here."""
        return self.runnable() if experiment == "all" else [self.paper.experiment(experiment).id]

    def arms(self, experiment: str) -> list[Arm]:
        """The arms to run: the experiment's, without those left out by `only`."""
        arms = self.paper.arms(experiment, self.dataset, self.scale)
        return [
            replace(arm, protocol=arm.protocol.changed(**self.changes))
            for arm in arms
            if self.only is None or arm.label in self.only or arm.method in self.only
        ]

    def has_work(self, experiment: str) -> bool:
        """Whether `only` leaves anything of an experiment."""
        return bool(self.arms(experiment)) or self.paper.experiment(experiment).kind in UNTRAINED

    def results(self, experiment: str) -> list[Result]:
        """The finished runs of an experiment, trained where the store lacks them, but for the arms
        whose training `diverged`.

        Raises:
            Diverged: that of every arm did.
        """
        return self._ended(experiment)[0]

    def diverged(self, experiment: str) -> dict[str, Diverged]:
        """What ended the arms that are not among the results, by label."""
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
        """The finished run of one of an experiment's arms, trained where the store lacks it.

        Raises:
            Diverged: its training did.
        """
        probe = PROBES.get(self.paper.experiment(experiment).kind)
        tuned, trials = self._tuned(experiment, arm)
        return Result(tuned, self._record(tuned, probe), trials)

    def _tuned(self, experiment: str, arm: Arm) -> tuple[Arm, dict[str, Record]]:
        """An arm with its tuned setting, and the run of each value; as it is without one.

        A value under which training diverges is not among them, unless all do: then Diverged.
        """
        tuning = self.paper.tuning_of(experiment, self.dataset, arm)
        if tuning is None:
            return arm, {}
        tried, trials = {}, {}
        short = {"rounds": tuning.rounds} if tuning.rounds else {}
        diverged: Diverged | None = None
        for value in tuning.values[arm.protocol.scale]:
            trial = arm.trial(tuning.setting, value)
            try:
                run = replace(trial, protocol=trial.protocol.changed(**short))
                record = self._record(run, seed=tuning.seed)
            except Diverged as error:
                diverged = error
                continue
            tried[str(value)], trials[str(value)] = trial, record
        if diverged is not None and not trials:
            raise diverged
        return tried[metrics.best_value(Result(arm, record, trials).tries)], trials

    def _record(self, arm: Arm, probe: Probe | None = None, seed: int | None = None) -> Record:
        method = methods.create(arm.method, **arm.fields)
        spec = RunSpec(method, arm.protocol, self.seed if seed is None else seed, self.engine)
        return self.store.obtain(
            spec,
            device=self.device,
            data_root=self.data_root,
            progress=self.progress,
            probe=probe,
        )

    def curves(self, experiment: str) -> pd.DataFrame:
        """Tidy curves of an experiment: label, seed, dataset, round, avg, bytes and domains."""
        return self.curves_of(self.results(experiment))

    def curves_of(self, results: Sequence[Result]) -> pd.DataFrame:
        """The same of some runs."""
        frames = [
            r.curve().reset_index().assign(label=r.label, seed=self.seed, dataset=self.dataset)
            for r in results
        ]
        return pd.concat(frames, ignore_index=True)

    def trial(self, method: str, **fields: Any) -> Result:
        """A run of any method, one of your own say, under this study's protocol."""
        changed = ", ".join(f"{key}={value}" for key, value in fields.items())
        label = f"{method} ({changed})" if changed else method
        arm = Arm(label, method, fields, self.protocol())
        return Result(arm, self._record(arm))

    def federation(self) -> Federation:
        """The clients and test sets that all experiments on this data set share: of images where an
        encoder's weights are missing, as what is counted needs none."""
        data = self.protocol().data
        try:
            return federation_of(data, self.data_root)
        except FedReproError:
            if data.encoder is None:
                raise
            plain = data.model_copy(update={"encoder": None})
            return federation_of(plain, self.data_root)

    def protocol(self) -> Protocol:
        """The protocol behind the arms, before an arm's own changes."""
        return self.paper.protocol(self.dataset, self.scale).changed(**self.changes)

    def _protocol_of(self, experiment: str) -> Protocol:
        protocol = self.paper.protocol_of(experiment, self.dataset, self.scale)
        return protocol.changed(**self.changes)

    def figure(self, experiment: str) -> Figure:
        """The arrays a figure is drawn from for which nothing is trained, kept beside the runs."""
        spec, protocol = self.paper.experiment(experiment), self._protocol_of(experiment)
        return figure_arrays.obtain(spec, protocol, self.seed, self.store.root, self.data_root)

    def beside(self, experiment: str) -> pd.DataFrame:
        """The printed table beside this seed's numbers (`verdicts.build_table`)."""
        table = self.paper.experiment(experiment).table or experiment
        rows = [{**row, "table": table} for row in self.cells(experiment)]
        return build_table(self.paper, table, rows)

    def cells(self, experiment: str) -> list[dict[str, Any]]:
        """Our numbers of one experiment, a row a (method, column), as `verdicts.build_table` reads
        them; `alternative` marks second readings, which have no printed row."""
        spec = self.paper.experiment(experiment)
        if spec.kind in UNTRAINED:
            protocol = self._protocol_of(experiment)
            rows = facts(self.paper, spec, protocol, self.seed, self.store.root, self.data_root)
        else:
            results, diverged = self._ended(experiment)
            rows = cells(self.paper, spec, results)
            rows += without_numbers(spec, rows, diverged)
        common = {"dataset": self.dataset, "seed": self.seed, "scale": self.scale}
        own = [mark] if (mark := self.paper.datasets[self.dataset].mark) else []
        return [{**common, **row, "marks": [*row.get("marks", ()), *own]} for row in rows]


def study(paper: str, dataset: str, scale: str = "smoke", seed: int = 0, **where: Any) -> Study:
    """A `Study` from plain values: paper by name, `runs_dir` and `data_root` as text or paths."""
    runs = where.pop("runs_dir", None) or DEFAULT_RUNS
    root = where.pop("data_root", None)
    return Study(
        papers.load(paper),
        dataset,
        scale,
        seed,
        store=Store(runs),
        data_root=Path(root) if root else None,
        **where,
    )
