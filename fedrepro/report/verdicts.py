"""The rules that compare a published cell with re-run seeds, as printed and as applied."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean, stdev, variance
from typing import Any

import pandas as pd

from fedrepro.federated.metrics import ROUNDING
from fedrepro.papers import Paper
from fedrepro.quantities.accuracy import Noise, binomial, parts, target
from fedrepro.quantities.base import tested_images
from fedrepro.records import Record
from fedrepro.report.comparison import Compared, Word, compared
from fedrepro.report.results import Results
from fedrepro.report.text import CELL_KEYS, markdown

TOLERANCE = 2.0  # percentage points
TOLERANCES = {"percent": TOLERANCE, "percentage points": TOLERANCE, "fraction": TOLERANCE / 100}
LOWER_IS_BETTER = ("rounds", "GB", "MB", "hours", "seconds", "ratio", "MI score")
BESIDE_STANDIN = "trained beside a stand-in client"
ENOUGH = 4  # degrees of freedom of a pooled spread: two equal seeds alone would give a spread of 0
FOREIGN = "an average over other domains than the printed one"
Row = Mapping[str, Any]  # as from `Study.cells`
Place = tuple[str, str | None, str, str]  # data set, scale, method, column
COLUMNS = (*CELL_KEYS, "valid", "unit", "caveats", "standin", "counted", "authors", "contradicted")

RULES: tuple[tuple[Word, str], ...] = (
    ("not run", "no run of ours; the printed cell is still listed"),
    (
        "no verdict",
        "the run is at another scale than the paper's; the paper prints no number in this place; "
        "the column is a stand-in or a subset, or an average that contains one or has other "
        "domains than the printed one; the row was trained with earlier settings; the images are "
        "your own; or the number is the protocol's own input",
    ),
    ("counted equal", "counted, not trained: the printed number to its last digit"),
    ("counted unequal", "counted, and not the printed number"),
    ("agrees", "the 90 % interval of d lies within ±Δ (two one-sided tests)"),
    ("higher", "d > Δ, and p < 5 % after Benjamini and Hochberg's correction over the table"),
    ("lower", "d < −Δ, and the same"),
    ("close", "d is within ±Δ, and none of the above"),
    ("open", "the rest: these runs cannot tell"),
)


def rules_markdown() -> str:
    """The rules for the book, in the order in which they are tried."""
    table = markdown(("verdict", "when"), [(f"*{word}*", rule) for word, rule in RULES])
    return f"The first rule that applies gives the verdict.\n\n{table}"


def build_table(
    paper: Paper, table: str, rows: Iterable[Row], scales: Collection[str | None] | None = None
) -> pd.DataFrame:
    """One printed table with our runs, tidy: one row per cell and (data set, scale) with runs, with
    or without a printed number; then the printed cells without runs.

    rows: from `Study.cells` of the table's experiments, one per (method, column, seed), the value
    in the column's unit, None or NaN if there is none; ratios, also the published ones, for an
    experiment with ``relative_to``. scales: those to show; a verdict may need the spread of another
    one. standin: of a stand-in, or an average with one."""
    printed, cells = paper.table(table), _collect(paper, table, rows)
    shown = [cell for cell in cells if scales is None or cell.scale in scales]
    covered = {(cell.method, cell.column) for cell in shown}
    named = next((e.datasets for e in paper.experiments if e.table == table), ("",))
    of = {paper.column(table, name): name for name in named}  # a column may be of one data set
    missing = [
        _Cell(paper, table, (of.get(place[1], named[0]), None, *place), ())
        for place in product(printed.rows, printed.columns)
        if place not in covered
    ]
    _judge(paper.rule, cells + missing)
    lines = [vars(cell) | cell.printed for cell in shown + missing]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def beside(found: Results, experiment: str) -> pd.DataFrame:
    """The printed table of an experiment with our numbers."""
    table = found.paper.experiment(experiment).table or experiment
    scales = {study.scale for study, _ in found.studies}
    return build_table(found.paper, table, Results(found.every).cells(experiment), scales)


class _Cell:
    """A printed cell and ours: the attributes named in `COLUMNS`, and what they follow from. rows:
    one per seed. reached: the values there are. name: our column's. parts: as `cells` gives them,
    by row. refused: why it has no verdict. one_image: what one image moves it by."""

    def __init__(self, paper: Paper, table: str, place: Place, rows: Sequence[Row]) -> None:
        self.paper, self.table, self.row = paper, paper.table(table), place[:3]
        self.printed = _printed(paper, table, *place[2:])
        self.dataset, self.scale, self.method, self.column = place
        values = [row["value"] for row in rows if row["value"] is not None]
        self.reached = [value for value in values if not math.isnan(value)]
        self.seeds, self.valid = len(rows), len(self.reached)
        self.ours = fmean(self.reached) if self.reached else None
        self.ours_std = stdev(self.reached) if len(self.reached) > 1 else None
        last: Row = rows[-1] if rows else {}
        self.name = last.get("of", last.get("column", ""))
        self.one_image = last.get("one_image", 0.0)
        some = {key for row in rows for key, value in row.items() if value}
        self.counted = bool(some & {"counted", "given"})
        self.standin, self.alone = "standin" in some, "alone" in some
        self.caveats = tuple(dict.fromkeys(c for row in rows for c in row.get("caveats", ())))
        parts: list[list[tuple[float, Record]]] = [row["parts"] for row in rows if "parts" in row]
        self.parts = [*zip(*parts, strict=True)]
        reasons = {
            "it is the protocol's own input": "given" in some,
            "the images are your own": self.dataset.startswith("folder:"),
            "it was trained with earlier settings": "past" in some,
            "the column is a subset": "subset" in some,
        }
        self.refused = next(filter(reasons.get, reasons), "")
        self.verdict, self.why = "open", ""
        self.difference: float | None = None
        self.low: float | None = None
        self.high: float | None = None


def _collect(paper: Paper, table: str, rows: Iterable[Row]) -> list[_Cell]:
    """Our cells. With a stand-in column, the row's average is a stand-in too, and the others are
    marked; with a subset or a column that the paper does not print, the average has no verdict."""
    given: dict[Place, dict[int, Row]] = defaultdict(dict)
    for one in rows:
        column = paper.column(table, one["column"])
        place = one["dataset"], one["scale"], one["method"], column
        given[place][one["seed"]] = one  # the last one, where a run was repeated
    found = [_Cell(paper, table, place, [*seeds.values()]) for place, seeds in given.items()]
    for row in {cell.row for cell in found}:
        cells = [cell for cell in found if cell.row == row]
        beside = any(cell.standin for cell in cells)
        foreign = any(cell.column not in paper.table(table).columns for cell in cells)
        lesser = "an average with a subset" if any(cell.refused for cell in cells) else ""
        for cell in cells:
            if cell.column == "avg":
                cell.refused = cell.refused or (FOREIGN if foreign else lesser)
                cell.standin = cell.standin or beside
            elif beside and not cell.standin and not cell.alone:
                cell.caveats += (BESIDE_STANDIN,)
    return found


def _printed(paper: Paper, table: str, method: str, column: str) -> dict[str, Any]:
    """Printed mean, its decimals, its std if it is over trials, and unit; the number in the
    authors' files, and whether it contradicts the printed one. Where it is asked for, ratios."""
    printed, filed = paper.table(table), paper.filed
    found: dict[str, Any] = dict.fromkeys(("published", "published_std", "authors"))
    found |= {"paper": paper.name, "table": table, "unit": printed.unit_of(column)}
    found |= {"decimals": 0, "contradicted": False}
    if (cell := printed.cell(method, column)) is not None:
        found["published"] = cell.value
        found["published_std"] = cell.std if printed.std_over == "trials" else None
        found["decimals"] = len(cell.printed.partition("±")[0].partition(".")[2])
        if filed is not None:
            found["authors"] = filed.value(table, method, column)
            found["contradicted"] = filed.contradicts(table, method, column, cell.printed)
    if reference := next((e.relative_to for e in paper.experiments if e.table == table), None):
        bases = {"published": printed.values(column).get(reference)}
        bases["authors"] = filed.value(table, reference, column) if filed is not None else None
        for key, base in bases.items():
            found[key] = found[key] / base if found[key] is not None and base else None
        found |= {"published_std": None, "unit": "ratio"}
    return found


