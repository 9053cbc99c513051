"""A paper in the project's own form: printed numbers, protocol with sources, claims, experiments.

Each paper is two YAML files beside this one: ``<name>.yaml`` and ``<name>.tables.yaml`` (the
printed tables, digit for digit). They are checked whole when read, so that a setting without a
source or an experiment without its table is an error before anything trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedrepro.base.errors import FedReproError, one_line
from fedrepro.base.protocol import Protocol, Scale, Status, parse_protocol
from fedrepro.papers.authors import Authors

State = Literal["runs", "blocked", "planned"]
Kind = Literal[
    "accuracy",  # a table of test accuracies
    "rounds",  # rounds until a target accuracy
    "traffic",  # bytes until a target accuracy
    "speedup",  # ratio of two methods' bytes until a target accuracy
    "seconds",  # training time
    "sampling",  # accuracy, rounds and bytes against a sampling ratio
    "sweep",  # accuracy against one varied setting
    "curves",  # accuracy over rounds or bytes
    "features",  # t-SNE of representations
    "clients",  # clients of each domain; nothing is trained
    "differences",  # an accuracy, or one less another, in each printed row
    "leakage",  # mutual information of images and uploads in nats, and accuracy
    "grid",  # mean test accuracies, each arm in a row and column of its own
    "targets",  # test accuracies; arms with a target fill one row, each its client's column
    "relative",  # gain of the last arm's mean accuracy over the first's, in percent
    "terms",  # what the server logged over rounds
    "in-out",  # accuracy in and out of the clients' domains, and the round it is taken from
    "communication",  # bytes of all clients until the round the accuracy is taken from
    "counts",  # images of each source; nothing is trained
    "shares",  # images by class and client; nothing is trained
    "distances",  # Frechet distance of each source to all together; nothing is trained
    "sizes",  # parameters and messages of networks; nothing is trained
    "transfers",  # bytes of all clients in the printed rounds; nothing is trained
    "example",  # a worked example of message sizes; nothing is trained
    "prototypes",  # t-SNE of embeddings and prototypes; nothing is trained
    "inversion",  # images searched whose embeddings are prototypes; nothing is trained
    "data",  # counts, label shares or distances of the data sets
    "privacy",  # accuracy or leakage under a privacy mechanism
    "other",  # a drawing or a number outside the kinds above
]

COUNTED = (
    "counts",
    "clients",
    "sizes",
    "transfers",
    "example",
)  # kinds whose numbers no draw can move
UNTRAINED = (*COUNTED, "shares", "distances", "prototypes", "inversion")  # kinds without arms


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cell(NamedTuple):
    """One printed cell: the text as printed, its mean, its std (None where absent)."""

    printed: str
    value: float | None
    std: float | None


def parse_cell(printed: str) -> Cell:
    """Read ``87.9±0.4``, ``87.9`` or ``-`` (no number). ValueError on anything else."""
    if printed == "-":
        return Cell(printed, None, None)
    mean, mark, std = printed.partition("±")
    return Cell(printed, float(mean), float(std) if mark else None)


class Row(_Spec):
    """One printed row: the method (or setting) and its cells, in the order of the columns."""

    method: str
    cells: tuple[Cell, ...]

    @field_validator("cells", mode="before")
    @classmethod
    def _split(cls, raw: Any) -> Any:
        return tuple(parse_cell(text) for text in raw.split()) if isinstance(raw, str) else raw


class Table(_Spec):
    """A printed table, or one block of it (or numbers of a figure or of prose).

    unit: of every column not named in ``units``. std_over: what the printed std runs over; only a
    std over trials can enter a Welch interval.
    """

    id: str
    caption: str
    dataset: str
    metric: str
    unit: str
    units: dict[str, str] = {}
    source: Literal["table", "figure", "prose"] = "table"
    std_over: Literal["trials", "parties", "sources"] = "trials"
    setting: str = ""
    notes: str = ""
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        methods = [row.method for row in self.rows]
        if len(set(methods)) != len(methods) or len(set(self.columns)) != len(self.columns):
            raise ValueError(f"{self.id}: a row or a column appears twice; keep one")
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"{self.id}, row {row.method!r}: {len(row.cells)} cells for "
                    f"{len(self.columns)} columns; give one cell a column"
                )
        return self

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(row.method for row in self.rows)

    def cell(self, method: str, column: str) -> Cell | None:
        """The printed cell, None where the table has no such row or column."""
        for row in self.rows:
            if row.method == method and column in self.columns:
                return row.cells[self.columns.index(column)]
        return None

    def unit_of(self, column: str) -> str:
        return self.units.get(column, self.unit)


class Setting(_Spec):
    """One value, where it comes from, and what else it could have been. status: what settles it."""

    value: Any
    source: str = Field(min_length=5)
    status: Status
    alternatives: tuple[Any, ...] = ()


Settings = dict[str, Setting]


class DatasetSpec(_Spec):
    """A data set a protocol may be run on: whose protocol it follows and what must change. mark:
    printed beside every number where the change can move it against the paper's."""

    protocol: str
    changes: Settings = {}
    mark: str = ""


