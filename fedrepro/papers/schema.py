"""A paper in the project's own form: printed numbers, settings with sources, claims, experiments.

Each paper is two YAML files beside this one: ``<name>.yaml`` and ``<name>.tables.yaml`` (the
printed tables, digit for digit), and ``<name>.authors.yaml`` where the authors publish more. Types
are checked when a file is read; that the parts fit together is tested (`tests/papers`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedrepro.base.protocol import Scale, Status

Count = Annotated[int, Field(ge=1)]
APART = 5.5  # units of a printed number's last digit from which the authors' file contradicts it


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


def _cells(raw: Any) -> Any:
    return tuple(map(parse_cell, raw.split())) if isinstance(raw, str) else raw


class Row(_Spec):
    """One printed row: the method (or setting) and its cells, in the order of the columns."""

    method: str
    cells: Annotated[tuple[Cell, ...], BeforeValidator(_cells)]


class Table(_Spec):
    """A printed table, or one block of it (or numbers of a figure or of prose).

    unit: of every column not named in ``units``. std_over: what the printed std runs over; only a
    std over trials can enter an interval.
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


class Domains(_Spec):
    """Accuracy in percent by row and domain."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]


class Authors(_Spec):
    """What a paper's authors keep in public files behind their printed numbers. values: by table,
    row and column, in the printed unit. test_sizes: images, by data set."""

    repository: str
    formula: str
    test_sizes: dict[str, tuple[int, ...]]
    values: dict[str, dict[str, dict[str, float]]]
    domains: dict[str, Domains] = {}

    def value(self, table: str, row: str, column: str) -> float | None:
        """The files' number of a printed cell, None where there is none."""
        return self.values.get(table, {}).get(row, {}).get(column)


def contradicts(value: float | None, printed: str) -> bool:
    """Whether a number of the authors' files is no rounding of the printed one."""
    if value is None or printed == "-":
        return False
    mean = printed.partition("±")[0]
    return abs(value - float(mean)) > APART * 10.0 ** -len(mean.partition(".")[2])


class Setting(_Spec):
    """One value, where it comes from, and what else it could have been. status: what settles it."""

    value: Any
    source: str = Field(min_length=5)
    status: Status
    alternatives: tuple[Any, ...] = ()


Settings = dict[str, Setting]


class DatasetSpec(_Spec):
    """A data set a protocol may be run on: whose protocol it follows and what must change. caveat:
    printed beside every number where the change can move it against the paper's."""

    protocol: str
    changes: Settings = {}
    caveat: str = ""


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
    a number to be above, or below where ``lower``. lower: less is better (traffic, leakage).
    paper_only: a small network says nothing of it, as of the bytes that a network has.
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
    """What the paper says it shows, in our words, and what tests it. main: in a few words, where it
    is one of its main claims. experiments: where it shows; tests: what answers it; untested: why
    nothing does."""

    id: str
    main: str = ""
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
    kind ``grid``; the label and the first column where they are not given. alternative: a second
    reading of the paper, which has no row in its table.
    """

    label: str
    method: str
    fields: dict[str, Any] = {}
    protocol: dict[str, Any] = {}
    scales: dict[Scale, dict[str, Any]] = {}
    everywhere: dict[str, Any] = {}
    where: dict[str, dict[str, Any]] = {}
    tuned: tuple[str, ...] = ()
    clients_each: Count | None = None
    row: str | None = None
    column: str | None = None
    rounds_share: float | None = Field(None, gt=0, le=1)
    alternative: bool = False


class Target(_Spec):
    """The accuracy to reach: a number in percent, or the lowest final one among some arms."""

    accuracy: float | None = Field(None, gt=0, le=100)
    lowest_of: tuple[str, ...] = ()
    source: str


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
    of ``seed``, over as many ``rounds`` as are given for the scale or all. The value of the highest
    mean validation accuracy over the last five rounds (the first of equals) is every seed's.
    Nothing is tuned at a scale without values, or under a protocol that ``protocols`` leaves
    out."""

    setting: str | None = None
    rounds: dict[Scale, Count] = {}
    protocols: tuple[str, ...] = ()
    values: dict[Scale, Annotated[tuple[Any, ...], Field(min_length=1)]]
    seed: int = Field(ge=0)
    source: str


class Experiment(_Spec):
    """A table, a figure or a printed claim: what it needs and whether it can be run today.

    dataset: the protocol it follows; several by commas where it is run on each alike, the printed
    one first. kind: the quantity it prints (`quantities`); ``other``: a drawing, or words. arms_of:
    the experiment whose arms it reuses, except those of ``without``, or those of ``only`` alone.
    clients_each: by scale, clients in every domain: of the protocol's table, or of the data set
    where it has none. relative_to: the row to which values are ratios. named_only: scales at which
    it runs where it is named, and is no part of ``all``. rows: our data sets, and the printed row
    (or how it begins) their numbers stand in. compared: by data set, the (paper, table, column)
    whose order of methods stands beside ours. steps: by scale, gradient steps of kind
    ``inversion``. A blocked experiment runs where it is named and its data are there.
    """

    id: str
    dataset: str
    caption: str
    kind: str
    state: Literal["runs", "blocked"]
    reason: str = ""
    note: str = ""
    table: str | None = None
    arms: tuple[ArmSpec, ...] = ()
    arms_of: str | None = None
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    clients_each: dict[Scale, Count] = {}
    target: Target | None = None
    tuning: Tuning | None = None
    differences: tuple[Difference, ...] = ()
    relative_to: str | None = None
    named_only: tuple[Scale, ...] = ()
    rows: dict[str, str] = {}
    steps: dict[Scale, Count] = {}
    compared: dict[str, tuple[tuple[str, str, str], ...]] = {}

    @property
    def datasets(self) -> tuple[str, ...]:
        """The protocols it is run under."""
        return tuple(name.strip() for name in self.dataset.split(","))

    @property
    def can_run(self) -> bool:
        """Whether there is something to run, be it only with data that are not at hand."""
        return self.state == "runs" or self.kind != "other"


class ScaleSpec(_Spec):
    """How a scale departs from the paper: per protocol, or for a data set that is named alone,
    every changed setting with its source."""

    reason: str
    changes: dict[str, Settings]
