"""What the command line shows: aligned columns, JSON, one line for each notebook of a sweep."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

if TYPE_CHECKING:
    import pandas as pd

    from fedrepro.execute import Outcome
    from fedrepro.quantities.paper_run import Study

# Keys of the objects that --json prints: other tools read them.
METHOD_KEYS = ("name", "paper", "fields")
EXPERIMENT_KEYS = ("paper", "id", "dataset", "caption", "state", "reason")
CELL_KEYS = (
    *("paper", "table", "dataset", "method", "column", "published", "published_std"),
    *("ours", "ours_std", "seeds", "scale", "verdict", "why"),
)


def aligned(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns aligned on the left, two spaces apart."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_json(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """One JSON list of objects with these keys; numbers that are none become null."""
    plain = [{key: _plain(row[key]) for key in keys} for row in rows]
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar, as pandas hands them out
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def result(study: Study, experiment: str) -> str:
    """One experiment's numbers beside the paper's, with verdicts; without a printed table, ours
    alone. Trains what the store lacks."""
    from fedrepro.report.tables import plain
    from fedrepro.report.verdicts import beside

    spec, rows = study.paper.experiment(experiment), study.cells(experiment)
    title = f"{study.paper.short} {experiment}: {spec.caption} (seed {study.seed})"
    if spec.table is None or not rows:
        unit = "ratio" if spec.kind in ("prototypes", "inversion") else "percent"
        return f"{title}\n{_ours_only(rows, unit)}\n"
    return f"{plain(beside(study, experiment), title)}\n"


def _ours_only(rows: Sequence[Mapping[str, Any]], unit: str) -> str:
    from fedrepro.quantities.cells import wide
    from fedrepro.report.sections import number

    if not rows:
        return "no number: the runs that its target is taken from are not all there"
    table: pd.DataFrame = wide([dict(row) for row in rows])
    lines = [
        (str(label), *(number(value, unit) for value in values))
        for label, values in zip(table.index, table.to_numpy(float), strict=True)
    ]
    return aligned(("method", *map(str, table.columns)), lines)


def published_cells(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Every printed cell of every paper with our numbers from the executed notebooks in the
    folders (those that exist); a cell appears once for each data set and scale it was run at. Keys
    are `build_table`'s columns."""
    from fedrepro import papers
    from fedrepro.report.scraps import Collected, collect
    from fedrepro.report.verdicts import build_table

    found = [book for folder in folders if folder.is_dir() for book in collect(folder).notebooks]
    rows: list[dict[str, Any]] = []
    for name in papers.list():
        paper = papers.load(name)
        shown = {e.id: e.table for e in paper.experiments}
        ours = [
            {**cell, "table": shown.get(cell["table"])}
            for book in Collected(found).where(paper=name).notebooks
            for cell in book["cells"]
        ]
        for table in paper.tables:
            for row in build_table(paper, table.id, ours).to_dict(orient="records"):
                if table.cell(row["method"], row["column"]) is not None:
                    rows.append(_plain(row))
    return rows


def cell_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of `published_cells` as text."""
    from fedrepro.report.sections import spread

    header = ("paper", "table", "dataset", "method", "column")
    lines = [
        (
            *(row[key] for key in header),
            spread(row["published"], row["published_std"], row["unit"]),
            spread(row["ours"], row["ours_std"], row["unit"]),
            str(row["seeds"]),
            row["scale"] or "–",
            row["verdict"],
            row["why"],
        )
        for row in rows
    ]
    return aligned((*header, "paper's", "ours", "seeds", "scale", "verdict", "why"), lines)


class SweepReport:
    """Told of each notebook as it ends: a bar on a terminal, else a line each, both on standard
    error. `ended` counts them."""

    def __init__(self, total: int) -> None:
        self.ended, self._total = 0, total
        self._bar = tqdm(total=total, unit="notebook") if sys.stderr.isatty() else None

    def __call__(self, outcome: Outcome) -> None:
        self.ended += 1
        if self._bar is not None:
            self._bar.set_postfix_str(f"{outcome.job.output.stem} {outcome.state}", refresh=False)
            self._bar.update(1)
            return
        line = f"{self.ended}/{self._total}  {outcome.job.output.stem}  {outcome.state}"
        print(f"{line}  {outcome.seconds:.1f} s", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def summary(outcomes: Sequence[Outcome]) -> str:
    """A row a notebook, then a line for each that failed."""
    header = ("paper", "dataset", "seed", "state", "seconds", "mean accuracy", "notebook")
    rows = [
        (
            o.job.paper,
            o.job.dataset,
            str(o.job.seed),
            o.state,
            f"{o.seconds:.1f}",
            o.score or "-",
            str(o.path or "-"),
        )
        for o in outcomes
    ]
    failed = [f"failed: {o.job.output.stem}: {o.reason}" for o in outcomes if o.state == "failed"]
    return "\n".join([aligned(header, rows), *failed])
