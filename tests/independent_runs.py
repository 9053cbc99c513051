"""Accuracies of the packed runs and their variance over test images, for the verdicts and claims
that are recomputed without the library. Of fedrepro it takes only what a paper's file asks for
today, to find rows of earlier settings."""

import gzip
import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from fedrepro import methods, papers

ROOT = Path(__file__).parents[1]
RUNS, PAPERS = ROOT / "book" / "records", ROOT / "fedrepro" / "papers"


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
