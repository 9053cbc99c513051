"""Verdicts and claims recomputed from the packed files with pandas and scipy, by the rules of the
pages *How to read a verdict* and *What the papers claim*, written down a second time. Of fedrepro
it takes only what a paper's file asks for today, to find rows of earlier settings."""

import gzip
import json
import math
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy import stats

from fedrepro import methods, papers

ROOT = Path(__file__).parents[1]
RUNS, PAPERS = ROOT / "book" / "records", ROOT / "fedrepro" / "papers"
COUNTED = ("sizes", "transfers")  # nothing is trained for them
PERCENT = ("accuracy", "sweep", "sampling", "curves", "targets", "grid")
KINDS = {**dict.fromkeys(PERCENT, 100.0), "in-out": 1.0}
# Of each difference: unit, values by seed, variance over images, margin, may it answer; scale.
Part = tuple[list[tuple[Any, Any, float, float, bool]], str]


def lines(name: str) -> list[dict[str, Any]]:
    with (gzip.open if name.endswith(".gz") else open)(RUNS / name, "rb") as file:
        return [json.loads(line) for line in file]


@cache
def index() -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    shared = {line["key"]: line["content"] for line in lines("shared.jsonl.gz")}
    studies, own = lines("studies.jsonl.gz"), ("method", "column", "value")
    for counted in (study["counted"] for study in studies):
        for name, alike in counted.items():
            counted[name] = [k | dict(zip(own, r, strict=True)) for k, rows in alike for r in rows]
    return {line["run"]: line for line in lines("runs.jsonl.gz")}, shared, studies


@cache
def table(name: str) -> dict[str, pd.DataFrame]:
    path = RUNS / f"{name}.parquet"
    return dict(list(pd.read_parquet(path).groupby("run"))) if path.exists() else {}


@cache
def paper(name: str) -> dict[str, Any]:
    return yaml.safe_load((PAPERS / f"{name}.yaml").read_text(encoding="utf-8"))


@cache
def curve(run: str) -> pd.DataFrame:
    return table(index()[0][run]["file"])[run]


@cache
def by_round(run: str, measure: str = "accuracy", split: str = "test") -> pd.DataFrame:
    rows = curve(run)
    rows = rows[(rows.measure == measure) & (rows.split == split)]
    rows = rows[rows.subject == rows.subject.iloc[0]]
    return rows.pivot_table(index="round", columns="domain", values="value")


@cache
def scored(run: str, rule: str) -> tuple[int, ...]:
    """The rounds a score rule takes."""
    rounds, mean = list(by_round(run).index), by_round(run).mean(axis=1)
    if rule == "best-test":  # the latest of equals
        return (int(mean.index[mean >= mean.max() - 1e-9][-1]),)
    if rule == "validation":
        return (int(by_round(run, "loss", "validation").mean(axis=1).idxmin()),)
    return tuple(rounds[-5:] if rule == "last5" else rounds[-1:])


def facts(run: str) -> dict[str, Any]:
    return index()[1][index()[0][run]["data"]]


def protocol(run: str) -> dict[str, Any]:
    return index()[1][index()[0][run]["config"]["protocol"]]


@cache
def tested(run: str) -> dict[str, int]:
    counts = pd.DataFrame(facts(run)["counts"])
    return counts[counts.split == "test"].groupby("domain").images.sum().to_dict()


@cache
def shares(run: str, column: str) -> dict[str, dict[str, float]]:
    """By domain: how much each client's network counts in a column."""
    run, away = run.partition("+")[0], column == "ood"
    data = facts(run)
    domains = [column] if column in data["domains"] else data["domains"]
    homes = {c["name"]: c["domain"] for c in data["clients"] if c["domain"] in domains}
    sizes = dict.fromkeys(domains, 1) if column not in ("ind", "ood") else data.get("weights")
    sizes, alike = sizes or tested(run), list(homes.values())
    each = {name: sizes[home] / alike.count(home) for name, home in homes.items()}
    whole = sum(each.values()) * (len(domains) - 1 if away else 1)
    return {d: {n: each[n] / whole for n in each if (homes[n] != d) == away} for d in domains}


