"""Experiments with their runs, from a live study or from executed notebooks. A notebook glues the
ids of its runs, not their numbers; the numbers come from the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import nbformat
import pandas as pd

from fedrepro import methods, papers
from fedrepro.base import files
from fedrepro.base.errors import Diverged, FedReproError, one_line
from fedrepro.base.protocol import resolve_engine
from fedrepro.federated import metrics
from fedrepro.papers import Arm, Paper
from fedrepro.quantities.base import Result, Study, runs_of
from fedrepro.records import Record, Store
from fedrepro.records.record import short_hash

Asked = tuple[Study, Sequence[str]]  # and its experiments
SENTINEL = "finished"
GIVEN = ("dataset", "scale", "seed", "changes")  # of a study; changes where there are some
STUDIES = "studies.jsonl.gz"  # next to packed records: the notebooks' glued results, one line each
FOLDER = files.RECORDS
SHORT = 10  # digits of a run id in an address; enough to tell a million runs apart
OWN = ("method", "column", "value")  # of a glued row; the rest is glued once for rows in sequence
FLAT = 1.0  # points that a flat curve gains at most in the last quarter of its rounds


def glue_study(study: Study, experiments: Sequence[str]) -> None:
    """Glue a notebook's final parameters, the ids of its runs, the rows without a run, and last the
    mark that its kernel did not die."""
    import scrapbook

    trained = [name for name in experiments if study.paper.arm_specs(name)]
    ran = [(name, one.label, one) for name in trained for one in study.results(name)]
    lost = [(name, *pair) for name in trained for pair in study.diverged(name).items()]
    counted = {}
    for name in (name for name in experiments if name not in trained):
        alike = groupby(study.cells(name), lambda row: {k: row[k] for k in row if k not in OWN})
        counted[name] = [[rest, [[row[k] for k in OWN] for row in own]] for rest, own in alike]
    given = {key: getattr(study, key) for key in GIVEN if getattr(study, key) != {}}
    scraps: dict[str, Any] = {
        "study": {"paper": study.paper.name, **given, "experiments": list(experiments)},
        "runs": [[one.record.run_id, name, label] for name, label, one in ran],
        "trials": [[t.run_id, n, label, v] for n, label, one in ran for v, t in one.trials.items()],
        "diverged": [[n, label, str(end), end.seed, end.round] for n, label, end in lost],
        **{"counted": counted, SENTINEL: True},
    }
    for scrap, value in scraps.items():
        scrapbook.glue(scrap, value)


@dataclass
class Kept(Study):
    """A study of an executed notebook: like a live study, but it trains nothing.
    shown: pictures by name, PNG in base64. beside: the studies of the same folder."""

    scraps: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    shown: Mapping[str, str] = field(default_factory=dict)
    beside: Sequence[Kept] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        _keep_answers(self, "cells", "asked", "_read")

    def cells(self, experiment: str, kind: str = "") -> list[dict[str, Any]]:
        if kind or experiment not in self.scraps["counted"]:
            return super().cells(experiment, kind)
        alike = self.scraps["counted"][experiment]
        return [dict(zip(OWN, own, strict=True)) | rest for rest, rows in alike for own in rows]

    def _written(self, experiment: str) -> list[Arm]:
        """Also of methods that had a row of their own, as `only` gave it to them."""
        labels = {spec.label for spec in self.paper.arm_specs(experiment)}
        rows = [*(row[1:] for row in self.scraps["runs"]), *self.scraps["diverged"]]
        ran = dict.fromkeys(label for name, label, *_ in rows if name == experiment)
        also = [label for label in ran if label not in labels and _creatable(label)]
        return self.paper.arms(experiment, self.dataset, self.scale, also)

    def _ended(self, experiment: str) -> tuple[list[Result], list[tuple[Arm, Diverged]]]:
        """Without a row of earlier settings if a study beside has today's, or newer ones: no mean
        may mix them."""
        results, diverged = self._read(experiment)
        if not any(one.past for one in results):
            return results, diverged
        alike = attrgetter("paper.name", "dataset", "scale", "changes")
        every = [other._read(experiment) for other in self.beside if alike(other) == alike(self)]
        today = {one.label for ran, _ in every for one in ran if not one.past}
        for ran, lost in every:
            if not all(one.past for one in ran):  # so what diverged there had today's, too
                today |= {arm.label for arm, _ in lost}
        runs = (one for ran, _ in [(results, []), *every] for one in ran)
        dated = sorted(runs, key=lambda one: str(one.record.environment["date"]))
        newest = {one.label: one.record.config["protocol"] for one in dated}

        def stays(one: Result) -> bool:
            last = one.record.config["protocol"] == newest[one.label]
            return not one.past or (last and one.label not in today)

        return list(filter(stays, results)), diverged

    def _read(self, experiment: str) -> tuple[list[Result], list[tuple[Arm, Diverged]]]:
        arms = {arm.label: arm for arm in self.arms(experiment)}
        results = []
        for run, name, label in self.scraps["runs"]:
            if name != experiment:
                continue
            record = self._record_of(run)
            if (arm := arms.get(label)) is None:  # no longer in the paper's file
                own = record.config["method"]
                arm = Arm(label, own["name"], own["fields"], self.protocol(), alternative=True)
            tried = (one for one in self.scraps["trials"] if one[1:3] == [name, label])
            trials = {value: self._record_of(one) for one, *_, value in tried}
            config = record.config | {"engine": resolve_engine(self.engine)}  # any finds it
            past = short_hash(config) not in self.asked(experiment).get(label, ())
            past |= arm.tuning is not None and not trials  # from before it was tuned
            results.append(Result(arm, record, trials, past))
        ends = [end for used, *end in self.scraps["diverged"] if used == experiment]
        unknown = {row: Arm(row, row, {}, self.protocol(), alternative=True) for row, *_ in ends}
        return results, [((unknown | arms)[row], Diverged(*end)) for row, *end in ends]

    def asked(self, experiment: str) -> dict[str, set[str]]:
        """Hashes of the configurations that each row asks for today, by label: of the row, of its
        trials, and of what each tried value would give."""
        found = {}
        for arm in self.arms(experiment):
            rates = list(arm.trials())
            constants = (one for value, chosen, _ in rates for one in chosen.constants(value))
            arms = [arm, *(run for _, *runs in (*rates, *constants) for run in runs)]
            found[arm.label] = {short_hash(self.spec(one).config()) for one in arms}
        return found

    def _record_of(self, run: str) -> Record:
        record = self.store.find(run)
        if record is None:
            raise FedReproError(f"{self.name} used run {run}, which is not in {self.store.root}")
        return record


class Results:
    """Studies of several seeds and data sets, each with its experiments. paper: the page's, by
    default the studies'. scale: the one to show, by default all; `every` has the others too, whose
    spread a verdict may need."""

    def __init__(
        self, studies: Iterable[Asked], paper: str | None = None, scale: str | None = None
    ) -> None:
        self.every, self._paper, self._scale = list(studies), paper, scale
        self.studies = [pair for pair in self.every if scale in (None, pair[0].scale)]

    @property
    def paper(self) -> Paper:
        names = {self._paper} if self._paper else {study.paper.name for study, _ in self.studies}
        if len(names) != 1:
            raise FedReproError("a table is of one paper; name it, as in results.recorded('adcol')")
        return papers.load(names.pop())

    def where(self, scale: str | None = None, **facts: Any) -> Results:
        """The studies with the given values (dataset="office10", scale="paper", ...)."""
        own = [s for s in self.every if all(getattr(s[0], key) == v for key, v in facts.items())]
        return Results(own, self._paper, scale or self._scale)

    def holding(self, experiment: str) -> list[Study]:
        return [study for study, names in self.studies if experiment in names]

    @property
    def experiments(self) -> list[str]:
        """All experiments of the studies."""
        return list(dict.fromkeys(name for _, names in self.studies for name in names))

    def datasets(self, experiment: str) -> list[str]:
        """The data sets of an experiment's cells."""
        return list(dict.fromkeys(row["dataset"] for row in self.cells(experiment)))

    def cells(self, experiment: str, kind: str = "") -> list[dict[str, Any]]:
        """Rows as from `Study.cells`. A number that several studies have counts once: the last."""
        found = {
            (study.dataset, study.scale, study.seed, row["method"], row["column"]): row
            for study in self.holding(experiment)
            for row in study.cells(experiment, kind)
        }
        return list(found.values())

    def runs(self, *experiments: str) -> list[tuple[Study, str, Result]]:
        """The runs of some experiments (default: all), with their study and experiment. A run that
        two studies have in the same row counts once."""
        found: dict[tuple[str, ...], tuple[Study, str, Result]] = {}
        for study, names in self.studies:
            for name in names:
                if (not experiments or name in experiments) and study.paper.arm_specs(name):
                    for one in study.results(name):
                        place = name, study.dataset, study.scale, one.label, one.record.run_id
                        found.setdefault(place, (study, name, one))
        return list(found.values())

    def late_gains(self, *experiments: str) -> dict[tuple[str, str, str, str], float]:
        """Points of mean accuracy that the last quarter of the rounds adds, mean over seeds, by
        experiment, data set, scale and row; 0 for a run that the protocol's rule ended early."""
        gains: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
        for study, name, result in self.runs(*experiments):
            row, curve = (name, study.dataset, study.scale, result.label), result.record.curve
            ended = curve["round"].max() < result.record.protocol.rounds
            gains[row].append(0.0 if ended else metrics.late_gain(curve))
        return {row: fmean(gained) for row, gained in gains.items()}

    def rising(self, experiment: str) -> dict[str, list[str]]:
        """The rows at scale reduced that are not flat yet, by data set."""
        rows: dict[str, list[str]] = defaultdict(list)
        for (_, dataset, scale, label), gain in self.late_gains(experiment).items():
            if scale == "reduced" and gain >= FLAT:
                rows[dataset].append(label)
        return rows

    def past(self, experiment: str) -> dict[str, list[str]]:
        """The rows trained with earlier settings than the paper's file has today, by data set."""
        rows: dict[str, list[str]] = {}
        for study, _, result in self.runs(experiment):
            if result.past and result.label not in rows.setdefault(study.dataset, []):
                rows[study.dataset].append(result.label)
        return rows

    def curves(self, experiment: str) -> pd.DataFrame:
        """As from `Study.curves_of`."""
        found = [study.curves_of([run]) for study, _, run in self.runs(experiment)]
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame()

    def links(self, experiment: str) -> dict[tuple[str, str, str, str], str]:
        """The page of the runs behind each of our recorded numbers, by data set, scale, method and
        column. A row that is not one arm, such as a ratio, has all arms' runs."""
        behind: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
        table = self.paper.experiment(experiment).table
        for study in self.holding(experiment):
            if not isinstance(study, Kept) or not study.paper.arm_specs(experiment):
                continue
            results = study.results(experiment)
            for row in study.cells(experiment):
                method, column = row["method"], row["column"]
                own = runs_of(results, method, column)
                own = own or [r for r in results if row["value"] is not None]
                key = study.dataset, study.scale, method, self.paper.column(table, column)
                behind[key] += [r.record.run_id for r in own]
        return {cell: run_link(*dict.fromkeys(runs)) for cell, runs in behind.items() if runs}

    def of_one_scale(self, dataset: str, experiment: str) -> Results:
        """The studies of an experiment on a data set, for one figure, which must not mix scales: at
        scale paper if those have every row of the others, else the others."""
        held = [(s, e) for s, e in self.studies if s.dataset == dataset and experiment in e]
        full = Results(held, self._paper, "paper")
        rest = Results([pair for pair in held if pair[0].scale != "paper"], self._paper)
        rows = [{row["method"] for row in found.cells(experiment)} for found in (full, rest)]
        return full if rows[0] >= rows[1] else rest


