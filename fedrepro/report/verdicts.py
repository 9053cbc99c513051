"""The rules that compare a published cell with re-run seeds, as the book prints them, and their
application."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev, variance
from typing import Any

import pandas as pd

from fedrepro.papers import Paper, contradicts
from fedrepro.quantities.noise import Noise
from fedrepro.quantities.paper_run import Study
from fedrepro.records import Record
from fedrepro.report.comparison import Compared, Word, compared, drawn, earlier, last_digit
from fedrepro.report.results import Results
from fedrepro.report.text import markdown

TOLERANCE = 2.0  # percentage points
TOLERANCES = {"percent": TOLERANCE, "fraction": TOLERANCE / 100}  # by unit; other units have none
LOWER_IS_BETTER = ("rounds", "GB", "MB", "hours", "seconds", "ratio", "MI score")
BESIDE_STANDIN = "trained beside a stand-in client"
ENOUGH = 4  # degrees of freedom of a pooled spread: two equal seeds alone would give a spread of 0
FOREIGN = "an average over other domains than the printed one"
COLUMNS = (
    *("paper", "table", "dataset", "method", "column", "published", "published_std"),
    *("ours", "ours_std", "seeds", "scale", "verdict", "why", "earlier"),
    *("difference", "low", "high", "unit", "caveats", "standin", "authors", "contradicted"),
)
ORDER_COLUMNS = (
    *("paper", "table", "dataset", "scale", "column", "method"),
    *("rank_ours", "rank_published", "methods", "tau"),
)

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
NOTES: tuple[str, ...] = (
    "d is the mean of our seeds minus the printed number, under the score rule the paper used; "
    "if the paper does not name its rule, under the rule on the protocol page.",
    f"Δ is {TOLERANCE:g} percentage points, or one test image if that is more. Other units "
    "(rounds, traffic, time) have no Δ: there is no *agrees* and no *close*.",
    "The error of d has four parts, added in variance: our seeds, the paper's trials, and on both "
    "sides the draw of the test images. Degrees of freedom are Welch's and Satterthwaite's.",
    "The paper's spread is its printed standard deviation over trials, where that is usable; else "
    "ours stands for it, over the paper's number of trials. FedPall's ablations are one trial.",
    "One seed has no spread: it takes that of the other rows with two seeds or more in the same "
    f"column of the table. If these have fewer than {ENOUGH} degrees of freedom, those at scale "
    "reduced are added. The cell then shows n=1.",
    "The test images' part is p(1-p)/N on each side. Ours is that of the mean of all seeds, image "
    "by image from the recorded predictions where they are kept. The paper's takes p from the "
    "printed accuracy and N from our test images, for the protocol fixes N; of an average, it adds "
    "up those of the printed domains (with the average as p where they are not printed). Where a "
    "split gives everyone the same test images there is none.",
    "A deviation that can move a number (a stand-in client beside it, smaller source images) does "
    "not refuse the verdict: it is printed with it as a caveat.",
    "A run whose training diverged has no number: its row stays, with the seed and the round as a "
    "caveat, and is open.",
    "Runs at scale reduced are read by the order of the methods only: our ranks beside the paper's "
    "with Kendall's tau, per column.",
    "These rules replace older ones since 2026-11-23. When they were written, one run at scale "
    "paper was known (ADCOL's Table 4, training alone, seed 0). `fedrepro verdicts --json` gives "
    "the word of the older rules as `earlier`, for one release. Changed on 2026-11-24, with four "
    "runs known: the paper's side takes p from the printed accuracy, a table may have trials of "
    f"its own, and the pool of one seed has {ENOUGH} degrees of freedom or more.",
)


def rules_markdown() -> str:
    """The rules for the book, in the order in which they are tried."""
    table = markdown(("verdict", "when"), [(f"*{word}*", rule) for word, rule in RULES])
    notes = "".join(f"- {note}\n" for note in NOTES)
    return f"The first rule that applies gives the verdict.\n\n{table}\n{notes}"


def build_table(paper: Paper, table: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One printed table with our runs, tidy: one row per cell and (data set, scale) with runs.

    rows: from `Study.cells`, one per (method, column, seed), the value in the column's unit, None
    or NaN if there is none; those whose ``table`` names another table are left out. For an
    experiment with ``relative_to`` values are ratios to that row, and so are the published ones.

    Published cells without a run of ours come last with verdict *not run*; our rows without a
    printed cell keep their numbers with verdict *no verdict*. standin: the column is a stand-in, or
    an average that contains one. earlier: the word of the rules before today's.
    """
    cells = _collect(paper, table, rows)
    covered = {(cell.method, cell.column) for cell in cells}
    dataset = next((e.dataset for e in paper.experiments if e.table == table), "")
    cells += [
        _Cell(dataset, "", row.method, column)
        for row in paper.table(table).rows
        for column in paper.table(table).columns
        if (row.method, column) not in covered
    ]
    for cell in cells:
        cell.printed = _printed(paper, table, cell.method, cell.column)
    _judge(paper, table, cells)
    return pd.DataFrame([_row(paper, table, cell) for cell in cells], columns=list(COLUMNS))