class Tested(_Spec):
    """What printed accuracies were measured on: test images by printed column, and how many
    evaluations a printed mean is over (trials, times the rounds of the score rule)."""

    tables: tuple[str, ...]
    images: dict[str, int]
    evaluations: int = Field(ge=1)
    source: str
    status: Status = "inferred"


class Comparison(_Spec):
    """One test of a claim: in an experiment, the row ``better`` is better than others.

    than: those rows; ``all``: every other that is no second reading. against: the experiment the
    others are of, where it is another. dataset: only where a data set follows this protocol.
    by: the column; ``each``: every domain's; ``only``: the one there is; several name one number.
    margin: better by more than so much; a negative one allows a loss. above: instead of other rows,
    a number to be above. lower: less is better (traffic, leakage). paper_only: a small network says
    nothing of it, as of the bytes that a network has.
    """

    experiment: str
    better: str
    than: tuple[str, ...] | Literal["all"] = "all"
    against: str = ""
    dataset: str = ""
    by: str | tuple[str, ...] = "avg"
    margin: float = 0.0
    above: float | None = None
    lower: bool = False
    paper_only: bool = False


class Claim(_Spec):
    """What the paper says it shows, in our words, and what tests it. experiments: where it shows;
    tests: what answers it; untested: why nothing does."""

    id: str
    claim: str
    where: str
    experiments: tuple[str, ...] = ()
    tests: tuple[Comparison, ...] = ()
    untested: str = ""


class ArmSpec(_Spec):
    """One curve of an experiment. ``protocol`` changes the paper-scale protocol, ``scales`` the
    protocol of another scale, ``rounds_share`` the rounds at every scale.

    everywhere: changes at every scale; ``where``: those on a data set, by its name. Both come
    before ``protocol`` and ``scales``. tuned: the method's fields that take a tuned value, where
    they and not the protocol's setting rule its steps. clients_each: clients in every domain, as an
    experiment may set them by scale. row, column: the printed place of the mean accuracy in one of
    kind ``grid``; the label and the first column where they are not given.
    """

    label: str
    method: str
    fields: dict[str, Any] = {}
    protocol: dict[str, Any] = {}
    scales: dict[Scale, dict[str, Any]] = {}
    everywhere: dict[str, Any] = {}
    where: dict[str, dict[str, Any]] = {}
    tuned: tuple[str, ...] = ()
    clients_each: int | None = Field(None, ge=1)
    row: str | None = None
    column: str | None = None
    rounds_share: float | None = Field(None, gt=0, le=1)
    alternative: bool = False  # a second reading of the paper: not a row of its table


class Target(_Spec):
    """The accuracy to reach: a number in percent, or the lowest final one among some arms."""

    accuracy: float | None = Field(None, gt=0, le=100)
    lowest_of: tuple[str, ...] = ()
    source: str

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.accuracy is None) == (not self.lowest_of):
            raise ValueError("a target is either an accuracy or lowest_of; give exactly one")
        return self