@cache
def scores(run: str, column: str, rule: str) -> dict[str, float]:
    """Percent by domain, in MPFT's columns the mean over the networks that count."""
    if column not in ("ind", "ood"):
        chosen = {d: only(run, d) for d in facts(run.partition("+")[0])["domains"]}
        return {d: by_round(r).loc[list(scored(r, rule)), d].mean() for d, r in chosen.items()}
    rows = curve(run)
    seen = ((rows.measure == "loss") & (rows.split == "validation")).any()
    best = scored(run, "validation")[0] if seen else int(rows["round"].max())
    rows = rows[(rows["round"] == best) & (rows.measure == "cross-accuracy")]
    cells, found = rows.set_index(["subject", "domain"]).value, dict(by_round(run).loc[best])
    for domain, own in shares(run, column).items() if len(cells) else ():
        found[domain] = np.average([cells[n, domain] for n in own], weights=list(own.values()))
    return found


def values(run: str, kind: str, rule: str) -> dict[str, float]:
    if kind == "in-out":
        percent = {c: scores(run, c, rule) for c in ("ind", "ood")}
        parts = {c: {d: sum(own.values()) for d, own in shares(run, c).items()} for c in percent}
        return {c: sum(parts[c][d] * p for d, p in percent[c].items()) / 100 for c in percent}
    means = scores(run, "avg", rule)
    found = means | {"avg": float(np.mean(list(means.values())))}
    if kind == "leakage":
        measured = index()[0][run]["measured"]["leakage"]
        return {"MI": float(measured["mutual_information"]), "accuracy": found["avg"]}
    return found


def only(run: str, domain: str) -> str:
    """Of joined runs the one whose target client has the domain."""
    every = run.split("+")
    targets = [setting(one)[0]["fields"].get("target", 0) for one in every]
    homes = [facts(o)["clients"][t]["domain"] for o, t in zip(every, targets, strict=True)]
    return every[homes.index(domain) if len(every) > 1 else 0]


def right(run: str, rule: str, domain: str, column: str) -> np.ndarray[Any, Any] | None:
    """Share of scored rounds and networks in which each test image was classified right."""
    run = only(run, domain)
    kept = table(f"{index()[0][run]['file']}-predictions").get(run)
    if kept is None:
        return None
    read = {r["name"]: np.frombuffer(r["values"], r["dtype"]) for r in kept.to_dict("records")}
    subject = curve(run).query("measure == 'accuracy' and split == 'test'").subject.iloc[0]
    places = product(scored(run, rule), {"server": 1.0, **shares(run, column)[domain]}.items())
    named = [(f"predicted/{n}/{subject}/{net}/{domain}", part) for n, (net, part) in places]
    hits = [(read[n] == read[f"labels/{domain}"], part) for n, part in named if n in read]
    return np.average([hit for hit, _ in hits], axis=0, weights=[part for _, part in hits])


def image_variance(rows: list[list[str]], rule: str, column: str, weights: Any = (1, -1)) -> float:
    """Of a mean (or the difference of two) over draws of test images, accuracies from 0 to 1."""
    total = 0.0
    for domain, own in shares(rows[0][0], column).items():
        part = sum(own.values()) ** 2
        found = [[right(run, rule, domain, column) for run in row] for row in rows]
        found = [[one for one in row if one is not None] for row in found]
        if all(found):
            means = [np.mean(row, axis=0) for row in found]
            paired = sum(w * mean for w, mean in zip(weights, means, strict=False))
            total += part * paired.var(ddof=1) / len(paired)
            continue
        for w, row in zip(weights, rows, strict=False):
            p = np.mean([scores(run, column, rule)[domain] for run in row]) / 100
            total += part * w**2 * p * (1 - p) / tested(only(row[0], domain))[domain]
    return total


def arms(name: str, experiment: str) -> list[dict[str, Any]]:
    found = next(e for e in paper(name)["experiments"] if e["id"] == experiment)
    if "arms_of" not in found:
        return found.get("arms", [])
    rest = [a for a in arms(name, found["arms_of"]) if a["label"] not in found.get("without", ())]
    rest = [a for a in rest if a["label"] in found.get("only", [a["label"]])]
    return rest + found.get("arms", [])