def run_link(*runs: str) -> str:
    """The address of the page of some runs, from a page two folders down."""
    return f"../../run.html#run-{'-'.join(run[:SHORT] for run in runs)}"


def _keep_answers(asked: Study | Results, *questions: str) -> None:
    """Compute some methods' answers once: tables and figures ask for the same again and again."""
    for name in questions:
        setattr(asked, name, cache(getattr(asked, name)))


def _creatable(label: str) -> bool:
    """Whether a row's method is known and has its fields."""
    method, own = papers.row_of(label)
    with suppress(FedReproError):
        return bool(methods.create(method, **own))
    return False


def live(study: Study, experiments: Sequence[str]) -> Results:
    """Results of one study; missing runs are trained, once."""
    study.announce(experiments)
    _keep_answers(study, "cells", "_ended")
    return Results([(study, experiments)], study.paper.name)


@cache
def recorded(paper: str | None = None, runs: Path = FOLDER) -> Results:
    """The results recorded with the book, read once a session. Runs at scale smoke, which only test
    the code, and runs of a changed protocol are left out."""
    own = [pair for pair in _collected(runs / "notebooks") if paper in (None, pair[0].paper.name)]
    found = Results([s for s in own if s[0].scale != "smoke" and not s[0].changes], paper)
    _keep_answers(found, "links")
    return found