class Difference(_Spec):
    """A printed row of kind ``differences``: an arm's accuracy in percent on one data set, less
    another arm's where ``minus`` names one. column: a domain, ``avg``, or ``largest``, over the
    domains."""

    row: str
    dataset: str
    of: str
    minus: str | None = None
    column: str = "avg"


class Tuning(_Spec):
    """A budget of trials, the same for every arm: ``setting`` of the protocol, or an arm's
    ``tuned`` fields (those alone where it is None), takes each of the values of its scale in runs
    of ``seed``, over ``rounds`` where given, and the one of the highest mean validation accuracy
    over the last five rounds (the first of equals) is every seed's. Nothing is tuned at a scale
    without values, or under a protocol that ``protocols`` leaves out."""

    setting: str | None = None
    rounds: int | None = Field(None, ge=1)
    protocols: tuple[str, ...] = ()
    values: dict[Scale, Annotated[tuple[Any, ...], Field(min_length=1)]]
    seed: int = Field(ge=0)
    source: str


class Experiment(_Spec):
    """A table, a figure or a printed claim: what it needs and whether it can be run today.

    dataset: the protocol it follows; several by commas where it is run on each alike, the printed
    one first. clients_each: by scale, clients in every domain: of the protocol's table, or of the
    data set where it has none. named_only: scales at which it runs where it is named, and is no
    part of ``all``. rows: our data sets, and the printed row (or how it begins) their numbers stand
    in. compared: by data set, the (paper, table, column) whose order of methods stands beside ours.
    steps: by scale, gradient steps of kind ``inversion``. A blocked experiment that has arms runs
    where it is named and its data are there.
    """

    id: str
    dataset: str
    caption: str
    kind: Kind
    state: State
    reason: str = ""
    note: str = ""
    table: str | None = None
    arms: tuple[ArmSpec, ...] = ()
    arms_of: str | None = None  # reuse another experiment's arms ...
    without: tuple[str, ...] = ()  # ... except these labels
    only: tuple[str, ...] = ()  # ... or only these
    clients_each: dict[Scale, Annotated[int, Field(ge=1)]] = {}
    target: Target | None = None
    tuning: Tuning | None = None
    differences: tuple[Difference, ...] = ()
    relative_to: str | None = None  # compare ratios to this row instead of printed values
    named_only: tuple[Scale, ...] = ()
    rows: dict[str, str] = {}
    steps: dict[Scale, Annotated[int, Field(ge=1)]] = {}
    compared: dict[str, tuple[tuple[str, str, str], ...]] = {}

    @property
    def datasets(self) -> tuple[str, ...]:
        """The protocols it is run under."""
        return tuple(name.strip() for name in self.dataset.split(","))

    @property
    def armed(self) -> bool:
        """Whether it says what is to be run."""
        return bool(self.arms or self.arms_of) or self.kind in UNTRAINED

    @property
    def can_run(self) -> bool:
        """Whether there is something to run, be it only with data that are not at hand."""
        return self.state == "runs" or (self.state == "blocked" and self.armed)

    @model_validator(mode="after")
    def _reasoned(self) -> Self:
        if self.state != "runs" and not self.reason:
            raise ValueError(f"{self.id} is {self.state} without a reason; say what is missing")
        return self


class ScaleSpec(_Spec):
    """How a scale departs from the paper: per protocol, every changed setting with its source."""

    reason: str
    changes: dict[str, Settings]