def beside(found: Study | Results, experiment: str) -> pd.DataFrame:
    """The printed table of an experiment with the numbers of one seed, or of several."""
    table = found.paper.experiment(experiment).table or experiment
    rows = [{**row, "table": table} for row in found.cells(experiment)]
    return build_table(found.paper, table, rows)


@dataclass
class _Cell:
    """A printed cell and ours. values: by seed, NaN where it has none. name: our column's. standin:
    its data, or those of an average. refused: why it has no verdict. foreign: because it averages
    other domains. runs: of accuracies at scale paper. one_image: what one image moves it by."""

    dataset: str
    scale: str
    method: str
    column: str
    values: dict[int, float] = field(default_factory=dict)
    name: str = ""
    standin: bool = False
    alone: bool = False
    caveats: tuple[str, ...] = ()
    counted: bool = False
    refused: str = ""
    foreign: bool = False
    runs: tuple[Record, ...] = ()
    one_image: float = 0.0
    printed: dict[str, Any] = field(default_factory=dict)
    verdict: Word = "open"
    why: str = ""
    both: Compared | None = None

    @property
    def valid(self) -> list[float]:
        return [value for value in self.values.values() if not math.isnan(value)]

    @property
    def row(self) -> tuple[str, str, str]:
        return self.dataset, self.scale, self.method


def _collect(paper: Paper, table: str, rows: Iterable[Mapping[str, Any]]) -> list[_Cell]:
    """Our cells. With a stand-in column, the row's average is a stand-in too; with a subset or a
    column that the paper does not print, the average has no verdict. The other columns of a row
    with a stand-in are marked."""
    given: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row.get("table", table) == table:
            column = paper.column(table, row["column"]) or row["column"]
            given[row["dataset"], row["scale"], row["method"], column].append(row)
    cells = [_Cell(*place, **_facts(seeds)) for place, seeds in given.items()]
    beside = {cell.row for cell in cells if cell.standin}
    lesser = {cell.row: "an average with a subset" for cell in cells if cell.refused}
    printed = paper.table(table).columns
    foreign = {cell.row for cell in cells if cell.column not in printed}
    lesser |= dict.fromkeys(foreign, FOREIGN)
    for cell in cells:
        if cell.column == "avg":
            cell.foreign = not cell.refused and cell.row in foreign
            cell.refused = cell.refused or lesser.get(cell.row, "")
            cell.standin = cell.standin or cell.row in beside
        elif cell.row in beside and not cell.standin and not cell.alone:
            cell.caveats += (BESIDE_STANDIN,)
    return cells


