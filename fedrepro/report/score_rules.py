"""One printed table under each score rule: whether the order of the methods hangs on the round that
a number is read at. From the same curves as the table's own numbers."""

from __future__ import annotations

from html import escape

import pandas as pd

from fedrepro.federated import metrics
from fedrepro.report.results import Results
from fedrepro.report.sections import number
from fedrepro.report.tables import folded, styled

OPTIMISTIC = {"best-test": "best-test (optimistic)"}
NAMES = {
    "last": "last round",
    "last5": "mean of the last five",
    "validation": "chosen on validation images",
    "best-test": "best on the test images",
}


def averages(found: Results, experiment: str) -> pd.DataFrame:
    """Mean accuracy over domains in percent: one row per run (its label: method) and rule."""
    rows = [
        {"method": result.label, "rule": rule, "value": score["avg"]}
        for _, result in found.runs(experiment)
        for rule, score in metrics.all_scores(result.record.curve).items()
    ]
    return pd.DataFrame(rows)


def each(found: Results, experiment: str) -> str:
    """Folded HTML, for each data set and scale that an accuracy table was run at and has methods to
    compare; smoke runs are no results. Left out are second readings, and methods of which a seed
    diverged."""
    if found.paper.experiment(experiment).kind != "accuracy":
        return ""
    cells, shown = found.cells(experiment), ""
    for dataset, scale in dict.fromkeys((row["dataset"], row["scale"]) for row in cells):
        here = found.where(dataset=dataset, scale=scale)
        own = [row for row in here.cells(experiment) if row["column"] == "avg"]
        unfit = {row["method"] for row in own if row["value"] is None or row["alternative"]}
        methods = [m for m in dict.fromkeys(row["method"] for row in own) if m not in unfit]
        if len(methods) < 2 or scale == "smoke":
            continue
        frame = averages(here, experiment)
        means = frame.pivot_table(index="method", columns="rule", values="value")
        means = means.reindex(index=methods, columns=frame.rule.unique()).dropna(axis=1)
        shown += _table(means, found.paper.rule, f"{experiment}, {dataset} {scale}")
    return shown


def _table(means: pd.DataFrame, own: str, where: str) -> str:
    """means: one row per method, one column per rule."""
    ranks, columns = means.round(9).rank(ascending=False), {}
    for rule in means:
        name = NAMES[str(rule)] + ", as above" * (rule == own)
        name += " (optimistic)" * (rule == "best-test")
        columns[name, "avg (%)"] = [number(value, "percent") for value in means[rule]]
        columns[name, "rank"] = [f"{rank:g}" for rank in ranks[rule]]
    shown = pd.DataFrame(columns, index=[escape(str(method)) for method in means.index])
    shown.columns = pd.MultiIndex.from_tuples(columns, names=[None, "method"])
    title = "The same runs under each score rule"
    caption = f"{title}: mean over the seeds, and rank (1 is best). Small gaps may be chance."
    html = styled(shown, "dataframe rules", f"{title}: {where}", caption)
    return folded(f"{title} ({where})", f"<p>{escape(said(ranks))}</p>\n{html}")


def said(ranks: pd.DataFrame) -> str:
    """What a rule changes in the order. ranks: one row per method, one column per rule."""
    firsts: dict[str, list[str]] = {}
    for rule in ranks:
        first = ranks.index[ranks[rule] == ranks[rule].min()]
        firsts.setdefault(" and ".join(map(str, first)), []).append(NAMES[str(rule)])
    moved = ranks.max(axis=1) - ranks.min(axis=1)
    if len(firsts) == 1:
        text = f"The rule does not change who is first: {next(iter(firsts))}."
    else:
        each = "; ".join(f"{who} ({', '.join(rules)})" for who, rules in firsts.items())
        text = f"Who is first depends on the rule: {each}."
    if not moved.any():
        return f"{text} No rank changes."
    return f"{text} {(moved > 0).sum()} of {len(ranks)} ranks change, by {moved.max():g} at most."