def collect(folder: Path, only: Sequence[Path] | None = None) -> list[tuple[Kept, Sequence[str]]]:
    """The studies of the finished notebooks in a folder, with their experiments, also of those that
    were deleted, or only of some notebooks there; their records are beside the folder."""
    store, names = Store(folder.parent), None if only is None else [path.stem for path in only]
    lines = files.read_lines(folder.parent / STUDIES)
    glued: dict[str, Any] = {
        line["name"]: (line, {}) for line in lines if names is None or line["name"] in names
    }
    for path in sorted(folder.rglob("*.ipynb")) if only is None else filter(Path.exists, only):
        if ".ipynb_checkpoints" not in path.parts and (scraps := _scraps(path)):
            drawn = {k: s.display["data"] for k, s in scraps.items() if s.display}
            shown = {k: data["image/png"] for k, data in drawn.items() if "image/png" in data}
            glued[path.stem] = {k: scrap.data for k, scrap in scraps.items()}, shown
    every: list[Kept] = []
    for name, (scraps, shown) in glued.items():
        facts = scraps["study"]
        given = {key: facts[key] for key in GIVEN if key in facts}
        own = {"store": store, "scraps": scraps, "name": name, "shown": shown, "beside": every}
        every.append(Kept(papers.load(facts["paper"]), **given, **own))
    return [(one, one.scraps["study"]["experiments"]) for one in every]