def rows_of(name: str, experiment: str, dataset: str, scale: str) -> dict[str, dict[int, str]]:
    """Run ids by row and seed; of earlier settings only where no seed of the row has today's."""
    found: dict[str, dict[int, str]] = {}
    for study in index()[2]:
        given = study["study"]
        if (given["paper"], given["dataset"], given["scale"]) == (name, dataset, scale):
            for run, used, label in study["runs"]:
                if used == experiment:
                    found.setdefault(label, {})[given["seed"]] = run
    for label, runs in found.items():
        today = asked(name, experiment, dataset, scale).get(label, [])
        found[label] = {n: run for n, run in runs.items() if setting(run) in today} or runs
    return found


def setting(run: str) -> Any:
    runs, shared, _ = index()
    return [shared[runs[run]["config"]["method"]], protocol(run)]


@cache
def asked(name: str, experiment: str, dataset: str, scale: str) -> dict[str, list[Any]]:
    """Method and protocol of each row today, with each value it may get; none without trials."""
    at, found = {"paper": name, "dataset": dataset, "scale": scale}, {}
    ran = (s["trials"] for s in index()[2] if at.items() <= s["study"].items())
    tried = {tuple(one[1:3]) for trials in ran for one in trials}
    for arm in papers.load(name).arms(experiment, dataset, scale):
        first = [(v, chosen) for v, chosen, _ in arm.trials()]
        rest = [c for v, chosen in first for _, c, _ in chosen.constants(v)]
        every = [arm, *(chosen for _, chosen in first), *rest]
        known = arm.tuning is None or (experiment, arm.label) in tried
        found[arm.label] = [settings(one) for one in every if known]
    return found


def settings(arm: papers.Arm) -> Any:
    method = methods.create(arm.method, **arm.fields)
    own = {"name": method.name, "version": method.version, "fields": method.fields()}
    return json.loads(json.dumps([own, arm.protocol.model_dump(mode="json")]))


def past(name: str, experiment: str, dataset: str, scale: str, row: str) -> bool:
    """Whether a run of a row had other settings than the paper's file asks for today."""
    today, rows = asked(name, experiment, dataset, scale), rows_of(name, experiment, dataset, scale)
    return any(setting(run) not in today.get(row, []) for run in rows[row].values())


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
    kind, sign = found["kind"], -1 if test.get("lower") else 1
    rule, single = paper(name)["reporting"]["score_rule"]["value"], None
    for scale in ("paper", "reduced")[: 1 if test.get("paper_only") else 2]:
        own = rows_of(name, test["experiment"], dataset, scale)
        other = test.get("against", test["experiment"])
        theirs = rows_of(name, other, dataset, scale)
        rest = [a["label"] for a in arms(name, other) if not a.get("alternative")]
        rest = [] if "above" in test else [row for row in rest if row != test["better"]]
        wanted = test.get("than", rest)
        if kind == "speedup" and own:
            us, them = test["better"].split(" vs ")
            until = [costs(name, found, runs, rule) for runs in seeds_of(own)]
            gaps = np.array([one[them]["avg"][1] / one[us]["avg"][1] for one in until])
            return [(kind, gaps - test["above"], 0.0, 0.0, len(gaps) > 1)], scale
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
        columns = {"each": facts(next(iter(best.values())))["domains"]}
        if kind in ("sampling", "grid"):
            columns["accuracy"] = ["avg"]
        differences = []
        seen = values(next(iter(best.values())), kind, rule)
        for column in [one for one in columns.get(by, [by]) if one in seen]:
            for label in wanted or [""]:
                rows = (best, theirs[label]) if label else (best,)
                seeds = sorted(set.intersection(*map(set, rows)))
                sides = [[row[s] for s in seeds] for row in rows]
                ours, *others = ([values(r, kind, rule)[column] for r in side] for side in sides)
                whole = KINDS.get(kind, 100.0 * (column == "accuracy"))
                drawn = whole and whole**2 * image_variance(sides, rule, column)
                d = sign * (np.array(ours) - np.array(others[0] if label else test["above"]))
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
        if rows and study["study"]["paper"] == name:
            seen = {row["method"]: row["value"] for row in rows}
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
