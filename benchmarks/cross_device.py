"""Seconds for rounds with many small users: the library against pfl, Flower and a plain loop.

    python benchmarks/cross_device.py --make-venvs DIR          on the CPU, beside all peers
    python benchmarks/cross_device.py --python-pfl P --python-flower F --rounds 20 --repeat 5
    python benchmarks/cross_device.py --device cuda --engine fused --rounds 1500 --peers none

1,000 users with 50 images of 32x32 pixels each, 50 users per round, batches of 10, a network of two
convolutions: the set-up of pfl-research's CIFAR10 benchmark. Each side trains in a process of its
own, one round to warm up and then the timed ones; the sides take turns. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import entry
import numpy as np
import report
import torch
from peers.shared import MARK, Work
from rounds import made_samples, ratios as paired

from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.engine import ENGINES
from fedrepro.records.record import environment, pick_device

HERE = Path(__file__).resolve().parent
LIBRARY = "library"
OWN = (LIBRARY, "field")  # run by the Python that runs this
PEERS = ("pfl", "pfl-torchrun", "flower", "field")  # those measured where nobody names any
NARROW = ("pfl-bf16", "pfl-torchrun-bf16")  # a peer that can multiply in bf16, doing so
REQUIRED = {"pfl": ["pfl==0.6.0"], "flower": ["flwr[simulation]>=1.41,<1.43"]}
PATIENCE = 3 * 3600  # seconds one side may take for one repeat


@dataclass(frozen=True)
class Place:
    """Where and how sides run: the engine of the library, and the peers' Pythons."""

    engine: str
    pythons: Mapping[str, str]

    def command(self, side: str, work: Work) -> list[str]:
        """Raises:
        FedReproError: a peer whose Python nobody named.
        """
        name = side.partition("-")[0]
        script = str(HERE / "peers" / f"{name}_side.py")
        if side in OWN:
            return [sys.executable, script, work.text(), self.engine]
        if name not in self.pythons:
            raise FedReproError(f"not measured; pass --python-{name} PATH or --make-venvs DIR")
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
        several = [*launcher, str(work.processes)] if "torchrun" in side else []
        return [self.pythons[name], *several, script, work.text()]


def processes(side: str, threads: int) -> int:
    """How many worker processes a side uses; they share the threads."""
    return threads if "torchrun" in side or side == "flower" else 1


def precision(side: str, work: Work) -> str:
    """What a side's products are computed in: the library's is asked for, a peer's in its name."""
    if side == LIBRARY:
        return work.precision
    return "bf16" if side in NARROW else "float32"


