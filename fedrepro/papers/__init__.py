"""The papers by name, and what is asked of one: which rows, data set, scale and seed. All words are
checked here, and without torch, so that a mistyped one is answered at once."""

import operator
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fedrepro.base.errors import OWN_METHOD, FedReproError, first_mistake, need, one_of
from fedrepro.base.files import LOAD
from fedrepro.base.protocol import DEVICES, GROUPS, Protocol, resolve_engine
from fedrepro.data import folders
from fedrepro.papers.paper import COMPARES, Arm, Paper, row_of
from fedrepro.papers.schema import Claim, Comparison, Experiment, Table, Tuning

__all__ = [
    "COMMON", "COMPARES", "Arm", "Claim", "Comparison", "Experiment", "Paper", "Question", "Table",
    "Tuning", "default_datasets", "experiments", "known_methods", "load", "names",
    "read_paper", "row_of", "written_in",
]  # fmt: skip

FOLDER = Path(__file__).parent
OWN = FOLDER / "own.folder.yaml"
COMMON = "common"  # the project's own protocol, in the form of a paper without printed numbers
# All papers take 0.66 s in Python, 0.10 s in C.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def names() -> list[str]:
    return sorted({path.stem for path in FOLDER.glob("*.yaml") if "." not in path.stem} - {COMMON})


@lru_cache
def load(name: str) -> Paper:
    """A paper, or the common protocol. FedReproError, with the choices, if there is none."""
    return read_paper(FOLDER / f"{one_of(name, [*names(), COMMON], 'paper')}.yaml")


def experiments(paper: str | None = None) -> list[dict[str, str]]:
    """Every table and figure of one paper or of all: paper, id, dataset, caption, state, reason."""
    listed = {"id", "dataset", "caption", "state", "reason"}
    return [
        {"paper": one.name, **experiment.model_dump(include=listed)}
        for one in map(load, names() if paper is None else [paper])
        for experiment in one.experiments
    ]


def read_paper(path: Path) -> Paper:
    """Read ``<name>.yaml``, ``<name>.tables.yaml`` unless the first has ``tables``, and any
    ``<name>.authors.yaml``. An experiment shows the table with its id unless it says otherwise."""
    raw = {**_read_yaml(path), "name": path.stem}
    if "tables" not in raw:
        raw |= _read_yaml(path.with_name(f"{path.stem}.tables.yaml"))
    if raw.get("protocols"):
        own = {"protocol": next(iter(raw["protocols"])), **_read_yaml(OWN)}
        raw["datasets"].setdefault(folders.FOLDER, own)
    authors = path.with_name(f"{path.stem}.authors.yaml")
    if authors.exists():
        raw["filed"] = _read_yaml(authors)
    try:
        paper = Paper.model_validate(raw)
    except ValidationError as error:
        raise FedReproError(f"{path.name}, {first_mistake(error)}") from None
    tables = {table.id for table in paper.tables}
    shown = tuple(
        e.model_copy(update={"table": e.id})
        if e.id in tables and "table" not in e.model_fields_set
        else e
        for e in paper.experiments
    )
    return paper.model_copy(update={"experiments": shown})


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        return dict(yaml.load(path.read_text(encoding="utf-8"), _LOADER))
    except (yaml.YAMLError, TypeError, ValueError, OSError) as error:
        flat = " ".join(str(error).split())
        raise FedReproError(f"{path.name} is not readable YAML ({flat}); correct it") from None


# What is asked of a paper.

METHODS = "fedrepro.methods"  # the package, and the group of entry points of others
NAME = re.compile(r'^    name = "([^"]+)"', re.MULTILINE)  # in the class of a method


