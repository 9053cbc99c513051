"""A paper for the rest of the library: tables, protocols, sources, experiments, arms."""

import ast
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from pydantic import BaseModel

from fedrepro.base.errors import FedReproError, choices, need, one_of
from fedrepro.base.protocol import Protocol, Scale, parse_protocol, sides
from fedrepro.data import folders
from fedrepro.data.domains import DATASETS
from fedrepro.papers import schema
from fedrepro.papers.schema import ArmSpec, Experiment, Setting, Settings, Table, Tuning

if TYPE_CHECKING:
    import pandas as pd

COMPARES = ("accuracy", "in-out")  # kinds whose rows are methods: other methods may be added
TRAINING = "everywhere", "where", "scales", "clients_each"  # of a row, that an added one takes
DIVIDES = "data.allocation.rule", "data.allocation.cut_tests"
SAME = ("label", "method", "alternative", "column", "tuned", "constant")  # of an arm as written


@dataclass(frozen=True)
class Arm:
    """One run of an experiment for each seed. tuning: None if nothing of it is tuned here. seed: of
    a trial, None for each seed asked for. The rest as in `ArmSpec`."""

    label: str
    method: str
    fields: dict[str, Any]
    protocol: Protocol
    alternative: bool = False
    row: str = ""
    column: str | None = None
    tuned: tuple[str, ...] = ()
    constant: Mapping[str, Sequence[float]] = field(default_factory=dict)
    # A campaign's keys hash what the others look like.
    tuning: Tuning | None = field(default=None, repr=False)
    seed: int | None = field(default=None, repr=False)

    @property
    def what(self) -> Hashable:
        """What is trained: equal for arms of several experiments that are one row."""
        return self.method, frozenset(self.fields.items()), str(self.protocol)

    def trials(self) -> "Trials":
        """Each tried value and this arm with it: for all rounds, and for a trial's rounds."""
        if (tuning := self.tuning) is None:
            return
        for value in tuning.values[self.protocol.scale]:
            if self.tuned or tuning.setting is None:
                arm = replace(self, fields=self.fields | dict.fromkeys(self.tuned, value))
            else:
                arm = replace(self, protocol=self.protocol.changed(**{tuning.setting: value}))
            yield arm._trial(str(value), tuning)

    def constants(self, first: str) -> "Trials":
        """The same for the values of the arm's constant. first: the value it has from `trials`."""
        if (tuning := self.tuning) is None or self.protocol.scale not in tuning.constants:
            return
        for name, values in self.constant.items():
            for value in values:
                arm = replace(self, fields=self.fields | {name: value})
                yield arm._trial(f"{first}, {name} {value}", tuning)

    def _trial(self, value: str, tuning: Tuning) -> tuple[str, "Arm", "Arm"]:
        """A trial has no more rounds than the arm's own (MPFT: one)."""
        own = self.protocol.rounds
        rounds = min(tuning.rounds.get(self.protocol.scale, own), own)
        what = ", ".join(self.tuned) or str(tuning.setting).rpartition(".")[2]  # such as lr
        trial = replace(self, label=f"{self.label}, {what} {value}", tuning=None, seed=tuning.seed)
        return value, self, replace(trial, protocol=self.protocol.changed(rounds=rounds))


Trials = Iterator[tuple[str, Arm, Arm]]


