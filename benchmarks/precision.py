"""Test accuracy in a narrow precision beside float32: the same runs, seed by seed.

    python benchmarks/precision.py [--precision bf16] [--seeds 0,1,2,3,4] [--data-root DIR]

Arms of one of ADCOL's tables are trained in both precisions from the same seeds, and their mean
test accuracies over the last five rounds compared. The values go into
results/precision-PRECISION-DEVICE.json; report.py shows them. See README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import entry

from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.federated import metrics
from fedrepro.quantities.base import study
from fedrepro.records.record import environment, pick_device

PAPER, RULE, BASE = "adcol", "last5", "float32"


def accuracies(given: argparse.Namespace, precision: str, seed: int) -> dict[str, float]:
    """Mean accuracy over the domains in percent of every arm's run, by label."""
    of = study(
        PAPER,
        given.dataset,
        given.scale,
        seed,
        only=given.methods.split(","),
        changes={"precision": precision},
        device=given.device,
        runs_dir=given.runs,
        data_root=given.data_root,
    )
    results = of.results(given.experiment)
    return {r.label: metrics.scores(r.record.curve, RULE)["avg"] for r in results}


def measure(given: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Accuracies by label and precision, a value a seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for seed in given.seeds:
        for precision in (BASE, given.precision):
            for label, value in accuracies(given, precision, seed).items():
                found.setdefault(label, {}).setdefault(precision, []).append(value)
                print(f"seed {seed}, {label}, {precision}: {value:.2f} %", file=sys.stderr)
    return found


def seeds_of(text: str) -> list[int]:
    """Two seeds or more, for argparse: one has no noise."""
    parts = text.split(",")
    if len(set(parts)) < max(2, len(parts)) or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} are no two or more different seeds, as in 0,1")
    return [int(part) for part in parts]


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description="accuracy in a narrow precision beside float32")
    plan.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    plan.add_argument("--experiment", default="table-1")
    plan.add_argument("--dataset", default="digits5-standin")
    plan.add_argument("--scale", default="reduced", choices=("smoke", "reduced"))
    plan.add_argument("--seeds", type=seeds_of, default=seeds_of("0,1,2,3,4"))
    plan.add_argument("--methods", default="FedAvg,ADCOL")
    plan.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    plan.add_argument("--data-root", type=Path)
    plan.add_argument("--runs", type=Path, default=Path("runs"), help="what is there is read")
    plan.add_argument("--json", type=Path, help="default: results/precision-PRECISION-DEVICE.json")
    return plan


def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    device = pick_device(given.device)
    if given.precision == "tf32" and device.type == "cpu":
        raise FedReproError("a CPU has no tf32; pass --device cuda, or --precision bf16")
    keys = ("precision", "experiment", "dataset", "scale", "seeds", "device")
    stored: dict[str, Any] = {
        "command": entry.command("precision", words),
        "settings": {"paper": PAPER, "rule": RULE, **{k: getattr(given, k) for k in keys}},
        "environment": environment(device),
        "results": measure(given),
    }
    path = given.json or entry.RESULTS / f"precision-{given.precision}-{given.device}.json"
    files.write_json(path, stored)
    print(path)


if __name__ == "__main__":
    entry.run(main)