_collected = cache(collect)


def _scraps(path: Path) -> dict[str, Any]:
    """What a notebook glued; nothing if it did not reach its last cell, or is of an old kind."""
    import scrapbook  # half a second, with papermill

    try:
        scraps = dict(scrapbook.read_notebook(str(path)).scraps)
    except (ValueError, KeyError, AttributeError, OSError, nbformat.ValidationError) as error:
        why = one_line(error)
        raise FedReproError(f"{path} is not a readable notebook ({why}); remove it") from None
    return scraps if {SENTINEL, "study", "runs", "counted"} <= set(scraps) else {}


def keep(runs: Path) -> None:
    """Store what notebooks glued next to their records, so that most of them can be deleted."""
    studies = [{**study.scraps, "name": study.name} for study, _ in collect(runs / "notebooks")]
    files.write_lines(runs / STUDIES, studies)


def finished(notebook: Path) -> bool:
    """Whether an executed notebook reached its last cell. Papermill's own marks do not show it:
    after a kernel's death they mark every cell as completed."""
    try:
        return notebook.exists() and bool(_scraps(notebook))
    except FedReproError:
        return False


def outdated(notebook: Path) -> bool:
    """Whether a finished notebook has a run of earlier settings, as far as this process knows its
    methods and images."""
    try:
        return any(
            one.past
            for study, names in collect(notebook.parent, [notebook])
            for name in filter(study.paper.arm_specs, names)
            for one in study._read(name)[0]
        )
    except FedReproError:
        return False