class Paper(BaseModel, frozen=True, extra="forbid"):
    """A paper: the content of its files. columns: our domains' names in print. method_settings_on:
    by protocol, differing settings. filed: the authors' own files behind the printed numbers."""

    name: str
    short: str
    title: str
    authors: str
    venue: str
    year: int
    note: str = ""
    claims: tuple[schema.Claim, ...]
    reporting: Settings
    columns: dict[str, tuple[str, ...]] = {}
    protocols: dict[str, Settings] = {}
    datasets: dict[str, schema.DatasetSpec] = {}
    scales: dict[Scale, schema.ScaleSpec] = {}
    method_settings: dict[str, Settings] = {}
    method_settings_on: dict[str, dict[str, Settings]] = {}
    experiments: tuple[Experiment, ...]
    tables: tuple[Table, ...]
    tested: tuple[schema.Tested, ...] = ()
    filed: schema.Authors | None = None

    @property
    def rule(self) -> str:
        """The score rule of its numbers, one of `metrics.SCORE_RULES`."""
        return str(self.reporting["score_rule"].value)

    @property
    def labels(self) -> set[str]:
        return {spec.label for e in self.experiments for spec in self.arm_specs(e.id)}

    def table(self, name: str) -> Table:
        """A printed table by id; FedReproError, with the choices, if there is none."""
        known = {table.id: table for table in self.tables}
        return known[one_of(name, known, f"printed table of {self.short}")]

    def experiment(self, name: str) -> Experiment:
        """An experiment by id; FedReproError, with the choices, if there is none."""
        known = {experiment.id: experiment for experiment in self.experiments}
        return known[one_of(name, known, f"experiment of {self.short}")]

    def named(self, name: str, scale: str) -> list[Experiment]:
        """An experiment by id; for ``all`` every one that runs at a scale without being named."""
        if name != "all":
            return [self.experiment(name)]
        return [e for e in self.experiments if e.state == "runs" and scale not in e.named_only]

    def column(self, table: str | None, domain: str) -> str:
        """The printed column of a domain (or ``avg``); its own name if none is printed."""
        names, printed = self.columns.get(domain, ()), self.table(table).columns if table else ()
        return next((name for name in (domain, *names) if name in printed), domain)

    def protocol(
        self, dataset: str, scale: str = "paper", experiment: str | None = None
    ) -> Protocol:
        """The paper's protocol on a data set. At scale ``paper`` every value is the paper's own
        (or, where it is silent, the one that ``sources`` justifies). experiment: the protocol of
        its own data if this data set replaces them there."""
        kind = folders.kind(dataset)
        settings = self._settings(self._base(dataset, experiment), dataset, scale)
        flat: dict[str, Any] = {"data.dataset": kind, "scale": scale}
        flat |= {key: setting.value for key, setting in settings.items()}
        flat["data.dataset"] += dataset.removeprefix(kind)  # which folder
        return parse_protocol({}, flat)

    def sources(self, dataset: str, scale: str = "paper") -> "pd.DataFrame":
        """Every setting as text: columns setting, value, status, alternatives, and `protocol.sides`
        of the source. A value of the paper that is replaced here heads the alternatives."""
        import pandas as pd  # only here: it takes a third of a second

        chosen = Setting(value=dataset, status="decided", source="chosen for the run")
        base = self._base(dataset)
        rows = {"data.dataset": chosen} | self._settings(base, dataset, scale)
        for key, stated in self.protocols[base].items():
            if rows[key].value != stated.value:
                others = (stated.value, *rows[key].alternatives)
                rows[key] = rows[key].model_copy(update={"alternatives": others})
        for method in self.method_settings | self.method_settings_on.get(base, {}):
            settings = self.settings_of(method, base)
            rows |= {f"{method}.{key}": setting for key, setting in settings.items()}
        rows |= {f"report.{key}": setting for key, setting in self.reporting.items()}
        return pd.DataFrame(
            {"setting": key, "value": as_text(s.value), "status": s.status}
            | {"alternatives": ", ".join(map(as_text, s.alternatives))}
            | sides(s.status, s.source, s.text, s.code)
            for key, s in rows.items()
        )

    def arms(
        self, name: str, dataset: str | None = None, scale: str = "paper", also: Sequence[str] = ()
    ) -> list[Arm]:
        """The arms of an experiment on a data set (default: the experiment's own). also: rows of
        other methods (`row_of`), trained as FedAvg's, else as the first, and set as in this paper.
        FedReproError: there is nothing to run, or the data set does not fit the experiment."""
        experiment = self.experiment(name)
        need(
            experiment.can_run,
            f"{self.short} {name} is {experiment.state}: {experiment.reason}; "
            f"run one of {', '.join(e.id for e in self.experiments if e.state == 'runs')}",
        )
        dataset = dataset or experiment.datasets[0]
        known = self.datasets_for(name)
        runs_on = f"{self.short} {name} does not run on {dataset!r}; choose from {', '.join(known)}"
        need(folders.kind(dataset) in known, runs_on)
        protocol = self.protocol(dataset, scale, name)
        if each := experiment.clients_each.get(protocol.scale):
            protocol = _equal_clients(protocol, each)
        how = protocol, self._base(dataset, name), self._tuning(experiment, protocol.scale)
        specs = self.arm_specs(name)
        likes = sorted(specs, key=lambda s: (s.method != "FedAvg", s.rounds_share is not None))
        training = {key: getattr(one, key) for one in likes[:1] for key in TRAINING}
        training["alternative"] = True
        named = ((label, *row_of(label)) for label in also)
        own = [ArmSpec(label=n, method=m, fields=own, **training) for n, m, own in named]
        return [self._arm(spec, *how) for spec in [*specs, *own]]

    def arm_specs(self, name: str) -> list[ArmSpec]:
        """An experiment's arms before a protocol is chosen, with reused arms included."""
        experiment = self.experiment(name)
        if experiment.arms_of is None:
            return list(experiment.arms)
        reused = self.arm_specs(experiment.arms_of)
        kept = [spec for spec in reused if spec.label not in experiment.without]
        return [spec for spec in kept if not experiment.only or spec.label in experiment.only]

    def _tuning(self, experiment: Experiment, scale: Scale) -> Tuning | None:
        """An experiment's tuning at a scale, if any. Reused arms keep theirs."""
        while (tuning := experiment.tuning) is None and experiment.arms_of is not None:
            experiment = self.experiment(experiment.arms_of)
        return tuning if tuning and scale in tuning.values else None

    def datasets_for(self, name: str) -> tuple[str, ...]:
        """The data sets of an experiment: those that follow its protocol; the embedded one, which
        may replace any; and, in tables of methods with whole domains, your own images."""
        experiment = self.experiment(name)
        each = experiment.clients_each or any(s.clients_each for s in self.arm_specs(name))
        own = self.protocols.get(experiment.datasets[0], {})
        divided = {own[key].value for key in DIVIDES if key in own}
        whole = not each and not divided & {"mixed", "dirichlet", True}
        free = experiment.kind in COMPARES and whole
        return tuple(
            dataset
            for dataset, spec in self.datasets.items()
            if dataset == "minidigits"
            or (free if spec.added else spec.protocol in experiment.datasets)
        )

    def _arm(self, spec: ArmSpec, protocol: Protocol, base: str, tuning: Tuning | None) -> Arm:
        if spec.clients_each is not None:
            protocol = _equal_clients(protocol, spec.clients_each)
        share = spec.rounds_share
        changes = {} if share is None else {"rounds": max(1, round(share * protocol.rounds))}
        changes |= spec.everywhere | spec.where.get(protocol.data.dataset, {})
        changes |= spec.scales.get(protocol.scale, {})
        defaults = {key: s.value for key, s in self.settings_of(spec.method, base).items()}
        fields = (defaults | spec.fields).items()
        own: dict[str, Any] = {name: getattr(spec, name) for name in SAME}
        own["row"] = spec.row or spec.label
        own["tuning"] = tuning if spec.tuned or (tuning and tuning.setting) else None
        own["fields"] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields}  # hashable
        return Arm(**own, protocol=protocol.changed(**changes))

    def settings_of(self, method: str, base: str) -> Settings:
        own = self.method_settings_on.get(base, {})
        return {**self.method_settings.get(method, {}), **own.get(method, {})}

    def _base(self, dataset: str, experiment: str | None = None) -> str:
        """The protocol that a data set follows, or which it replaces in an experiment."""
        base = self.dataset(dataset).protocol
        known = (base,) if experiment is None else self.experiment(experiment).datasets
        return base if base in known else known[0]

    def dataset(self, name: str) -> schema.DatasetSpec:
        """A data set's specification, for a folder by its kind. FedReproError: there is none."""
        kind = folders.kind(name)
        if kind in self.datasets:
            return self.datasets[kind]
        known = [one + ":PATH" * one.startswith(folders.FOLDER) for one in self.datasets]
        said = f"{self.short} has no protocol for data set {name!r}; "
        own = f"for images of your own write {folders.FOLDER}:{name}"
        mend = own if Path(name).is_dir() else f"choose from {choices(name, known)}"
        raise FedReproError(said + mend)

    def _settings(self, base: str, dataset: str, scale: str) -> Settings:
        """The paper's own settings, as changed by the data set, then by the scale."""
        spec = self.scales.get(cast(Scale, one_of(scale, get_args(Scale), "scale")))
        changes, kind = spec.changes if spec is not None else {}, folders.kind(dataset)
        own, of_scale = self.dataset(dataset).changes, changes.get(kind, changes.get(base, {}))
        if kind == folders.FOLDER and kind not in changes:
            of_scale = of_scale | own  # a scale's rules are for the paper's data
        return self.protocols[base] | own | of_scale


