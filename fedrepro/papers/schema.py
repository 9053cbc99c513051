"""A paper in the project's own form: ``<name>.yaml``, ``<name>.tables.yaml`` (the printed tables,
digit for digit), and ``<name>.authors.yaml`` if the authors publish more. Types are checked when a
file is read; `tests/papers` tests that the parts fit together."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field

from fedrepro.base.protocol import Scale, Status

Count = Annotated[int, Field(ge=1)]
APART = 0.51  # units of a printed number's last digit: a rounding, and the file's own rounding


class _Spec(BaseModel, frozen=True, extra="forbid"): ...


class Cell(NamedTuple):
    """One printed cell: the text as printed, its mean, its std (None if absent)."""

    printed: str
    value: float | None
    std: float | None


def parse_cell(printed: str) -> Cell:
    """Read ``87.9±0.4``, ``87.9`` or ``-`` (no number). ValueError on anything else."""
    mean, mark, std = printed.partition("±")
    return Cell(printed, None if printed == "-" else float(mean), float(std) if mark else None)


def _cells(raw: Any) -> Any:
    return tuple(map(parse_cell, raw.split())) if isinstance(raw, str) else raw


class Table(_Spec):
    """A printed table or a block of it, or numbers of a figure or of prose. rows: by method (or
    setting), the cells in the order of the columns. unit: of columns not in ``units``. std_over:
    only a std over trials can enter an interval. trials: of its numbers, if not the paper's."""

    id: str
    unit: str
    units: dict[str, str] = {}
    source: Literal["table", "figure", "prose"] = "table"
    std_over: Literal["trials", "parties", "sources"] = "trials"
    trials: Count | None = None
    setting: str = ""
    notes: str = ""
    columns: tuple[str, ...]
    rows: dict[str, Annotated[tuple[Cell, ...], BeforeValidator(_cells)]]

    def cell(self, method: str, column: str) -> Cell | None:
        """The printed cell, None if the table has no such row or column."""
        return dict(zip(self.columns, self.rows.get(method, ()), strict=False)).get(column)

    def values(self, column: str) -> dict[str, float]:
        """The printed numbers of a column by row."""
        cells = ((method, self.cell(method, column)) for method in self.rows)
        return {method: c.value for method, c in cells if c and c.value is not None}

    def unit_of(self, column: str) -> str:
        return self.units.get(column, self.unit)


class Domains(_Spec):
    """Accuracy in percent by row and domain."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]


class Authors(_Spec):
    """Numbers from the public files of a paper's authors. values: by table, row and column, in the
    printed unit. test_sizes: images, by data set. estimated: tables whose numbers are computed with
    estimated weights, so that a small difference says nothing."""

    repository: str
    test_sizes: dict[str, tuple[int, ...]]
    values: dict[str, dict[str, dict[str, float]]]
    domains: dict[str, Domains] = {}
    estimated: tuple[str, ...] = ()

    def value(self, table: str, row: str, column: str) -> float | None:
        """The files' number for a printed cell, None if there is none."""
        return self.values.get(table, {}).get(row, {}).get(column)

    def contradicts(self, table: str, row: str, column: str, printed: str) -> bool:
        """Whether the printed number is not a rounding of the files' one."""
        value, mean = self.value(table, row, column), printed.partition("±")[0]
        if value is None or mean == "-" or table in self.estimated:
            return False
        return abs(value - float(mean)) > APART * 10.0 ** -len(mean.partition(".")[2])


class Setting(_Spec):
    """One value and its source. text, code: what those say of it where the source is another."""

    value: Any
    source: str = Field(min_length=5)
    status: Status
    text: str = ""
    code: str = ""
    alternatives: tuple[Any, ...] = ()


Settings = dict[str, Setting]


class DatasetSpec(_Spec):
    """A data set: whose protocol it follows and what must change. caveat: printed beside every
    number, where the change can move it. in_paper: whether the paper has it, or it stands in for
    one that the paper has; only such answer its claims."""

    protocol: str
    changes: Settings = {}
    caveat: str = ""
    added: bool = False
    in_paper: bool = True


class Tested(_Spec):
    """The basis of printed accuracies: test images by printed column, and the number of evaluations
    in a printed mean (trials, times the rounds of the score rule)."""

    tables: tuple[str, ...]
    images: dict[str, int]
    evaluations: int = Field(ge=1)
    source: str
    status: Status = "inferred"


