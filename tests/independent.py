"""Verdicts and claims recomputed from the packed files with pandas and scipy, by the rules of the
pages *How to read a verdict* and *What the papers claim*, written down a second time."""

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from tests.independent_runs import (
    arms,
    by_round,
    curve,
    facts,
    image_variance,
    index,
    paper,
    past,
    protocol,
    rows_of,
    values,
)

COUNTED = ("sizes", "transfers")  # nothing is trained for them
PERCENT = ("accuracy", "sweep", "sampling", "curves", "targets", "grid")
KINDS = {**dict.fromkeys(PERCENT, 100.0), "in-out": 1.0}
# Of each difference: unit, values by seed, variance over images, margin, may it answer; scale.
Part = tuple[list[tuple[Any, Any, float, float, bool]], str]


def gain(runs: list[str]) -> float:
    """Points that the last quarter of the rounds adds, by the slope of the last half; none where
    the protocol's own rule ended the run."""
    gains = []
    for run in runs:
        mean = by_round(run).mean(axis=1)
        late, ended = mean.iloc[len(mean) // 2 :], mean.index[-1] < protocol(run)["rounds"]
        slope = 0.0 if ended or len(mean) < 4 else stats.linregress(late.index, late).slope
        gains.append(slope * len(mean) / 4)
    return float(np.mean(gains))


def compare(name: str, test: dict[str, Any], dataset: str) -> Part | None:
    """Every difference of a test on a data set, and the scale. None where nothing was run."""
    found = next(e for e in paper(name)["experiments"] if e["id"] == test["experiment"])
    kind, sign = test.get("kind", found["kind"]), -1 if test.get("lower") else 1
    rule, single = paper(name)["reporting"]["score_rule"]["value"], None
    for scale in ("paper", "reduced")[: 1 if test.get("paper_only") else 2]:
        own = rows_of(name, test["experiment"], dataset, scale)
        other = test.get("against", test["experiment"])
        theirs = rows_of(name, other, dataset, scale)
        rest = [a["label"] for a in arms(name, other) if not a.get("alternative")]
        rest = [] if "above" in test else [row for row in rest if row != test["better"]]
        wanted = test.get("than", rest)
        if kind == "speedup" and own:
            gaps = speedups(name, found, own, test["better"].split(" vs "), rule) - test["above"]
            return [(kind, gaps, 0.0, 0.0, len(gaps) > 1)], scale
        parts = {o: [a for a in theirs if a.startswith(f"{o}, target=")] or [o] for o in wanted}
        every = [arm for label in wanted for arm in parts[label]]
        if test["better"] not in own or any(arm not in theirs for arm in every):
            continue
        late = unready(name, other, dataset, scale, {arm: theirs[arm] for arm in every})
        best = own[test["better"]]
        old = unready(name, test["experiment"], dataset, scale, {test["better"]: best})
        for label, each in parts.items():
            theirs[label] = {s: "+".join(theirs[a][s] for a in each) for s in theirs[each[0]]}
        by = column_of(test, kind)
        paced = pace([own[row] for row in [test["better"], *rest]], rule) if kind == "pace" else {}
        first = next(iter(best.values()))
        columns = {"each": facts(first)["domains"]}
        if kind in ("sampling", "grid"):
            columns["accuracy"] = ["avg"]
        differences = []
        seen = paced.get(first) or values(first, kind, rule)
        for column in [one for one in columns.get(by, [by]) if one in seen]:
            for label in wanted or [""]:
                rows = (best, theirs[label]) if label else (best,)
                seeds = sorted(set.intersection(*map(set, rows)))
                sides = [[row[s] for s in seeds] for row in rows]
                known = (paced.get(r) or values(r, kind, rule) for side in sides for r in side)
                ours, *others = np.reshape([one[column] for one in known], (len(sides), -1))
                whole = KINDS.get(kind, 100.0 * (column == "accuracy"))
                drawn = whole and whole**2 * image_variance(sides, rule, column)
                d = sign * (ours - (others[0] if label else test["above"]))
                may = not old and late.isdisjoint(parts.get(label, ())) and len(d) > 1
                place, margin = column if by == "each" else by, test.get("margin", 0.0)
                differences.append((place, d, drawn, margin, may))
        if differences and min(len(d) for _, d, *_ in differences) > 1:
            return differences, scale
        single = single or (differences and (differences, scale)) or None  # one seed
    return single


def unready(name: str, used: str, dataset: str, scale: str, rows: Any) -> set[str]:
    """Those of these rows that still rise or have earlier settings."""
    rising = {r for r, runs in rows.items() if scale == "reduced" and gain([*runs.values()]) >= 1}
    return rising | {row for row in rows if past(name, used, dataset, scale, row)}


def column_of(test: dict[str, Any], kind: str) -> str:
    """A test's column by our own name."""
    by = test.get("by", "avg")
    return {"ood_acc": "ood", "ind_acc": "ind"}[by[0]] if kind == "in-out" else by


def seeds_of(rows: dict[str, dict[int, str]]) -> list[dict[str, str]]:
    """Runs by row, for each seed that all rows have."""
    common = set.intersection(*(set(row) for row in rows.values()))
    return [{label: row[seed] for label, row in rows.items()} for seed in sorted(common)]


def pace(rows: list[dict[int, str]], rule: str) -> dict[str, dict[str, float]]:
    """By run, the rounds to the lowest final mean accuracy of some rows, and its mean change from
    round to round, in the last half of the rounds that all have."""
    found = {}
    for runs in zip(*([row[s] for s in sorted(row)] for row in rows), strict=True):
        means = {run: by_round(run).mean(axis=1) for run in runs}
        goal = min(values(run, "accuracy", rule)["avg"] for run in runs) - 1e-9
        common = min(map(len, means.values()))
        for run, mean in means.items():
            swing = np.abs(np.diff(mean[common // 2 : common].to_numpy())).mean()
            found[run] = {"rounds": mean.index[(mean >= goal).argmax()], "swing": swing}
    return found


def costs(name: str, experiment: dict[str, Any], runs: dict[str, str], rule: str) -> Any:
    """By row and column, the round in which a row reaches the lowest final accuracy of some
    methods, and a client's traffic until then in the paper's GB; two NaN if it does not."""
    unit = paper(name)["reporting"]["gigabyte_bytes"]["value"]
    ends = [values(runs[m], "accuracy", rule) for m in experiment["target"]["lowest_of"]]
    goals = pd.DataFrame(ends).min() - 1e-9
    found = {}
    for label, run in runs.items():
        rows, means = curve(run), by_round(run)
        means = means.assign(avg=means.mean(axis=1))
        sent = rows[rows.measure == "bytes"].groupby("round").value.sum().cumsum()
        sent /= unit * len(facts(run)["clients"])
        enough = means >= goals[means.columns]
        there = enough.idxmax().where(enough.any())
        pairs = zip(there, sent.reindex(there), strict=True)
        found[label] = dict(zip(means, pairs, strict=True))
    return found


def speedups(name: str, experiment: dict[str, Any], own: Any, pair: list[str], rule: str) -> Any:
    """By seed, a row's traffic to the target over that of the row before it."""
    needed = {row: own[row] for row in (*pair, *experiment["target"]["lowest_of"])}
    until = [costs(name, experiment, runs, rule) for runs in seeds_of(needed)]
    return np.array([one[pair[1]]["avg"][1] / one[pair[0]]["avg"][1] for one in until])


def tested_p(parts: list[Any]) -> list[list[tuple[float, float, bool]]]:
    """(p, reverse p, may it answer) of every difference of a claim. The spread over seeds is pooled
    over all its differences in a column on one data set at one scale."""
    pools: dict[tuple[str, str, Any], list[np.ndarray[Any, Any]]] = {}
    for differences, scale, dataset in parts:
        for unit, d, *_ in differences:
            pools.setdefault((dataset, scale, unit), []).append(d)
    found = []
    for differences, scale, dataset in parts:
        ps = []
        for unit, d, drawn, margin, may in differences:
            every = [other for other in pools[dataset, scale, unit] if len(other) > 1]
            freedom = sum(len(other) - 1 for other in every)
            fewer = freedom / (1 + (len(every) - 1) / 4)  # the differences share a row
            seeds = sum(((o - o.mean()) ** 2).sum() for o in every) / max(freedom, 1) / len(d)
            total = seeds + drawn
            if not freedom or (not seeds and len(d) < 3):
                continue
            known = total**2 * fewer / seeds**2 if seeds else math.inf
            t = (d.mean() - margin) / math.sqrt(total)
            ps.append((float(stats.t.sf(t, known)), float(stats.t.cdf(t, known)), may))
        found.append(ps)
    return found


def count(name: str, test: dict[str, Any]) -> list[tuple[float, float]]:
    """(p, reverse p) of every difference that is counted: 0 and 1, for no draw can move it."""
    found = []
    for study in index()[2]:
        rows = study["counted"].get(test["experiment"], ())
        own = rows if study["study"]["paper"] == name else ()
        places = {row["dataset"] for row in own}
        for dataset in places & {test["dataset"]} if "dataset" in test else places:
            seen = {row["method"]: row["value"] for row in own if row["dataset"] == dataset}
            others = [test["above"]] if "above" in test else [seen[other] for other in test["than"]]
            sign = -1 if test.get("lower") else 1
            over = [sign * (seen[test["better"]] - o) - test.get("margin", 0.0) for o in others]
            found += [(float(gap <= 0), float(gap >= 0)) for gap in over]  # a tie is open
    return found


def answer(name: str, claim: dict[str, Any]) -> tuple[str, list[tuple[float, float]]]:
    """The answer to a claim, p and reverse p of all its differences."""
    kinds = {e["id"]: e["kind"] for e in paper(name)["experiments"]}
    tests = claim.get("tests", [])
    if tests and all(kinds[t["experiment"]] in COUNTED for t in tests):
        pairs = [pair for test in tests for pair in count(name, test)]
        word = "holds" if pairs and all(p < 0.05 for p, _ in pairs) else "open"
        return "contradicted" if any(reverse < 0.05 for _, reverse in pairs) else word, pairs
    parts: list[Any] = []
    for test in tests:
        where = {s["study"]["dataset"] for s in index()[2] if s["study"]["paper"] == name}
        specs = {d: paper(name)["datasets"][d] for d in sorted(where)}
        specs = {d: spec for d, spec in specs.items() if spec.get("in_paper", True)}
        own = [d for d in specs if test.get("dataset") in (None, specs[d]["protocol"])]
        found = [(compare(name, test, dataset), dataset) for dataset in own]
        ran = [(*part, dataset) for part, dataset in found if part is not None]
        parts += ran or [([], "", "")]
    every = tested_p(parts)
    family = [reverse for ps in every for _, reverse, may in ps if may]
    worst, adjusted = 0.0, {}
    for rank, p in enumerate(sorted(family)):
        worst = max(worst, min(1.0, p * (len(family) - rank)))
        adjusted.setdefault(p, worst)
    words, pairs = [], [pair for ps in every for *pair, _ in ps]
    for ps in every:
        held = ps and all(may and p < 0.05 for p, _, may in ps)
        failed = any(may and adjusted[reverse] < 0.05 for _, reverse, may in ps)
        words.append("contradicted" if failed else "holds" if held else "open")
    if "contradicted" in words:
        return "contradicted", pairs
    return "holds" if words and set(words) == {"holds"} else "open", pairs