def row_of(label: str) -> tuple[str, dict[str, Any]]:
    """The method and the fields of a row that is named by them: ``METHOD`` or
    ``METHOD (field=value, field=value)``, with values as in Python; a word needs no quotes.
    FedReproError: they cannot be read."""
    found = re.fullmatch(r"(.+?)\s*(\(\s*\w+\s*=.*\))", label) if isinstance(label, str) else None
    if found is None:
        return label, {}
    told = f"{label}: cannot read {found[2]}; write METHOD (field=value, field=value)"
    told += ", each field once, and quotes around a text with spaces"
    try:
        call: Any = ast.parse(f"f{found[2]}", mode="eval").body
        values = ((one.arg, one.value) for one in call.keywords)
        fields = {k: v.id if isinstance(v, ast.Name) else ast.literal_eval(v) for k, v in values}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise FedReproError(told) from None
    once = len(fields) == len(call.keywords) and None not in fields and not call.args
    need(once and isinstance(call.func, ast.Name), told)
    return found[1], fields


def _equal_clients(protocol: Protocol, each: int) -> Protocol:
    """The protocol with `each` clients in every domain of its table, or else of its data set."""
    table = dict.fromkeys(protocol.data.allocation.clients or DATASETS[protocol.data.dataset], each)
    return protocol.changed(**{"data.allocation.rule": "table", "data.allocation.clients": table})


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={as_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(as_text(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