def _facts(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is known of a cell from its rows, one per seed."""
    row, refused = seeds[-1], ""
    if row.get("given"):
        refused = "it is the protocol's own input"
    elif row["dataset"].startswith("folder:"):
        refused = "the images are your own"
    elif any(seed.get("past") for seed in seeds):
        refused = "it was trained with earlier settings"
    elif any(seed.get("subset") for seed in seeds):
        refused = "the column is a subset"
    return {
        "values": {s["seed"]: math.nan if s["value"] is None else s["value"] for s in seeds},
        "name": row["column"],
        "standin": any(seed.get("standin") for seed in seeds),
        "alone": any(seed.get("alone") for seed in seeds),
        "caveats": tuple(dict.fromkeys(c for seed in seeds for c in seed.get("caveats", ()))),
        "counted": bool(row.get("counted") or row.get("given")),
        "refused": refused,
        "runs": tuple(seed["run"] for seed in seeds if "run" in seed),
        "one_image": row.get("one_image", 0.0),
    }


def _printed(paper: Paper, table: str, method: str, column: str) -> dict[str, Any]:
    """Printed mean, its decimals, its std if it is over trials, and unit; the number in the
    authors' own files, and whether it contradicts the printed one. Ratios if the experiment has
    ratios."""
    printed, filed = paper.table(table), paper.filed
    found: dict[str, Any] = dict.fromkeys(("published", "published_std", "authors"))
    found |= {"unit": printed.unit_of(column), "decimals": 0, "contradicted": False}
    if (cell := printed.cell(method, column)) is not None:
        found["published"] = cell.value
        found["published_std"] = cell.std if printed.std_over == "trials" else None
        found["decimals"] = len(cell.printed.partition("±")[0].partition(".")[2])
        if filed is not None:
            found["authors"] = filed.value(table, method, column)
            found["contradicted"] = contradicts(found["authors"], cell.printed)
    own = (e.relative_to for e in paper.experiments if e.table == table)
    if reference := next(own, None):
        base = printed.cell(reference, column)
        filed_base = filed.value(table, reference, column) if filed is not None else None
        found |= {"published_std": None, "unit": "ratio"}
        found["published"] = _ratio(found["published"], base.value if base is not None else None)
        found["authors"] = _ratio(found["authors"], filed_base)
    return found


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _judge(paper: Paper, table: str, cells: Sequence[_Cell]) -> None:
    """Give every cell its verdict, the reason, and the comparison behind it, if any."""
    noise, tests = Noise(paper.rule), defaultdict(list)
    for cell in cells:
        cell.both = both = _compared(paper, table, cells, cell, noise)
        lost = len(cell.values) - len(cell.valid)
        if settled := _settled(cell):
            cell.verdict, cell.why = settled
        elif both is None:
            cell.verdict, cell.why = "open", "one run, and no spread of others to compare with"
        elif lost:
            cell.verdict, cell.why = "open", f"{lost} of {len(cell.values)} seeds have no value"
        else:
            tests[cell.dataset, cell.scale].append((cell, both))
    for group in tests.values():
        from scipy.stats import false_discovery_control  # a second's import; most tables have none

        adjusted = false_discovery_control([both.p for _, both in group])
        for (cell, both), p in zip(group, adjusted, strict=True):
            cell.verdict, cell.why = both.word(float(p))


def _compared(
    paper: Paper, table: str, cells: Sequence[_Cell], cell: _Cell, noise: Noise
) -> Compared | None:
    printed, known = cell.printed, TOLERANCES.get(cell.printed["unit"], 0.0)
    if printed["published"] is None or not cell.valid or cell.scale == "smoke" or cell.counted:
        return None
    usable = "std_usable" not in paper.reporting or paper.reporting["std_usable"].value
    images, theirs = 0.0, 0.0
    if known and cell.runs:
        images, theirs = drawn(paper, table, cell.method, cell.name, cell.runs, noise)
    return compared(
        printed["published"],
        printed["published_std"] if usable else None,
        paper.table(table).trials or _trials(paper) or 1,
        cell.valid,
        pooled=_pooled(cells, cell),
        images=images,
        theirs=theirs,
        tolerance=max(known, cell.one_image) if known else 0.0,
    )


def _pooled(cells: Sequence[_Cell], cell: _Cell) -> tuple[float, float] | None:
    """Variance of one run and degrees of freedom, from the rows of a cell's column with at least
    two seeds: at its scale, and with few degrees of freedom at scale reduced too."""
    beside = [c for c in cells if (c.dataset, c.column) == (cell.dataset, cell.column)]
    seen, freedom = [], 0
    for scale in dict.fromkeys((cell.scale, "reduced")):
        if freedom < ENOUGH:
            seen += [c.valid for c in beside if c.scale == scale and len(c.valid) > 1]
            freedom = sum(len(values) - 1 for values in seen)
    if not freedom:
        return None
    return sum(variance(v) * (len(v) - 1) for v in seen) / freedom, float(freedom)


def _settled(cell: _Cell) -> tuple[Word, str] | None:
    """The verdict if no test is needed, else None."""
    printed, scale = cell.printed, cell.scale
    if not cell.values:
        return "not run", "no run of ours"
    if printed["published"] is None:
        return "no verdict", "the paper prints no number here"
    if scale != "paper":
        said = "only tests the code" if scale == "smoke" else "only the order of methods is read"
        return "no verdict", f"scale {scale}: {said}"
    if cell.standin:
        return "no verdict", "the column is a stand-in, or an average that contains one"
    if cell.refused:
        return "no verdict", cell.refused
    if cell.counted and cell.valid:
        if abs(fmean(cell.valid) - printed["published"]) <= last_digit(printed["decimals"]):
            return "counted equal", "the printed number to its last digit"
        return "counted unequal", "not the printed number"
    return None


def _trials(paper: Paper) -> int | None:
    trials = paper.reporting.get("trials")
    return int(trials.value) if trials is not None else None


def _row(paper: Paper, table: str, cell: _Cell) -> dict[str, Any]:
    """A line of `build_table`."""
    other = cell.standin or cell.foreign
    seeds, printed = list(cell.values.values()), cell.printed
    ours = fmean(cell.valid) if cell.valid else None
    compares = ours is not None and printed["published"] is not None and cell.scale != "smoke"
    low, high = cell.both.between() if cell.both is not None else (None, None)
    facts: dict[str, Any] = {"scale": cell.scale, "standin": other, "counted": cell.counted}
    return {
        "paper": paper.name,
        "table": table,
        "dataset": cell.dataset,
        "method": cell.method,
        "column": cell.column,
        "ours": ours,
        "ours_std": stdev(cell.valid) if len(cell.valid) > 1 else None,
        "seeds": len(seeds),
        "scale": cell.scale or None,
        "verdict": cell.verdict,
        "why": cell.why,
        "earlier": earlier(printed, _trials(paper), seeds, **facts),
        "difference": ours - printed["published"] if compares else None,
        "low": low,
        "high": high,
        "caveats": cell.caveats,
        "standin": cell.standin,
        **printed,
    }


def order(table: pd.DataFrame) -> pd.DataFrame:
    """The order of the methods, ours and the paper's, per column of a ``build_table`` frame.

    Ranks start at 1 for the best (ties share the mean rank); only methods with both numbers count.
    tau: Kendall's tau-b over them, NaN below two methods or if all tie. Any scale except smoke.
    """
    both = table[table.ours.notna() & table.published.notna() & (table.scale != "smoke")]
    shown = [pd.DataFrame(columns=list(ORDER_COLUMNS))]
    for _, group in both.groupby(["table", "dataset", "scale", "column"], sort=False):
        lower = bool(group.unit.isin(LOWER_IS_BETTER).all())
        ours = group.ours.astype(float).round(9).rank(ascending=lower)
        theirs = group.published.astype(float).rank(ascending=lower)
        tau = ours.corr(theirs, method="kendall") if len(group) > 1 else math.nan
        ranked = group.assign(rank_ours=ours, rank_published=theirs, methods=len(group), tau=tau)
        shown.append(ranked[list(ORDER_COLUMNS)])
    return pd.concat(shown[1:] or shown, ignore_index=True)
