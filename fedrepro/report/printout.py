"""Numbers for the command line: one experiment, and every published cell."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedrepro.federated import metrics
from fedrepro.papers import COMPARES, Paper
from fedrepro.quantities.base import Study, wide
from fedrepro.report import text
from fedrepro.report.claims import Answer
from fedrepro.report.results import Results, collect
from fedrepro.report.tables import STATEMENTS, number, plain, spread
from fedrepro.report.verdicts import beside, build_table


def result(study: Study, experiment: str) -> str:
    """One experiment's numbers, beside the paper's if it prints them. Trains missing runs."""
    spec, rows = study.paper.experiment(experiment), study.cells(experiment)
    changed = "".join(f", {name} = {value}" for name, value in study.changes.items())
    title = f"{study.paper.short} {experiment}: {spec.caption} (seed {study.seed}{changed})"
    if not rows:
        why = "the rows that it is computed from have no runs; run them first"
        return f"{title}\nno result: {why}\n"
    if spec.table is not None:
        found = Results([(study, [experiment])])
        return f"{plain(beside(found, experiment), title)}\n"
    units = {"prototypes": "ratio", "inversion": "ratio", "in-out": "fraction"}
    unit = units.get(spec.kind, "percent")
    ours = wide(rows).map(number, unit=unit)
    lines = text.aligned(("method", *map(str, ours)), ours.itertuples(name=None))
    lost = "".join(f"{label}: {end}\n" for label, end in study.diverged(experiment).items())
    return f"{title}\n{study.dataset}, {STATEMENTS[study.scale]}\n{lines}\n{lost}"


MEANS = ("paper", "table", "dataset", "scale", "method", "seeds", "mean accuracy", "95 % interval")


def over_seeds(folder: Path, notebooks: Sequence[Path]) -> list[tuple[str, ...]]:
    """Mean accuracies of some executed notebooks of a folder, under the head `MEANS`, with the 95 %
    interval over seeds (Student's t), if there are two or more."""
    found: dict[tuple[str, ...], dict[int, float | None]] = defaultdict(dict)
    for study, names in collect(folder, notebooks):
        scale = ", ".join([study.scale, *(f"{k}={v}" for k, v in study.changes.items())])
        for name in (e.id for e in study.paper.experiments if e.kind in COMPARES and e.id in names):
            configs = {one.label: one.record.config["method"] for one in study.results(name)}
            for cell in (cell for cell in study.cells(name) if cell["column"] == "avg"):
                row = cell["method"]
                code = configs.get(row, {}).get("code", "")  # versions of a method are not mixed
                place = (study.paper.name, cell["table"], study.dataset, scale, row, code)
                found[place][study.seed] = cell["value"]
    for key in [key for key, seeds in found.items() if set(seeds.values()) == {None}]:
        if own := [other for other in found if other[:-1] == key[:-1] and other != key]:
            found[own[-1]] = found.pop(key) | found[own[-1]]  # seeds that diverged have no code
    lines: list[tuple[str, ...]] = []
    shown = Counter(key[:-1] for key in found)
    for key, seeds in found.items():
        *_, row, code = key
        row += f" (code {code[:6]})" * (shown[key[:-1]] > 1)  # another version of a method
        values = [value for value in seeds.values() if value is not None]
        lost = f", {len(seeds) - len(values)} diverged" * (len(values) < len(seeds))
        mean, ends = number(fmean(values) if values else None, "percent"), metrics.interval(values)
        around = " to ".join(number(end, "percent") for end in ends)
        around = "–" if any(map(math.isnan, ends)) else around
        lines.append((*key[:-2], row, f"{len(values)}{lost}", mean, around))
    return lines


def published_cells(folders: Sequence[Path], of: Iterable[Paper]) -> list[dict[str, Any]]:
    """Every printed cell of some papers as a line of `build_table` for each data set and scale with
    runs in the executed notebooks of the folders."""
    every = (pair for folder in folders for pair in collect(folder))
    found = Results(pair for pair in every if not pair[0].changes)
    rows: list[dict[str, Any]] = []
    for paper in of:
        own = found.where(paper=paper)
        for table in paper.tables:
            shown = (e.id for e in paper.experiments if e.table == table.id)
            ours = (cell for name in shown for cell in own.cells(name))
            frame = build_table(paper, table.id, ours).astype(object)
            cells = frame.where(frame.notna(), None).to_dict(orient="records")
            rows += [row for row in cells if table.cell(row["method"], row["column"]) is not None]
    return rows


def cell_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    header, lines = ("paper", "table", "dataset", "method", "column"), []
    for row in rows:
        unit, sides = row["unit"], ("published", "ours")
        numbers = [spread(row[side], row[f"{side}_std"], unit) for side in sides]
        facts = str(row["seeds"]), row["scale"] or "–", row["verdict"]
        known = (row[key] for key in ("difference", "low", "high") if row[key] is not None)
        gap, *ends = [number(value, unit) for value in known] or ["–"]
        gap += f" [{', '.join(ends)}]" * bool(ends)
        lines.append((*(row[key] for key in header), *numbers, *facts, gap, row["why"]))
    more = ("paper's", "ours", "seeds", "scale", "verdict", "d, 95 % interval", "why")
    found = Counter((row["verdict"], row["scale"]) for row in rows)
    said = [
        f"{count:,} {verdict}" + f" at scale {scale}" * bool(scale)
        for (verdict, scale), count in found.most_common()
    ]
    table = text.aligned((*header, *more), lines)
    return f"{table}\n{len(rows):,} cells: {', '.join(said)}"


def claim_lines(answers: Iterable[Answer]) -> str:
    lines = []
    for answer in answers:
        row = answer.row()
        lines += [f"{row['paper']} {row['id']}: {answer.answer}", f"  {row['claim']}"]
        lines += [*(f"  - {line}" for line in row["evidence"]), ""]
    return "\n".join(lines) + "\n"