class Comparison(_Spec):
    """One test of a claim: in an experiment, the row ``better`` is better than others.
    than: those rows; ``all``: every other except second readings. against: the experiment of the
    others, if it is another. dataset: only if a data set follows this protocol.
    by: the column; ``each``: every domain's; ``only``: the only one; several: names of one number.
    kind: another quantity of the same runs, such as ``pace``. margin: better by more than this; a
    negative one allows a loss. above: a number to be above (below if ``lower``), instead of other
    rows. lower: less is better. printed: a lead that only the text prints. paper_only: a small
    network cannot answer it, such as claims about bytes."""

    experiment: str
    better: str
    than: tuple[str, ...] | Literal["all"] = "all"
    against: str = ""
    dataset: str = ""
    by: str | tuple[str, ...] = "avg"
    kind: str = ""
    margin: float = 0.0
    above: float | None = None
    printed: float | None = None
    lower: bool = False
    paper_only: bool = False


class Claim(_Spec):
    """A claim of the paper, in our words, and its tests. main, short: a short form, of a main claim
    or of another. experiments: where the paper shows it, if no test names that; tests: what answers
    it; untested: why nothing does."""

    id: str
    main: str = ""
    short: str = ""
    claim: str
    where: str
    experiments: tuple[str, ...] = ()
    tests: tuple[Comparison, ...] = ()
    untested: str = ""

    @property
    def name(self) -> str:
        return self.main or self.short or self.claim


class ArmSpec(_Spec):
    """One curve of an experiment. label: its row in the printed table. Changes of the protocol,
    later ones winning: ``rounds_share`` of the rounds, ``everywhere``, ``where`` by data set,
    ``scales``. tuned: the method's fields that get a tuned value, instead of the protocol's
    setting. constant: one field of the method, and the values tried instead of its own after the
    protocol's setting is tuned. clients_each: clients in every domain. row, column: the printed
    place of the mean accuracy in kind ``grid``; by default the label and the first column.
    alternative: a second reading of the paper, without a row in its table."""

    label: str
    method: str
    fields: dict[str, Any] = {}
    everywhere: dict[str, Any] = {}
    where: dict[str, dict[str, Any]] = {}
    scales: dict[Scale, dict[str, Any]] = {}
    tuned: tuple[str, ...] = ()
    constant: dict[str, tuple[float, ...]] = Field({}, max_length=1)
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
    """A printed row of kind ``differences``: the accuracy in percent of the arm ``of`` on one data
    set, minus that of ``minus``, if given. column: a domain, ``avg``, or ``largest`` of them."""

    row: str
    dataset: str
    of: str
    minus: str | None = None
    column: str = "avg"


class Tuning(_Spec):
    """A budget of trials, the same for every arm. ``setting`` of the protocol, or an arm's
    ``tuned`` fields (only those if it is None), gets each of the scale's values in runs of
    ``seed``, with the scale's ``rounds``, or all. The value with the highest mean validation
    accuracy over the last five rounds (the first of equals) is used for every seed. With it, each
    arm's ``constant`` gets its values, at the scales of ``constants``. Nothing is tuned at a scale
    without values."""

    setting: str | None = None
    rounds: dict[Scale, Count] = {}
    constants: tuple[Scale, ...] = ()
    values: dict[Scale, Annotated[tuple[Any, ...], Field(min_length=1)]]
    seed: int = Field(ge=0)
    source: str


class Experiment(_Spec):
    """A table, a figure or a printed claim. A blocked one runs if it is named and has its data.
    dataset: its protocol; several, separated by commas, if it runs on each, the printed one first.
    kind: the printed quantity (`quantities`); ``other``: a drawing, or words. arms_of: the
    experiment whose arms it reuses, except those of ``without``, or only those of ``only``.
    clients_each: by scale, clients in every domain. relative_to: the row to which values are
    ratios. named_only: scales at which it is no part of ``all``. rows: our data sets, and the
    printed row (or its beginning) of their numbers. compared: by data set, the (paper, table,
    column) whose order of methods is compared with ours. steps: of kind ``inversion``, by scale."""

    id: str
    dataset: str
    caption: str
    kind: str
    state: Literal["runs", "blocked"] = "runs"
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
        """The protocols it runs under."""
        return tuple(name.strip() for name in self.dataset.split(","))

    @property
    def can_run(self) -> bool:
        """Whether there is something to run, even if the data are not available."""
        return self.state == "runs" or self.kind != "other"


class ScaleSpec(_Spec):
    """How a scale differs from the paper: by protocol or data set, each changed setting."""

    reason: str
    changes: dict[str, Settings]