@dataclass
class Question:
    """A paper on one data set at one scale for one seed. dataset: a name, or ``folder:PATH``, which
    becomes the name that its content gives it. only: labels or methods of the arms to run, None for
    all. changes: settings of the protocol to replace, as `Protocol.changed` takes them."""

    paper: Paper
    dataset: str
    scale: str = "smoke"
    seed: int = 0
    only: Sequence[str] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"
    engine: str = "auto"

    def __post_init__(self) -> None:
        own = "scale paper is the paper's own protocol; change settings at reduced"
        need(not self.changes or self.scale != "paper", own)
        named = isinstance(self.dataset, str)
        need(named, f"data set {self.dataset!r}: give its name, or folder:PATH")
        mapped = isinstance(self.changes, Mapping) and all(isinstance(k, str) for k in self.changes)
        need(mapped, f'changes {self.changes!r}: give names and values, such as {{"rounds": 5}}')
        for key in GROUPS.keys() & self.changes:
            lost = f"{key} is a group of settings, whose others would be lost"
            raise FedReproError(f"{lost}; name each, such as {key}.{GROUPS[key]}")
        one_of(self.device, DEVICES, "device")
        resolve_engine(self.engine)
        asked, changed = self.paper.protocol(self.dataset, self.scale), self.protocol()
        changed.must_read(asked)
        kept = (asked.scale, asked.data.dataset) == (changed.scale, changed.data.dataset)
        need(
            kept, "scale and data set are not changed as settings; choose them by their own options"
        )
        self.dataset = folders.named(self.dataset)
        whole = hasattr(self.seed, "__index__") and not isinstance(self.seed, bool)
        need(whole and self.seed >= 0, f"seed {self.seed!r}: give 0 or a positive whole number")
        self.seed = operator.index(self.seed)  # numpy's have no JSON
        listed = self.only is None or isinstance(self.only, list | tuple)
        need(listed, f'methods {self.only!r}: give a list of names, such as ["FedAvg", "FedBN"]')
        self._methods = known_methods(self.only or ())
        known = self._methods | self.paper.labels
        what = f"method or row of {self.paper.short}"
        for label in (one for one in self.only or () if one not in self.paper.labels):
            method, given = row_of(label)
            mend = "; write METHOD (field=value)" if {*"(="} & {*method} else OWN_METHOD
            one_of(method, sorted(known, key=str.lower), what, mend)
            if given:
                from fedrepro import methods

                methods.create(method, **given)  # a wrong one is told before training

    def protocol(self) -> Protocol:
        """The protocol behind the arms, before an arm's own changes."""
        return self.paper.protocol(self.dataset, self.scale).changed(**self.changes)

    def chosen(self, experiment: str) -> list[str]:
        """Ids behind an experiment's name; `all`: that run on this data set at this scale without
        being named. Those of which `only` leaves no row are left out. FedReproError: a named
        experiment lacks one of `only`."""
        ids, kind = [e.id for e in self.paper.named(experiment, self.scale)], folders.kind
        if experiment == "all":
            ids = [name for name in ids if kind(self.dataset) in self.paper.datasets_for(name)]
            where = f"{self.paper.short} on {self.dataset}, scale {self.scale}"
            need(ids, f"{where}: no experiment runs there unless it is named; name one")
        found = {name: self.arms(name) for name in ids}
        held = {word for arms in found.values() for arm in arms for word in (arm.label, arm.method)}
        lost = ", ".join(name for name in self.only or () if name not in held)
        no_row = f"{self.paper.short} {experiment} has no row for {lost}, and compares no others"
        need(experiment == "all" or not lost, f"{no_row}; leave it out, or name another experiment")
        return [name for name in ids if found[name] or not self.paper.arm_specs(name)]

    def arms(self, experiment: str) -> list[Arm]:
        """The arms to run: the experiment's, without those left out by `only`. A method that `only`
        names and the experiment does not hold has a row of its own beside other methods'. A setting
        that is changed is not tuned; others are. FedReproError: rows that differ only in it."""
        asked, tuning = self._written(experiment), self.paper.experiment(experiment).tuning
        found = [replace(a, protocol=a.protocol.changed(**self.changes)) for a in asked]
        kept = len({arm.what for arm in found}) == len({arm.what for arm in asked})
        alike = f"rows of {self.paper.short} {experiment} would be one run"
        changed = f"with {', '.join(self.changes)} changed, {alike}"
        need(kept, f"{changed}; leave it unchanged, or name another experiment")
        if tuning is None or tuning.setting is None:
            return found
        if not any(f"{tuning.setting}.".startswith(f"{key}.") for key in self.changes):
            return found
        value = operator.attrgetter(tuning.setting)(self.protocol())
        given = tuning.model_copy(update={"values": {self.scale: (value,)}})
        own = given if self.scale in tuning.constants else None
        return [a if a.tuned else replace(a, tuning=own if a.constant else None) for a in found]

    def _written(self, experiment: str) -> list[Arm]:
        """The arms to run, with the paper's settings. A name that is a row's label and a method's
        stands for the row."""
        only, specs = self.only or (), self.paper.arm_specs(experiment)
        held, labels = {spec.method for spec in specs}, {spec.label for spec in specs}
        compares = len(held) > 1 and self.paper.experiment(experiment).kind in COMPARES
        others = (method for method in only if compares and method in self._methods)
        also = list(dict.fromkeys(method for method in others if method not in held | labels))
        every = set(only) - labels  # of these methods
        arms = self.paper.arms(experiment, self.dataset, self.scale, also)
        asked = [arm for arm in arms if not only or arm.label in only or arm.method in every]
        what = Counter(arm.what for arm in asked)
        twice = ", ".join(arm.label for arm in asked if what[arm.what] > 1 and arm.label in also)
        need(not twice, f"{twice}: another row is the same run; leave one out")
        return asked


def known_methods(asked: Sequence[str]) -> frozenset[str]:
    """Methods by name, and those rows that are asked for of a known method (`row_of`). torch is
    imported only for a name that is not in the package's own files, if a method may be from
    elsewhere: a file, another package, or registered here."""
    known, wanted = written(), {label: row_of(label)[0] for label in asked}
    if known.issuperset(wanted.values()):
        return known.union(wanted)
    if os.environ.get(LOAD) or METHODS in sys.modules or entry_points(group=METHODS):
        from fedrepro import methods

        known |= {*methods.names()}
    return known.union(label for label, method in wanted.items() if method in known)


@cache
def written() -> frozenset[str]:
    """The names of the package's own methods, read from its files."""
    rooms = (FOLDER.parent / room for room in ("methods", "extras"))
    return frozenset().union(*(written_in(file) for room in rooms for file in room.glob("*.py")))


def written_in(file: Path) -> set[str]:
    """The names of methods in a Python file, as its text has them."""
    return set(NAME.findall(file.read_text(encoding="utf-8", errors="replace")))


def default_datasets(paper: Paper, experiment: str, scale: str) -> list[str]:
    """The data sets if none is named: the embedded one at scale smoke, else of all that run."""
    if experiment != "all" and not paper.experiment(experiment).can_run:
        paper.arms(experiment)  # raises the line that says why
    if scale == "smoke":
        return ["minidigits"]
    return list(dict.fromkeys(name for e in paper.named(experiment, scale) for name in e.datasets))
