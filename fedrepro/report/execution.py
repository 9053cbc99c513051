"""Execution facts: when, where and from what the recorded runs were made."""

from __future__ import annotations

import pandas as pd

from fedrepro.records.environment import describe_build
from fedrepro.report.recorded import nothing
from fedrepro.report.scraps import Collected
from fedrepro.report.tables import Html


def executions(found: Collected) -> pd.DataFrame | Html:
    """Date, machine, versions and commit, a row a group of runs that share them."""
    rows = [
        {
            "paper": book["study"]["paper"],
            "dataset": run["dataset"],
            "scale": run["scale"],
            "date": run["environment"]["date"][:10],
            "machine": f"{run['environment']['device']}, {run['environment']['threads']} thread",
            "python": run["environment"]["python"],
            **{k: run["environment"]["packages"][k] for k in ("torch", "torchvision", "numpy")},
            "commit": (run["environment"]["commit"] or "unknown")[:10]
            + (" (changed files)" if run["environment"]["dirty"] else ""),
        }
        for book in found.notebooks
        for run in Collected([book]).runs
    ]
    if not rows:
        return nothing()
    frame = pd.DataFrame(rows).fillna("none")
    return frame.groupby(list(frame.columns), sort=False).size().rename("runs").reset_index()


def hashes(found: Collected) -> pd.DataFrame | Html:
    """The data behind the runs."""
    rows = {
        (run["dataset"], run["scale"], what): {"sha256": value[:16]}
        for run in found.runs
        for what, value in run["hashes"].items()
    }
    if not rows:
        return nothing()
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.names = ["dataset", "scale", "what"]
    return frame


def every_run(found: Collected) -> pd.DataFrame | Html:
    """Id, method, seed and mean accuracy under all four score rules, a row a run."""
    rows = [
        {
            "run id": run["run_id"],
            "dataset": run["dataset"],
            "scale": run["scale"],
            "run": run["label"],
            "seed": run["seed"],
            "rounds": run["rounds"],
            **{rule: round(score["avg"], 2) for rule, score in run["scores"].items()},
        }
        for run in found.runs
    ]
    if not rows:
        return nothing()
    frame = pd.DataFrame(rows).rename(columns={"best-test": "best-test (optimistic)"})
    return frame.set_index("run id").sort_values(["dataset", "scale", "run", "seed"])


def this_build() -> pd.DataFrame:
    """Date, versions and commit of the machine that builds the pages."""
    return pd.Series(describe_build(), name="").to_frame().rename_axis("fact")
