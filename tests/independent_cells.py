"""The verdict of every printed cell with a number of ours at scale paper, recomputed from the
packed files as `independent` recomputes the claims."""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy import stats

from tests import independent as claims, independent_runs as packed

# splits with test images of one's own
DRAWN = ("pooled-stratified", "pooled-leaky", "random-fifth")
GAINS = "relative", "differences"
REACHED = {"rounds": 0, "traffic": 1, "speedup": 1}  # the place in `costs`
DELTA = {"percent": 2.0, "percentage points": 2.0, "fraction": 0.02}
Place = tuple[str, str, str, str]  # table, data set, row, column
Numbers = dict[str, dict[int, dict[str, float]]]  # by row, seed and column
# Value, the column of the accuracies, and what each run's accuracy from 0 to 1 counts.
Gain = tuple[float, str, list[tuple[float, str]]]


@cache
def tables(name: str) -> dict[str, dict[str, Any]]:
    read = yaml.safe_load((packed.PAPERS / f"{name}.tables.yaml").read_text(encoding="utf-8"))
    return {table["id"]: table for table in read["tables"]}


def table_of(name: str, experiment: dict[str, Any]) -> str:
    """The table that an experiment's numbers are printed in: that of its name, if none is given."""
    known = experiment["id"] if experiment["id"] in tables(name) else ""
    found: str = experiment.get("table", known)
    return found


def printed(name: str, table: str, row: str, column: str) -> str:
    """A cell's text; empty where there is none."""
    found = tables(name)[table]
    places = dict(zip(found["columns"], found["rows"].get(row, "").split(), strict=False))
    return places.get(column, "")


def shown(name: str, table: str, column: str) -> str:
    """The column that a domain is printed under."""
    names = [column, *packed.paper(name)["columns"].get(column, ())]
    return next((n for n in names if n in tables(name)[table]["columns"]), column)


def scores(run: str, kind: str, rule: str) -> dict[str, float]:
    if kind != "in-out":
        return packed.values(run, kind, rule)
    found, sent = packed.values(run, kind, rule), (packed.curve(run).measure == "bytes").any()
    best = packed.scored(run, "validation")[0] if sent else 0
    return {"ood_acc": found["ood"], "ind_acc": found["ind"], "rounds": float(best)}


def counted(name: str) -> dict[Place, str]:
    """Words of what is not trained."""
    kinds = {e["id"]: (e["kind"], table_of(name, e)) for e in packed.paper(name)["experiments"]}
    found = {}
    for study in packed.index()[2]:
        given = study["study"]
        if (given["paper"], given["scale"]) != (name, "paper"):
            continue
        for experiment, rows in study["counted"].items():
            kind, table = kinds[experiment]
            for row in rows if table else ():
                column = shown(name, table, row["column"])
                cell = printed(name, table, row["method"], column)
                if not cell:
                    continue
                word, digits = "no verdict", len(cell.partition("±")[0].partition(".")[2])
                lesser = row["standin"] or row.get("subset") or kind == "clients" or cell == "-"
                if not lesser:
                    gap = abs(row["value"] - float(cell.partition("±")[0]))
                    word = f"counted {'' if gap <= 0.5 * 10**-digits + 1e-9 else 'un'}equal"
                found[table, row["dataset"], row["method"], column] = word
    return found


def trained(name: str) -> tuple[dict[Place, str], dict[Place, tuple[float, float]]]:
    """Words of what is trained: one correction by Benjamini and Hochberg for each table. And the
    95 % intervals behind them."""
    found: dict[Place, str] = {}
    intervals = {}
    places = {(s["study"]["dataset"]) for s in packed.index()[2] if s["study"]["paper"] == name}
    for experiment in packed.paper(name)["experiments"]:
        table = table_of(name, experiment)
        for dataset in places if table else ():
            rows = numbers_of(name, experiment, dataset, "paper")
            tests: dict[Place, tuple[float, float, float, float, float]] = {}
            for label, column, own, run, old in entries(name, experiment, dataset, rows):
                place = (table, dataset, *own)
                if not (cell := printed(name, table, *own)):
                    continue
                found[place] = "no verdict" if old else settled(name, table, run, column, cell)
                ours = [one[column] for one in rows.get(label, {}).values()]
                lost = not ours or any(map(math.isnan, ours))
                if found[place] == "open" and not lost:
                    test = tested_cell(name, experiment, label, column, place)
                    tests |= {place: test} if test else {}
            ordered = sorted(tests, key=lambda one: tests[one][4])
            least = 1.0
            for rank, place in reversed(list(enumerate(ordered, 1))):
                least = min(least, tests[place][4] * len(tests) / rank)
                found[place] = worded(*tests[place][:4], least)
                d, _, half, *_ = tests[place]
                intervals[place] = d - half, d + half
    return found, intervals