def _judge(rule: str, cells: Sequence[_Cell]) -> None:
    """Give every cell its difference, its verdict and the reason. rule: the score rule."""
    noise, tests = Noise(rule), defaultdict(list)
    for cell in cells:
        published, both = cell.printed["published"], _compared(cells, cell, noise)
        if both is not None:
            cell.low, cell.high = both.between()
        if cell.ours is not None and published is not None and cell.scale != "smoke":
            cell.difference = cell.ours - published
        if settled := _settled(cell):
            cell.verdict, cell.why = settled
        elif lost := cell.seeds - cell.valid:
            cell.why = f"{lost} of {cell.seeds} seeds have no value"
        elif both is None:
            cell.why = "no spread over seeds to compare with"
        else:
            tests[cell.dataset, cell.scale].append((cell, both))
    for group in tests.values():
        from scipy.stats import false_discovery_control  # a second's import; most tables have none

        adjusted = false_discovery_control([both.p for _, both in group])
        for (cell, both), p in zip(group, adjusted, strict=True):
            cell.verdict, cell.why = both.word(float(p))


def _compared(cells: Sequence[_Cell], cell: _Cell, noise: Noise) -> Compared | None:
    printed, known = cell.printed, TOLERANCES.get(cell.printed["unit"], 0.0)
    if printed["published"] is None or not cell.valid or cell.scale == "smoke" or cell.counted:
        return None
    reporting = cell.paper.reporting
    usable = "std_usable" not in reporting or reporting["std_usable"].value
    return compared(
        printed["published"],
        printed["published_std"] if usable else None,
        cell.table.trials or reporting["trials"].value,
        cell.reached,
        pooled=_pooled(cells, cell),
        images=_drawn(cell, noise) if known and cell.parts else 0.0,
        tolerance=max(known, cell.one_image) if known else 0.0,
    )


