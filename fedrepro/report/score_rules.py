"""A printed table under each score rule: does the order of the methods depend on the round in which
a number is read? From the same curves."""

from html import escape

import pandas as pd

from fedrepro.federated import metrics
from fedrepro.report.results import Results
from fedrepro.report.tables import folded, spread, styled

NAMES = {
    "last": "last round",
    "last5": "mean of the last five",
    "validation": "chosen on validation images",
    "best-test": "best on the test images (optimistic)",
}


def each(found: Results, experiment: str) -> str:
    """Folded HTML, for each data set and scale with runs of an accuracy table. Second readings, and
    methods with a diverged seed, are left out."""
    if found.paper.experiment(experiment).kind != "accuracy":
        return ""
    cells, shown = found.cells(experiment), ""
    for dataset, scale in dict.fromkeys((row["dataset"], row["scale"]) for row in cells):
        here = found.where(dataset=dataset, scale=scale)
        own = [row for row in here.cells(experiment) if row["column"] == "avg"]
        unfit = {row["method"] for row in own if row["value"] is None or row["alternative"]}
        if fit := [m for m in dict.fromkeys(row["method"] for row in own) if m not in unfit]:
            title = f"The same runs under each score rule ({experiment}, {dataset} {scale})"
            shown += folded(title, _table(here, experiment, fit, title))
    return shown


def _table(found: Results, experiment: str, methods: list[str], title: str) -> str:
    rows = [
        (result.label, rule, score["avg"])
        for *_, result in found.runs(experiment)
        for rule, score in metrics.all_scores(result.record.curve).items()
    ]
    frame = pd.DataFrame(rows, columns=["method", "rule", "value"])
    seeds = frame.groupby(["method", "rule"]).value
    means, stds = (wide.unstack("rule").loc[methods] for wide in (seeds.mean(), seeds.std()))
    means = means[frame.rule.unique()].dropna(axis=1)  # a rule needs its images for every method
    ranks, columns = means.round(9).rank(ascending=False), {}
    for rule in means:
        name = NAMES[str(rule)] + ", as above" * (rule == found.paper.rule)
        pairs = zip(means[rule], stds[rule], strict=True)
        columns[name, "avg (%)"] = [spread(mean, std, "percent") for mean, std in pairs]
        columns[name, "rank"] = [f"{rank:g}" for rank in ranks[rule]]
    shown = pd.DataFrame(columns, index=[escape(method) for method in methods])
    shown.columns = pd.MultiIndex.from_tuples(columns, names=[None, "method"])
    caption = "Mean and deviation over the seeds, and rank (1 is best). Small gaps may be chance."
    return f"<p>{escape(said(ranks))}</p>\n" + styled(shown, "dataframe rules", title, caption)


def said(ranks: pd.DataFrame) -> str:
    """A sentence on how the rules change the order. ranks: methods downwards, rules across."""
    if len(ranks) < 2:
        return "One method has no order."
    firsts: dict[str, list[str]] = {}
    for rule in ranks:
        first = ranks.index[ranks[rule] == ranks[rule].min()]
        firsts.setdefault(" and ".join(map(str, first)), []).append(NAMES[str(rule)])
    text = f"The rule does not change who is first: {next(iter(firsts))}."
    if len(firsts) > 1:
        each = "; ".join(f"{who} ({', '.join(rules)})" for who, rules in firsts.items())
        text = f"Who is first depends on the rule: {each}."
    moved = ranks.max(axis=1) - ranks.min(axis=1)
    if not moved.any():
        return f"{text} No rank changes."
    return f"{text} {(moved > 0).sum()} of {len(ranks)} ranks change, by {moved.max():g} at most."