def entries(
    name: str, experiment: dict[str, Any], dataset: str, rows: Numbers
) -> Iterator[tuple[str, str, tuple[str, str], str, bool]]:
    """Row and column of our numbers, where they are printed, a run behind them, and whether one is
    of earlier settings: of what follows from several rows, any of them."""
    ran, kind = packed.rows_of(name, experiment["id"], dataset, "paper"), experiment["kind"]
    old = {label: packed.past(name, experiment["id"], dataset, "paper", label) for label in ran}
    firsts = {label: next(iter(runs.values())) for label, runs in ran.items()}
    for row, seeds in rows.items() if kind in (*GAINS, "speedup") else ():
        for column in next(iter(seeds.values())):
            place = row, shown(name, table_of(name, experiment), column)
            yield row, column, place, next(iter(firsts.values())), any(old.values())
    for label, run in firsts.items() if kind not in (*GAINS, "speedup") else ():
        own = next(a for a in packed.arms(name, experiment["id"]) if a["label"] == label)
        if not own.get("alternative") and (kind not in REACHED or label in rows):
            for column, place in places_of(name, experiment, own, run):
                yield label, column, place, run, old[label]


def gains(name: str, experiment: dict[str, Any], dataset: str, scale: str) -> list[dict[str, Gain]]:
    """By seed and row: differences, and relative gains, whose weights are their slopes."""
    rows = packed.rows_of(name, experiment["id"], dataset, scale)
    here, found = packed.paper(name)["datasets"][dataset]["protocol"], []
    first, *_, last = [arm["label"] for arm in packed.arms(name, experiment["id"])]
    row = experiment.get("rows", {}).get(dataset)  # of a relative gain
    asked = [{"row": row, "dataset": here, "of": last, "minus": first}]
    for seed in sorted(set[int]().union(*rows.values())):
        one: dict[str, Gain] = {}
        for spec in experiment.get("differences", asked):
            ends = [spec[end] for end in ("of", "minus") if end in spec]
            if spec["dataset"] != here or any(seed not in rows.get(end, ()) for end in ends):
                continue
            runs = [rows[end][seed] for end in ends]
            seen = [pd.Series(scores(run, "accuracy", rule(name))) / 100 for run in runs]
            gain, weights = 100 * (seen[0] - sum(seen[1:])), [100.0, -100.0]
            if row:
                gain, ratio = gain / seen[1], seen[0]["avg"] / seen[1]["avg"]
                weights = [100 / seen[1]["avg"], -100 * ratio / seen[1]["avg"]]
            column = spec.get("column", "avg")
            column = gain.drop("avg").idxmax() if column == "largest" else column
            if column in gain:
                one[spec["row"]] = gain[column], column, [*zip(weights, runs, strict=False)]
        found.append(one)
    return found


def places_of(
    name: str, experiment: dict[str, Any], arm: dict[str, Any], run: str
) -> list[tuple[str, tuple[str, str]]]:
    """Our columns of an arm, each with the row and column it is printed in."""
    table, row = table_of(name, experiment), arm.get("row", arm["label"])
    if experiment["kind"] == "grid":
        return [("avg", (row, arm.get("column", tables(name)[table]["columns"][0])))]
    columns = scores(run, experiment["kind"], rule(name))
    return [(column, (row, shown(name, table, column))) for column in columns]


def diverged(dataset: str, scale: str) -> set[tuple[str, str]]:
    """Experiment and row of the trainings that diverged."""
    where = {"dataset": dataset, "scale": scale}
    ended = [s["diverged"] for s in packed.index()[2] if where.items() <= s["study"].items()]
    return {(end[0], end[1]) for one in ended for end in one}


def rule(name: str) -> str:
    found: str = packed.paper(name)["reporting"]["score_rule"]["value"]
    return found


def settled(name: str, table: str, run: str, column: str, cell: str) -> str:
    """*no verdict* where one is refused, else *open* until it is tested."""
    data = packed.facts(run)
    domains = [column] if column in data["domains"] else data["domains"]
    lesser = {*data["standins"], *data["subsets"]} & set(domains)
    foreign = column == "avg" and any(
        shown(name, table, d) not in tables(name)[table]["columns"] for d in data["domains"]
    )
    return "no verdict" if cell == "-" or lesser or foreign else "open"