def variables(side: str, work: Work) -> dict[str, str]:
    """A side's environment: its threads, the folder of shared.py, and nobody to report to."""
    paths = [HERE / "peers", *([HERE, HERE.parent] if side in OWN else [])]
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(max(1, work.threads // work.processes)),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PFL_PYTORCH_DEVICE": work.device,
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def once(side: str, work: Work, place: Place) -> dict[str, Any]:
    """One repeat of one side: what it answered, checked.

    Raises:
        FedReproError: it could not run, or did not do the work.
    """
    work = replace(work, processes=processes(side, work.threads), precision=precision(side, work))
    try:
        done = subprocess.run(
            place.command(side, work),
            env=variables(side, work),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FedReproError(f"could not run: {error}") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or len(lines) != 1:
        words = [line.strip() for line in done.stderr.splitlines() if any(map(str.isalpha, line))]
        last = (words or ["without a word"])[-1]
        raise FedReproError(f"ended with status {done.returncode}: {last[:300]}")
    found: dict[str, Any] = json.loads(lines[0][len(MARK) :])
    check(found, work)
    return found


def check(found: Mapping[str, Any], work: Work) -> None:
    """Raises:
    FedReproError: other steps than asked for, or a network that did not learn.
    """
    due = work.cohort * -(-work.images // work.batch) * (work.rounds + 1)
    if found["steps"] != due or len(found["seconds"]) != work.rounds:
        rounds = len(found["seconds"])
        raise FedReproError(f"{found['steps']} local steps in {rounds} rounds, not {due}")
    if not (found["loss_after"] < found["loss_before"] and found["moved"] > 0):
        raise FedReproError(
            f"its loss does not fall: {found['loss_before']:.3f} at first, then "
            f"{found['loss_after']:.3f}"
        )


def made_images(work: Work) -> None:
    """Fill the folder all sides read: as many images of each class as fit for every user."""
    n = work.images
    users = [made_samples(n, work.size, 0.0, work.seed + i) for i in range(work.users)]
    np.save(Path(work.folder) / "images.npy", torch.stack([u.images for u in users]).numpy())
    np.save(Path(work.folder) / "labels.npy", torch.stack([u.labels for u in users]).numpy())


def measure(work: Work, repeat: int, peers: Sequence[str], place: Place) -> dict[str, Any]:
    """All sides in turn, `repeat` times: every answer by side; a peer that fails has an `error`
    and is left out from then on."""
    sides: dict[str, dict[str, Any]] = {side: {"repeats": []} for side in (LIBRARY, *peers)}
    made_images(work)
    for number in range(repeat):
        for side, kept in sides.items():
            if "error" in kept:
                continue
            try:
                found = once(side, work, place)
            except FedReproError as error:
                if side == LIBRARY:
                    raise FedReproError(f"{side}: {error}") from None
                kept["error"] = str(error)
                print(f"{side}: {error}", file=sys.stderr)
                continue
            kept["repeats"].append(found)
            print(f"{side} {number + 1}: {sum(found['seconds']):.2f} s", file=sys.stderr)
    return sides


def totals(side: Mapping[str, Any]) -> list[float]:
    """Seconds for all timed rounds, by repeat."""
    return [sum(found["seconds"]) for found in side["repeats"]]


def ratios(sides: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Peer over library, repeat by repeat: above 1 the library is faster."""
    library = totals(sides[LIBRARY])
    return {
        name: paired(totals(side), library)
        for name, side in sides.items()
        if name != LIBRARY and "error" not in side
    }


def make_venvs(folder: Path) -> dict[str, str]:
    """A virtual environment for each peer that needs one; those that could be made, by name."""
    pythons = {}
    constraints = ["-c", str(HERE.parent / "constraints.txt")]
    for name, packages in REQUIRED.items():
        python = folder / name / "bin" / "python"
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
            pip = [str(python), "-m", "pip", "install", "-q", *constraints, "torch", *packages]
            subprocess.run(pip, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name}: could not be installed: {error}", file=sys.stderr)
        else:
            pythons[name] = str(python)
    return pythons


def joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Two stored measurements as one: a ratio is one of neighbours in time, so that repeats may
    come from several calls.

    Raises:
        FedReproError: they measured different things, or on different machines.
    """
    for part in ("settings", "engine"):
        if old[part] != new[part]:
            raise FedReproError(f"--add: other {part} than stored, {old[part]}; measure anew")
    first, last = old["calls"][0]["environment"], new["calls"][0]["environment"]
    for part in ("device", "cores", "threads", "packages"):
        if first[part] != last[part]:
            raise FedReproError(f"--add: another {part} than stored, {first[part]}; measure anew")
    if list(old["sides"]) != list(new["sides"]):
        raise FedReproError(f"--add: other sides than stored, {', '.join(old['sides'])}")
    sides = {}
    for name, side in new["sides"].items():
        kept = old["sides"][name]
        sides[name] = {**kept, **side, "repeats": kept["repeats"] + side["repeats"]}
    return {**old, "calls": old["calls"] + new["calls"], "sides": sides, "ratios": ratios(sides)}


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description="rounds with many small users, beside peers")
    plan.add_argument("--rounds", type=entry.count, default=20, help="timed rounds of each repeat")
    plan.add_argument("--repeat", type=entry.count, default=5)
    plan.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    plan.add_argument("--engine", default="reference", choices=sorted(ENGINES))
    plan.add_argument("--peers", default=",".join(PEERS), help=f"or {', '.join(NARROW)}, or none")
    plan.add_argument("--python-pfl", help="a Python that has pfl")
    plan.add_argument("--python-flower", help="a Python that has flwr[simulation]")
    plan.add_argument("--make-venvs", type=Path, metavar="DIR", help="install the peers there")
    plan.add_argument("--threads", type=entry.count, default=os.cpu_count() or 1)
    for name in ("users", "cohort", "images", "size", "batch"):
        plan.add_argument(f"--{name}", type=entry.count, default=getattr(Work, name))
    plan.add_argument("--seed", type=int, default=Work.seed)
    plan.add_argument("--network", default="public", choices=("public", "tuned"), help="peers'")
    plan.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    plan.add_argument(
        "--json", type=Path, help="default: results/cross-device[-PRECISION]-DEVICE.json"
    )
    plan.add_argument("--add", action="store_true", help="keep the repeats stored there")
    return plan


def chosen_peers(text: str) -> list[str]:
    names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in (*PEERS, *NARROW):
            raise FedReproError(
                f"no peer is called {name!r}; choose of {', '.join((*PEERS, *NARROW))}, or none"
            )
    return names


def called(given: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """Measure what was asked for, in the form it is stored in."""
    device = pick_device(given.device)
    torch.set_num_threads(given.threads)
    peers = chosen_peers(given.peers)
    pythons = make_venvs(given.make_venvs) if given.make_venvs else {}
    pythons |= {n: p for n in REQUIRED if (p := getattr(given, f"python_{n}"))}
    own = {name: getattr(given, name) for name in Work.__dataclass_fields__ if name in given}
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        work = Work(folder, **own)
        sides = measure(work, given.repeat, peers, Place(given.engine, pythons))
    places = {str(p) for p in (*pythons.values(), given.make_venvs, given.json) if p}
    named = ["PATH" if word in places else word for word in words]  # folders of this machine
    call = {
        "command": " ".join(["python benchmarks/cross_device.py", *named]),
        "environment": environment(device),
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        "repeats": given.repeat,
    }
    settings = {k: v for k, v in asdict(work).items() if k not in ("folder", "processes")}
    parts = {"settings": settings, "engine": given.engine, "calls": [call]}
    return {**parts, "sides": sides, "ratios": ratios(sides)}


def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    kind = "" if given.precision == "float32" else f"-{given.precision}"
    path = given.json or entry.RESULTS / f"cross-device{kind}-{given.device}.json"
    held = called(given, sys.argv[1:] if words is None else words)
    if given.add and path.exists():
        held = joined(json.loads(path.read_text(encoding="utf-8")), held)
    files.write_json(path, held)
    entry.show(report.cross_device_rows(held))


if __name__ == "__main__":
    entry.run(main)