def _drawn(cell: _Cell, noise: Noise) -> float:
    """Variance over draws of test images, of our runs' mean and of the printed number together, in
    its unit; none where both test the same images. Of a gain by the delta method; how the paper's
    two accuracies are paired is not printed, and ours stands for it."""
    rows = [[run for _, run in part] for part in cell.parts]
    weights = [fmean(weight for weight, _ in part) for part in cell.parts]
    if target(rows[0][0]) is not None:  # a mean over runs that count for one domain each
        rows, weights = [[run for row in rows for run in row]], weights[:1]
    if rows[0][0].protocol.data.same_tests:
        return 0.0
    ours = noise.variance(rows, cell.name, weights)
    if len(rows) > 1:
        return 2 * ours
    images, whole = tested_images(rows[0][0]), weights[0]
    theirs = 0.0
    for domain, part in parts(rows[0][0], cell.name).items():
        column = cell.table.values(cell.paper.column(cell.table.id, domain))
        share = column.get(cell.method, cell.printed["published"]) / whole
        theirs += part**2 * binomial(share, images[domain])
    return ours + whole**2 * theirs


def _pooled(cells: Sequence[_Cell], cell: _Cell) -> tuple[float, float] | None:
    """Variance of one run and degrees of freedom, from all rows of a cell's column with at least
    two seeds: at its scale, and for an accuracy with few degrees of freedom at reduced too."""
    beside = [c for c in cells if (c.dataset, c.column) == (cell.dataset, cell.column)]
    seen, freedom = [], 0
    scales = (cell.scale, "reduced") if cell.printed["unit"] in TOLERANCES else (cell.scale,)
    for scale in dict.fromkeys(scales):
        if freedom < ENOUGH:
            seen += [c.reached for c in beside if c.scale == scale and c.valid > 1]
            freedom = sum(len(values) - 1 for values in seen)
    if not freedom:
        return None
    return sum(variance(v) * (len(v) - 1) for v in seen) / freedom, float(freedom)


def _settled(cell: _Cell) -> tuple[Word, str] | None:
    """The verdict if no test is needed, else None."""
    if not cell.seeds:
        return "not run", "no run of ours"
    said = "only tests the code" if cell.scale == "smoke" else "only the order of methods is read"
    reasons = {
        "the paper prints no number here": cell.printed["published"] is None,
        f"scale {cell.scale}: {said}": cell.scale != "paper",
        "the column is a stand-in, or an average that contains one": cell.standin,
        cell.refused: bool(cell.refused),
    }
    if refused := next(filter(reasons.get, reasons), ""):
        return "no verdict", refused
    if cell.counted and cell.valid:
        room = 0.5 * 10.0 ** -cell.printed["decimals"] + ROUNDING
        if cell.difference is not None and abs(cell.difference) <= room:
            return "counted equal", "the printed number to its last digit"
        return "counted unequal", "not the printed number"
    return None


def order(table: pd.DataFrame) -> pd.DataFrame:
    """The cells of a ``build_table`` frame that have both numbers, ours of all seeds, at any scale
    except smoke, with their rank in their column, ours and the paper's, from 1 for the best (ties
    share the mean rank); the number of methods, and their Kendall's tau-b (NaN for one, or if all
    tie)."""
    both = table[table.published.notna() & (table.scale != "smoke")]
    both = both[both.ours.notna() & (both.valid == both.seeds)]
    shown = [both.assign(**dict.fromkeys(("rank_ours", "rank_published", "methods", "tau")))]
    for _, group in both.groupby(["table", "dataset", "scale", "column"], sort=False):
        lower = bool(group.unit.isin(LOWER_IS_BETTER).all())
        ours = group.ours.astype(float).round(9).rank(ascending=lower)
        theirs = group.published.astype(float).rank(ascending=lower)
        tau = ours.corr(theirs, method="kendall") if len(group) > 1 else math.nan
        ranks = {"rank_ours": ours, "rank_published": theirs, "methods": len(group), "tau": tau}
        shown.append(group.assign(**ranks))
    return pd.concat(shown[1:] or shown, ignore_index=True)
