"""A paper's experiments on one data set, at one scale, for one seed: from runs to numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro import methods, papers
from fedrepro.base.errors import Diverged, FedReproError
from fedrepro.base.files import RUNS
from fedrepro.base.progress import Progress, Tracker
from fedrepro.data.federation import Federation
from fedrepro.federated import metrics
from fedrepro.papers import Arm, Question
from fedrepro.quantities.base import Asked, Figure, Result, cells, get
from fedrepro.records import Probe, Record, RunSpec, Store, federation_of

__all__ = ["Result", "Study", "study"]


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
                self.progress.row(_key(arm))

    def announce(self, experiments: Sequence[str]) -> None:
        """Send the rows to come to the progress display, without those sent already."""
        rounds = {}
        for arm in (arm for name in experiments for arm in self.arms(name)):
            tried = [run for *_, run in (*arm.trials(), *arm.constants(""))]
            rounds[_key(arm)] = sum(run.protocol.rounds for run in [arm, *tried])
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
        """What trains an arm."""
        seed = self.seed if arm.seed is None else arm.seed
        return RunSpec(methods.create(arm.method, **arm.fields), arm.protocol, seed, self.engine)

    def trained(self, arm: Arm, probe: Probe | None = None) -> Record:
        """The record of an arm's run."""
        if self.progress is not None:
            self.progress.name = arm.label
        where: dict[str, Any] = {"device": self.device, "data_root": self.data_root}
        where |= {"progress": self.progress, "track": self.track}
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
        changed = ", ".join(f"{key}={value}" for key, value in fields.items())
        label = method + f" ({changed})" * bool(changed)
        base = self.paper.dataset(self.dataset).protocol
        own = {k: s.value for k, s in self.paper.settings_of(method, base).items()}
        arm = Arm(label, method, {**own, **fields}, self.protocol())
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

    def cells(self, experiment: str) -> list[dict[str, Any]]:
        """Our numbers of one experiment: one row per method and column, with `base.cells`' keys."""
        results, diverged = self._ended(experiment)
        common = {"dataset": self.dataset, "seed": self.seed, "scale": self.scale}
        own = list(filter(None, [self.paper.dataset(self.dataset).caveat]))
        rows = cells(self._asked(experiment, results), diverged)
        return [common | row | {"caveats": [*row["caveats"], *own]} for row in rows]


def _key(arm: Arm) -> str:
    """A key that is equal for arms of several experiments that are one row."""
    return f"{arm.method} {arm.fields} {arm.protocol}"


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
    where |= {"store": Store(runs_dir or RUNS), "data_root": Path(data_root) if data_root else None}
    return Study(papers.load(paper), dataset, scale, seed, **where)
