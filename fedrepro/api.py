"""The library in a few calls: look at a federation, run one method on it, compare several."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedrepro.base.errors import Diverged, need
from fedrepro.base.files import RUNS
from fedrepro.base.progress import Progress, Tracker, progress as default_progress
from fedrepro.data.federation import Federation
from fedrepro.federated import metrics
from fedrepro.methods import get as registered
from fedrepro.methods.base import Method
from fedrepro.quantities.base import Result, Study, study
from fedrepro.records import Record
from fedrepro.report.picture import Picture
from fedrepro.report.text import names_in


@dataclass(frozen=True)
class Run:
    """A finished run. record: its configuration, environment and data (`fedrepro.records`)."""

    study: Study
    result: Result

    def __repr__(self) -> str:
        one, mean = self.study, self.accuracy["avg"].iloc[-1]
        where = f"{one.dataset}, scale {one.scale}, seed {one.seed}"
        return f"<{self.result.label} on {where}: avg {mean:.1f} %, run {self.record.run_id}>"

    @property
    def record(self) -> Record:
        return self.result.record

    @property
    def accuracy(self) -> pd.DataFrame:
        """Test accuracy in percent: one row per round; one column per domain, and their `avg`."""
        return self.result.curve().drop(columns="bytes")

    @property
    def curve(self) -> pd.DataFrame:
        """All measured numbers, one per row."""
        return self.record.curve

    def plot(self) -> Picture:
        """Mean accuracy over rounds."""
        from fedrepro.report import figures

        return figures.curves(self.study.curves_of([self.result]))


def federation(
    dataset: str = "minidigits",
    *,
    scale: str = "smoke",
    paper: str = "common",
    data_root: str | Path | None = None,
) -> Federation:
    """The clients and the test sets of a data set under a paper's protocol.

    dataset: a name, or `folder:PATH` for your own images, as domain/class/image.
    paper: whose protocol; `common` is this project's own. scale: smoke, reduced or paper.
    data_root: folder of the official files; default `FEDREPRO_DATA`.
    FedReproError: an unknown name, or missing files."""
    return study(paper, dataset, scale, data_root=data_root).federation()


def run(
    method: str | type[Method],
    dataset: str = "minidigits",
    *,
    scale: str = "smoke",
    seed: int = 0,
    paper: str = "common",
    changes: Mapping[str, Any] | None = None,
    device: str = "auto",
    runs: str | Path = RUNS,
    data_root: str | Path | None = None,
    track: str | type[Tracker] = "",
    progress: Progress | None = None,
    **fields: Any,
) -> Run:
    """Train a method, or read its finished run. method: its name, or a registered class;
    "FedProx (mu=0.1)" sets a field.

    changes: settings of the protocol to replace, such as {"rounds": 5}; not at scale paper.
    fields: hyper-parameters of the method; by default the paper's values for it, else its own.
    runs: folder of the runs. track: "tensorboard", or a `fedrepro.base.progress.Tracker`, which
    receives every round. progress: where rounds are shown, by default in a bar, a notebook's
    figure or lines. The rest as in `federation`.
    FedReproError: an unknown name or wrong value; a loss that is NaN or infinite."""
    where: dict[str, Any] = {"changes": changes or {}, "device": device, "track": track}
    one = study(paper, dataset, scale, seed, runs, data_root, progress=progress, **where)
    (name,) = _names([method])
    return Run(one, one.trial(name, **fields))


def _names(methods: Iterable[str | type[Method]]) -> list[str]:
    """Methods as names, also those given as classes. A name alone would train another class."""
    given: list[Any] = list(methods)
    named = [getattr(method, "name", method) for method in given]
    text = all(isinstance(name, str) for name in named)
    need(text, f"methods {named!r}: run takes one name, compare a list of names")
    for one, name in zip(given, named, strict=True):
        own = one is name or (isinstance(one, type) and issubclass(registered(name), one))
        mend = f"register the class, or write fields as '{name} (field=value)'"
        need(own, f"{one!r} is not the registered method {name}; {mend}")
    return named


def compare(
    methods: Sequence[str | type[Method]] | type[Method],
    dataset: str = "minidigits",
    *,
    seeds: Sequence[int] = (0, 1, 2),
    scale: str = "smoke",
    paper: str = "common",
    changes: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **where: Any,
) -> pd.DataFrame:
    """Accuracy in percent after the last round: one row per method, means over the seeds.
    methods: names or classes, or with fields of their own "FedProx (mu=0.1)".

    Columns: each domain, their mean `avg`, the number of `seeds`, and `low` and `high`, the 95 %
    interval of `avg` (Student's t over seeds; NaN with one seed, and with two equal ones). Seeds
    that diverge are left out, and counted in a column `diverged`. The rest as in `run`."""
    plain = not isinstance(methods, Mapping) and "seed" not in where
    own = 'fields are for all; those of one go into its name, as in "FedProx (mu=0.1)"'
    need(plain, f"compare takes names of methods, and seeds=[...]; {own}")
    methods = names_in(methods) if isinstance(methods, str) else methods
    names = _names(methods if isinstance(methods, Sequence) else [methods])
    seeds = [seeds] if isinstance(seeds, int) else seeds
    listed = isinstance(seeds, Iterable) and not isinstance(seeds, str)
    need(listed, f"seeds {seeds!r}: give numbers, as in seeds=[0, 1, 2]")
    seeds = list(dict.fromkeys(seeds))
    need(names and seeds, "compare needs at least one method and one seed")
    protocol = study(paper, dataset, scale, changes=changes or {}, only=names).protocol()
    shown, rows = progress or default_progress(own=True), {}
    shown.plan({f"{method} {seed}": protocol.rounds for method in names for seed in seeds})
    where |= {"scale": scale, "paper": paper, "changes": changes, "progress": shown}
    for method in names:
        last = []
        for seed in seeds:
            with suppress(Diverged):
                found = run(method, dataset, seed=seed, **where)
                last.append(found.accuracy.iloc[-1].rename(seed))
            shown.row(f"{method} {seed}")
        table = pd.concat(last, axis=1) if last else pd.DataFrame(index=["avg"])
        low, high = metrics.interval(table.loc["avg"])
        rows[method] = {**table.mean(axis=1), "seeds": len(last), "low": low, "high": high}
        if lost := len(seeds) - len(last):
            rows[method]["diverged"] = lost
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")