def tested_cell(
    name: str, experiment: dict[str, Any], label: str, column: str, place: Place
) -> tuple[float, float, float, float, float] | None:
    """d, half of its 90 and 95 % intervals, the tolerance and p; None where no spread is known."""
    table, dataset = tables(name)[place[0]], place[1]
    here = numbers_of(name, experiment, dataset, "paper")
    ours = numbers(here[label], column)
    reporting, seen = packed.paper(name)["reporting"], [ours]
    unit = table.get("units", {}).get(place[3], table["unit"])
    delta = DELTA.get(unit, 0.0)
    if len(ours) < 3:  # all rows' spread; with few of them, an accuracy's at scale reduced too
        seen = [row for one in here.values() if (row := numbers(one, column))]
        if delta and sum(len(row) - 1 for row in seen) < 4:
            few = numbers_of(name, experiment, dataset, "reduced")
            seen += [row for one in few.values() if (row := numbers(one, column))]
    freedom = sum(len(row) - 1 for row in seen)
    if not freedom:
        return None
    spread = sum(np.var(row, ddof=1) * (len(row) - 1) for row in seen if len(row) > 1)
    spread = float(spread) / freedom
    mean, _, std = printed(name, table["id"], *place[2:]).partition("±")
    trials = table.get("trials", reporting["trials"]["value"])
    usable = reporting.get("std_usable", {"value": True})["value"]
    parts = [(spread / len(ours), freedom)]
    if std and usable and trials > 1 and table.get("std_over", "trials") == "trials":
        parts.append((float(std) ** 2 / trials, trials - 1))
    else:
        parts = [(spread * (1 / len(ours) + 1 / trials), freedom)]
    drawn = image = 0.0
    if delta:
        runs = [[*packed.rows_of(name, experiment["id"], dataset, "paper").get(label, {}).values()]]
        weights: tuple[float, ...] = (100.0 if unit == "percent" else 1.0,)
        if experiment["kind"] in GAINS:
            made = [one[label] for one in gains(name, experiment, dataset, "paper") if label in one]
            sides = [*zip(*(one[2] for one in made), strict=True)]
            weights = tuple(float(np.mean([w for w, _ in side])) for side in sides)
            runs, column = [[run for _, run in side] for side in sides], made[-1][1]
        drawn, image = of_images(name, place, column, runs, weights)
    total = drawn + sum(v for v, _ in parts)
    known = total**2 / below if (below := sum(v**2 / f for v, f in parts)) else math.inf
    d, error = float(np.mean(ours)) - float(mean), math.sqrt(total)
    halves = [float(stats.t.ppf(q, known)) * error for q in (0.95, 0.975)]
    p = 2 * float(stats.t.sf(abs(d) / error, known)) if error else float(abs(d) <= 1e-9)
    return d, halves[0], halves[1], max(delta, image) if delta else 0.0, p


def numbers(row: dict[int, dict[str, float]], column: str) -> list[float]:
    """A row's numbers in a column, one per seed that has one."""
    return [one[column] for one in row.values() if not math.isnan(one[column])]


def numbers_of(name: str, experiment: dict[str, Any], dataset: str, scale: str) -> Numbers:
    """All numbers of an experiment; rows that diverged have none."""
    rows, kind = packed.rows_of(name, experiment["id"], dataset, scale), experiment["kind"]
    for one, label in diverged(dataset, scale):
        rows.pop(label if one == experiment["id"] else "", None)
    found: Numbers = {}
    if kind in GAINS:
        (column,) = tables(name)[table_of(name, experiment)]["columns"]
        for seed, one in enumerate(gains(name, experiment, dataset, scale)):
            for row, gain in one.items():
                found.setdefault(row, {})[seed] = {column: gain[0]}
        return found
    if kind not in REACHED:
        return {
            label: {seed: scores(run, kind, rule(name)) for seed, run in runs.items()}
            for label, runs in rows.items()
        }
    for seed in set[int]().union(*rows.values()):
        runs = {label: own[seed] for label, own in rows.items() if seed in own}
        if not {*experiment["target"]["lowest_of"]} <= {*runs}:
            continue
        costs = claims.costs(name, experiment, runs, rule(name)).items()
        own = {k: {c: pair[REACHED[kind]] for c, pair in ends.items()} for k, ends in costs}
        if kind == "speedup":
            pairs = [row.split(" vs ") for row in tables(name)[table_of(name, experiment)]["rows"]]
            pairs = [pair for pair in pairs if {*pair} <= {*own}]
            own = {f"{a} vs {b}": {c: own[b][c] / own[a][c] for c in own[a]} for a, b in pairs}
        for label, ends in own.items():
            found.setdefault(label, {})[seed] = ends
    return found


def of_images(
    name: str, place: Place, column: str, rows: list[list[str]], weights: tuple[float, ...]
) -> tuple[float, float]:
    """Variance over test images of both sides, and what one image moves. The paper's part of a gain
    is as large as ours."""
    whole, sizes = weights[0], packed.tested(rows[0][0])
    domains = [column] if column in sizes else list(sizes)
    image = whole / min(sizes[d] for d in domains) / len(domains)
    data = packed.protocol(rows[0][0])["data"]
    if data["split"] not in DRAWN and data.get("test_limit") is None:
        return 0.0, image
    ours = packed.image_variance(rows, rule(name), column, weights)
    if len(rows) > 1:
        return 2 * ours, image
    theirs = 0.0
    for domain in domains:
        cell = printed(name, place[0], place[2], shown(name, place[0], domain))
        cell = cell if cell not in ("", "-") else printed(name, place[0], *place[2:])
        p = float(cell.partition("±")[0]) / whole
        theirs += p * (1 - p) / sizes[domain] / len(domains) ** 2
    return ours + whole**2 * theirs, image


def worded(d: float, inner: float, outer: float, delta: float, p: float) -> str:
    if delta and abs(d) + inner <= delta + 1e-9:
        return "agrees"
    if abs(d) > delta + 1e-9 and p < 0.05:
        return "higher" if d > 0 else "lower"
    return "close" if delta and abs(d) <= delta + 1e-9 else "open"
