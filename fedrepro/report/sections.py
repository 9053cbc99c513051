"""A frame of `verdicts.build_table`, cut into what is printed or drawn together: one section per
data set and scale, with its methods, columns, caveats and formatted numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedrepro import papers
from fedrepro.base.errors import FedReproError
from fedrepro.report.verdicts import COLUMNS, order

MINUS, APART = "\u2212", "\u2260"
UNIT_SIGNS = {"percent": "%", "fraction": "0 to 1", "ratio": "ratio", "factor": "times"}
AXES = {
    "percent": "accuracy (%)",
    "fraction": "accuracy (fraction)",
    "rounds": "communication rounds",
    "GB": "traffic of one client (GB)",
    "hours": "time (hours)",
    "ratio": "time, as a ratio",
    "factor": "factor (times)",
}
_DECIMALS = {"percent": 1, "fraction": 3, "ratio": 2}
_STATEMENTS = {
    "smoke": "smoke: tests the code, not a result",
    "reduced": "reduced: order of methods only, no verdict on numbers",
    "paper": "paper: the paper's protocol",
}


@dataclass(frozen=True)
class Section:
    """Printed cells and our runs on one data set at one scale.

    scale: empty if nothing was run. cells: a row of the frame by (method, column); absent if
    neither side has a number. left_out: printed columns without a counterpart in our data.
    standins: columns that are a stand-in, or an average that contains one.
    """

    table: str
    dataset: str
    scale: str
    methods: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Mapping[str, Any]]
    left_out: tuple[str, ...]
    standins: frozenset[str]

    @property
    def bare(self) -> bool:
        """Whether no printed number belongs to these data."""
        return all(pd.isna(cell["published"]) for cell in self.cells.values())

    @property
    def filed(self) -> bool:
        """Whether the authors' own files have some of these cells."""
        return not self.bare and any(pd.notna(cell["authors"]) for cell in self.cells.values())

    @property
    def statement(self) -> str:
        """A text on what the numbers of the scale mean."""
        return _STATEMENTS.get(self.scale, "not run: printed numbers only")

    def unit(self, column: str) -> str:
        return next(str(cell["unit"]) for (_, c), cell in self.cells.items() if c == column)

    def heading(self, column: str) -> str:
        """A column's name, marked if it is a stand-in."""
        if column not in self.standins:
            return column
        return f"{column} ({'with ' if column == 'avg' else ''}stand-in)"

    def caveats(self) -> dict[str, str]:
        """Every deviation of the section, with its footnote letter."""
        clauses = [
            clause
            for method in self.methods
            for column in self.columns
            for clause in self.cells.get((method, column), {}).get("caveats", ())
        ]
        return {clause: _letter(i) for i, clause in enumerate(dict.fromkeys(clauses))}

    def ranks(self) -> pd.DataFrame:
        """`verdicts.order` of the section, indexed by (method, column)."""
        return order(pd.DataFrame(list(self.cells.values()))).set_index(["method", "column"])


def _letter(index: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    head = _letter(index // 26 - 1) if index >= 26 else ""
    return head + chr(ord("a") + index % 26)


def sections(frame: pd.DataFrame) -> list[Section]:
    """One section per (data set, scale) with runs; one with only printed cells if there is none.

    FedReproError: no cells, other columns than `build_table` gives, or more than one table.
    """
    missing = [name for name in COLUMNS if name not in frame.columns]
    if frame.empty or missing:
        what = f"it lacks {', '.join(missing)}" if missing and not frame.empty else "it is empty"
        raise FedReproError(f"no cells in this table ({what}); give a frame of build_table")
    tables = list(dict.fromkeys(frame.table))
    if len(tables) > 1:
        raise FedReproError(f"cells of {', '.join(tables)} in one frame; give one table at a time")
    ran = frame.dropna(subset="scale").groupby(["dataset", "scale"], sort=False)
    found = [_section(_completed(frame, own), scale) for (_, scale), own in ran]
    return found or [_section(frame, "")]


def _completed(frame: pd.DataFrame, ran: pd.DataFrame) -> pd.DataFrame:
    """A section's own cells, then the printed cells it did not run, as *not run*."""
    have = set(zip(ran.method, ran.column, strict=True))
    absent = [key not in have for key in zip(frame.method, frame.column, strict=True)]
    rest = frame[absent].drop_duplicates(["method", "column"])
    blank = dict.fromkeys(("ours", "ours_std", "difference", "low", "high"))
    blank |= {"seeds": 0, "verdict": "not run", "why": "no run of ours", "earlier": "not run"}
    blank |= {"standin": False}
    rest = rest[rest.published.notna()].astype(object).assign(**blank)
    rest["caveats"] = [()] * len(rest)
    return pd.DataFrame([*ran.to_dict("records"), *rest.to_dict("records")], columns=list(COLUMNS))


def _section(frame: pd.DataFrame, scale: str) -> Section:
    rows: list[dict[str, Any]] = frame.to_dict("records")
    # In the paper's order, then what it does not print; an average last.
    table, present = papers.load(rows[0]["paper"]).table(rows[0]["table"]), set(frame.column)
    methods = dict.fromkeys([*table.methods, *frame.method])
    order = dict.fromkeys([*table.columns, *frame.column])
    columns = [c for c in order if c in present and c != "avg"] + ["avg"] * ("avg" in present)
    printed = {row["column"] for row in rows if pd.notna(row["published"])}
    ran = {row["column"] for row in rows if row["seeds"]}
    # Other domains than the paper's: its own columns would be empty.
    foreign = bool(ran - printed - {"avg"})
    left_out = tuple(c for c in columns if foreign and c not in ran)
    kept = tuple(c for c in columns if c not in left_out)
    if foreign:  # an average over other domains is another number
        rows = [row | {"published": None, "published_std": None} for row in rows]
    cells = {(row["method"], row["column"]): row for row in rows if row["column"] in kept}
    return Section(
        table=str(rows[0]["table"]),
        dataset=str(rows[0]["dataset"]),
        scale=scale,
        methods=tuple(m for m in methods if m in {method for method, _ in cells}),
        columns=kept,
        cells=cells,
        left_out=left_out,
        standins=frozenset(row["column"] for row in rows if row["standin"]),
    )


def number(value: Any, unit: str, signed: bool = False) -> str:
    """A value as text: decimals by unit, a true minus sign, an en dash if there is none. In units
    without fixed decimals small values keep two significant digits."""
    if value is None or pd.isna(value):
        return "–"
    value = float(value)
    if unit in _DECIMALS:
        decimals = _DECIMALS[unit]
    elif value == round(value) or abs(value) >= 100:
        decimals = 0
    elif abs(value) < 0.005:
        decimals = 1 - math.floor(math.log10(abs(value)))
    else:
        decimals = 1 if abs(value) >= 10 else 2
    rounded = round(value, decimals) + 0.0  # no minus sign before a zero
    sign = "+" if signed and rounded else ""
    return f"{rounded:{sign}.{decimals}f}".replace("-", MINUS)


def spread(mean: Any, std: Any, unit: str) -> str:
    """``87.9 ± 0.4``, without the second part if there is no deviation."""
    text = number(mean, unit)
    return text if std is None or pd.isna(std) else f"{text} ± {number(std, unit)}"
