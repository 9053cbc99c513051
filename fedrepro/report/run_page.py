"""Data and links for the book's page of runs. All runs share one page
(``book/_templates/run.html``); its data are small scripts, one per first digit of a run id."""

import json
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrepro.base import files
from fedrepro.federated import metrics
from fedrepro.records.packed import Pack, PackedRecord
from fedrepro.records.record import short_hash
from fedrepro.report.results import Kept, Results, recorded

SHORT = 10  # digits of a run id in an address; enough to tell a million runs apart
Cell = tuple[str, str, str, str]  # data set, scale, method, column


def link(*runs: str) -> str:
    """The address of the page of some runs, from a page two folders down."""
    return f"../../run.html#run-{'-'.join(run[:SHORT] for run in runs)}"


def links(found: Results, experiment: str) -> dict[Cell, str]:
    """The page of the runs of all seeds behind each of our numbers of a recorded experiment. A row
    that is not one arm, such as a ratio, has all arms' runs."""
    behind: dict[Cell, list[str]] = defaultdict(list)
    table = found.paper.experiment(experiment).table
    for study in found.holding(experiment):
        if not isinstance(study, Kept) or not study.paper.arm_specs(experiment):
            continue
        results = study.results(experiment)
        for row in study.cells(experiment):
            method, column = row["method"], row["column"]
            own = [r for r in results if method in (r.label, r.arm.row)]
            own = [r for r in own if r.arm.column in (None, column)]
            if row["value"] is not None and not own:
                own = results
            shown = found.paper.column(table, column) if table else None
            key = study.dataset, study.scale, method, shown or column
            behind[key] += [r.record.run_id for r in own]
    return {cell: link(*dict.fromkeys(runs)) for cell, runs in behind.items() if runs}


def write_scripts(folder: Path, runs: Path) -> None:
    """`shared.js`, and `<digit>.js` for each first digit of a run id. Nothing if no run is
    packed."""
    packed = Pack(runs)
    if not packed.runs:
        return
    files.make_folder(folder, "make room there")
    uses = _uses(packed, recorded(None, runs))
    parts: dict[str, dict[str, Any]] = defaultdict(dict)
    shared: dict[str, dict[str, Any]] = {"protocols": {}, "data": {}}
    for run, line in packed.runs.items():
        parts[run[0]][run] = _run(packed, run, uses.get(run, []))
        shared["protocols"][line["config"]["protocol"]] = packed.config(run)["protocol"]
        data = packed.facts(run, "data")
        shared["data"][line["data"]] = {key: data[key] for key in ("hashes", "standins")}
    for name, part in {"shared": shared, **{k: {"runs": v} for k, v in parts.items()}}.items():
        text = json.dumps(part, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        (folder / f"{name}.js").write_text(f"recorded({text});\n", encoding="utf-8")


def _run(packed: Pack, run: str, uses: Sequence[Any]) -> dict[str, Any]:
    """One run; accuracies in percent, rounded to 0.01."""
    line, curve = packed.runs[run], PackedRecord(packed.root / run, packed).curve
    return {
        **line["config"],
        "environment": packed.facts(run, "environment"),
        "data": line["data"],
        "scores": {
            rule: {domain: round(value, 2) for domain, value in found.items()}
            for rule, found in metrics.all_scores(curve).items()
        },
        "curve": list(metrics.accuracies(curve)["avg"].round(2).items()),
        "uses": uses,
    }


def _uses(packed: Pack, found: Results) -> dict[str, list[Any]]:
    """By run: where it is used, the command that trains it, and whether the command trains exactly
    this run today, because the settings in a paper's file may have changed."""
    uses: dict[str, dict[str, Any]] = defaultdict(dict)
    for study, _ in found.studies:
        if not isinstance(study, Kept):
            continue
        for run, name, label, *tried in study.scraps["runs"] + study.scraps["trials"]:
            words = ["fedrepro", "run", study.paper.name, name, "--dataset", study.dataset]
            words += ["--methods", label, "--seed", str(study.seed), "--scale", study.scale]
            where = ", ".join([study.paper.short, name, label, *(f"tried {v}" for v in tried)])
            same = short_hash(packed.config(run)) in study.asked(name).get(label, ())
            uses[run].setdefault(where, [where, shlex.join(words), same])
    return {run: list(each.values()) for run, each in uses.items()}