class PaperFile(_Spec):
    """The two files of a paper, merged. Cross references are checked here."""

    name: str
    short: str
    title: str
    authors: str
    venue: str
    year: int
    note: str = ""
    statistic: str
    claims: tuple[Claim, ...]
    reporting: Settings
    columns: dict[str, tuple[str, ...]] = {}  # our domain -> names it is printed under
    protocols: dict[str, Settings] = {}
    datasets: dict[str, DatasetSpec] = {}
    scales: dict[Scale, ScaleSpec] = {}
    method_settings: dict[str, Settings] = {}
    method_settings_on: dict[str, dict[str, Settings]] = {}  # protocol -> what differs there
    experiments: tuple[Experiment, ...]
    tables: tuple[Table, ...]
    tested: tuple[Tested, ...] = ()
    filed: Authors | None = None  # what the authors keep beside the printed numbers

    @model_validator(mode="before")
    @classmethod
    def _own_tables(cls, raw: Any) -> Any:
        """An experiment whose id is a table's id shows that table unless it says otherwise."""
        if not isinstance(raw, dict):
            return raw
        ids = {table.get("id") for table in raw.get("tables", [])}
        listed = [
            {"table": item["id"], **item} if item.get("id") in ids else item
            for item in raw.get("experiments", [])
        ]
        return {**raw, "experiments": listed}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for complaint in self._complaints():
            raise ValueError(complaint)
        return self

    def _complaints(self) -> Iterator[str]:
        ids = [experiment.id for experiment in self.experiments]
        tables = {table.id for table in self.tables}
        for name in {name for name in ids if ids.count(name) > 1}:
            yield f"experiment {name} is listed twice; keep one"
        for name in sorted(tables - {e.table for e in self.experiments}):
            yield f"published {name} has no experiment; list it, planned at least"
        for experiment in self.experiments:
            if experiment.table is not None and experiment.table not in tables:
                yield f"{experiment.id} shows {experiment.table}, which is not among the tables"
            if experiment.arms_of is not None and experiment.arms_of not in ids:
                yield f"{experiment.id} takes the arms of {experiment.arms_of}, which is not listed"
            if experiment.state == "runs" and not experiment.armed:
                yield f"{experiment.id} runs but has no arms; list them"
            for dataset in experiment.datasets if experiment.can_run else ():
                if dataset not in self.protocols:
                    yield f"{experiment.id} runs on {dataset}, which has no protocol"
        for claim in self.claims:
            tested = [t.experiment for t in claim.tests]
            for name in (*claim.experiments, *tested, *(t.against for t in claim.tests)):
                if name and name not in ids:
                    yield f"a claim names {name}, which is not among the experiments; correct it"
        for dataset, spec in self.datasets.items():
            if spec.protocol not in self.protocols:
                yield f"data set {dataset} follows {spec.protocol}, which has no protocol"
        for name in self.method_settings_on:
            if name not in self.protocols:
                yield f"method_settings_on names {name}, which has no protocol"
        for name in self.protocols:
            yield from self._unsourced(name)

    def _unsourced(self, name: str) -> Iterator[str]:
        """Settings the protocol has in effect but the file gives no source for."""
        settings = self.protocols[name]
        try:
            built = build_protocol(name, [settings])
        except (FedReproError, KeyError) as error:
            yield f"protocol {name}: {one_line(error)}"
            return
        given = {*settings, "data.dataset", "scale"}
        for leaf, value in leaves(built.model_dump()):
            covered = leaf in given or any(leaf.startswith(f"{key}.") for key in given)
            if not covered and value is not None and value != {}:
                yield f"protocol {name}: {leaf} = {value!r} has no source; add it"


def leaves(raw: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a nested mapping; an empty mapping is a leaf."""
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """The reverse of ``leaves``; an empty mapping as value empties what was there."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        node, parts = tree, key.split(".")
        for part in parts[:-1]:
            node = node.setdefault(part, {})
        node[parts[-1]] = value
    return tree


def build_protocol(dataset: str, layers: list[Settings], scale: Scale = "paper") -> Protocol:
    """A protocol from settings, later layers winning."""
    flat: dict[str, Any] = {"data.dataset": dataset, "scale": scale}
    for layer in layers:
        flat.update({key: setting.value for key, setting in layer.items()})
    return parse_protocol(nest(flat))
