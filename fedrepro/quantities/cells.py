"""Our numbers of one experiment as rows, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedrepro.base.errors import Diverged
from fedrepro.federated import metrics
from fedrepro.papers import Arm
from fedrepro.quantities.base import Asked, Result, get

Row = dict[str, Any]


def cells(asked: Asked, diverged: Sequence[tuple[Arm, Diverged]] = ()) -> list[Row]:
    """Rows with keys table, method, column, value, standin, marks, alternative, alone, counted.

    An arm whose training diverged has no value, and why, in each column the others have; printed
    rows that are not one arm each (a ratio of two, say) get none.
    """
    kind = get(asked.experiment.kind)
    plain = {"standin": False, "marks": [], "alternative": False, "counted": kind.counted}
    by_label = {result.label: result for result in asked.results}
    rows: list[Row] = []
    for method, column, value, *more in kind.values(asked):
        place = {"table": asked.experiment.id, "method": method, "column": column, "value": value}
        result = by_label.get(method)
        known = _of_run(result or asked.results[0], column) if asked.results else {}
        alone = not asked.results or bool(result and not metrics.traffic(result.record.curve).size)
        known["alternative"] = bool(result and result.arm.alternative)
        rows.append({**place, **plain, "alone": alone, **known, **(more[0] if more else {})})
    columns = list(dict.fromkeys(row["column"] for row in rows))
    for arm, end in diverged if kind.per_arm else ():
        for column in [arm.column] if arm.column else columns:
            place = {"table": asked.experiment.id, "method": arm.row or arm.label, "column": column}
            standin = any(row["standin"] for row in rows if row["column"] == column)
            marks = [f"seed {end.seed} diverged in round {end.round}"]
            known = {"standin": standin, "marks": marks, "alternative": arm.alternative}
            rows.append({**place, **plain, "value": None, "alone": False, **known})
    return rows


def _of_run(result: Result, column: str) -> Row:
    """Whether the column is a stand-in's, and the deviations behind it."""
    data = result.record.data
    domains = [column] if column in data["domains"] else data["domains"]
    marks = [clause for domain in domains for clause in data["deviations"].get(domain, [])]
    standin = any(domain in data["standins"] for domain in domains)
    return {"standin": standin, "marks": list(dict.fromkeys(marks))}


def wide(rows: Sequence[Row]) -> pd.DataFrame:
    """Our numbers as a table: one row per method, one column per column."""
    frame = pd.DataFrame(rows)
    methods, columns = list(dict.fromkeys(frame.method)), list(dict.fromkeys(frame.column))
    table = frame.pivot_table(
        index="method", columns="column", values="value", aggfunc="mean", dropna=False
    )
    return table.reindex(index=methods, columns=columns).rename_axis(index=None, columns=None)
