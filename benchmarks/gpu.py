"""Everything that needs a GPU, once: proof of the fused engine, speed, and runs at paper scale.

    python benchmarks/gpu.py [--minutes 60] [--runs runs] [--data-root DIR] [--name NAME]
    python benchmarks/gpu.py --only runs --minutes 30      goes on with what an earlier call proved
    python benchmarks/gpu.py --dry-run                     the same path on a CPU, in a minute

It checks the engines against the plain loop, measures those that are right, then trains the papers'
runs in a stated order with the fastest of them. Each piece of work happens in a process apart, and
results/gpu-NAME.json is written after each: a crash, a hang or a kill costs that piece alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fedrepro import files, methods, papers
from fedrepro.errors import FedReproError
from fedrepro.runs import federation_of
from fedrepro.runs.environment import environment, pick_device

if __package__:
    from benchmarks import agreement, entry, paper_runs, timing
    from benchmarks.workshop import Case, Workshop, serve
else:  # run as a file: this folder is on the path, the one above may not be
    import agreement
    import entry
    import paper_runs
    import timing
    from workshop import Case, Workshop, serve

HERE = Path(__file__).resolve().parent
STEPS = ("correctness", "timing", "runs")
SEEDS = (0, 1, 2)
TIMED = ("FedAvg", "ADCOL")
CHECKED_AT_ONCE = min(6, max(1, (os.cpu_count() or 1) // 2))  # no time of theirs is reported
LIMITS = {"check": 120.0, "time": 300.0, "seeds": 240.0, "rates": 120.0, "floor": 120.0}


# One piece of work, in a process apart.


def work(case: Case) -> dict[str, Any]:
    """Do one case on the device that `pick_device` makes deterministic."""
    device = pick_device(case["device"])
    if case["kind"] == "check":
        return agreement.check(case["method"], case["mode"], device.type, case["what"])
    if case["kind"] == "run":
        return paper_runs.train(case)
    if case["kind"] == "rates":
        return timing.rates(device, case["repeat"], case["tiny"])
    shape = (timing.TINY if case["tiny"] else timing.SHAPES)[case["shape"]]
    if case["kind"] == "floor":
        return timing.floor(shape, case["rates"])
    if case["mode"] == "field":
        return timing.time_field(shape, case["method"], device, case["repeat"])
    with agreement.engine(case["mode"], case.get("max_stack")) as name:
        if case["kind"] == "seeds":
            return timing.time_seeds(shape, case["method"], name, device, case["repeat"])
        changes = case.get("changes", {})
        return timing.time_library(
            shape, case["method"], case["mode"], name, device, case["repeat"], **changes
        )


# The plan.


def on_images() -> list[str]:
    """The methods that read images, as the made federations have them."""
    return [name for name in methods.names() if not methods.get(name).needs_embeddings]


def checks(tiny: bool) -> Iterator[tuple[str, Case]]:
    """Every method in every mode, a few where only the path is tried; augmentation; deep networks.
    By name."""
    networks = ("small-cnn",) if tiny else ("digit-cnn", "resnet10", "adcol-resnet50")
    for mode in agreement.MODES[::-1]:
        for name in TIMED if tiny or mode == "lanes" else on_images():
            yield f"{name}/{mode}", {"method": name, "mode": mode, "what": "method"}
        for what in ("augmentation", *networks):
            yield f"{what}/{mode}", {"method": "FedAvg", "mode": mode, "what": what}


def timings(proven: Sequence[str]) -> Iterator[tuple[str, Case]]:
    """What is measured, the most wanted first."""
    fused = [mode for mode in proven if mode != "reference"]
    sides = [*fused, "reference", "field"]
    for shape in timing.SHAPES:
        for method in ("FedAvg", "ADCOL") if shape == "adcol-digits" else ("FedAvg",):
            for mode in sides:
                yield f"{shape}/{method}/{mode}", {"shape": shape, "method": method, "mode": mode}
    if not fused:
        return
    best = {"method": "FedAvg", "mode": "captured" if "captured" in fused else fused[0]}
    for shape in ("digit-cnn", "adcol-digits"):
        yield f"{shape}/three seeds", {**best, "kind": "seeds", "shape": shape}
    for shape, made in timing.SHAPES.items():
        for size in (1, 2, 5, 10):
            if size < len(made.sizes):
                yield f"{shape}/stack {size}", {**best, "shape": shape, "max_stack": size}
    for shape in ("adcol-digits", "i2pfl-digits"):
        for precision in ("tf32", "bf16"):
            changes = {"changes": {"precision": precision}}
            yield f"{shape}/{precision}", {**best, **changes, "shape": shape}


def is_proven(found: dict[str, Any], mode: str, method: str, protocol: Any = None) -> bool:
    """Whether a mode was right for a method, and for what else a protocol needs."""
    wanted = [method]
    if protocol is not None:
        wanted += ["augmentation"] if protocol.data.flip or protocol.data.rotate else []
        wanted += [protocol.model] if f"{protocol.model}/{mode}" in found else []
    return all(is_right(found, name, mode) for name in wanted)


def is_right(found: dict[str, Any], name: str, mode: str) -> bool:
    """Whether a check found the plain loop's numbers, and equal bits twice where that loop has
    equal bits on this device."""
    answer, plain = found.get(f"{name}/{mode}", {}), found.get(f"{name}/reference", {})
    return answer.get("ok", False) and (answer["same_bits"] or not plain.get("same_bits", True))


def fastest(stored: dict[str, Any], method: str, protocol: Any) -> str:
    """The fastest mode proven for a run, as measured on its network where that was."""
    right = [m for m in agreement.MODES[::-1] if is_proven(stored["checks"], m, method, protocol)]
    shapes = [name for name, shape in timing.SHAPES.items() if shape.model == protocol.model]

    def seconds(mode: str) -> float:
        found = (stored["timing"].get(f"{s}/FedAvg/{mode}", {}).get("seconds") for s in shapes)
        return next((values["median"] for values in found if values), float("inf"))

    return min(right, key=seconds, default="reference")


def code() -> str:
    """A hash of the library's source: what was proven holds for it alone."""
    sources = sorted((HERE.parent / "fedrepro").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


class Session:
    """The steps of one call, and the file they fill."""

    def __init__(self, given: argparse.Namespace, command: str) -> None:
        self.given, self.deadline = given, time.time() + 60 * given.minutes
        device = pick_device(given.device)
        facts = environment(device)
        slug = re.sub(r"[^a-z0-9]+", "-", facts["device"].lower()).strip("-")
        self.path = given.json or HERE / "results" / f"gpu-{given.name or slug}.json"
        self.common = {"device": device.type, "tiny": given.tiny, "repeat": 2 if given.tiny else 5}
        path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        variables = {"PYTHONPATH": path.rstrip(os.pathsep)}
        if device.type == "cpu":
            variables["OMP_NUM_THREADS"] = "1"
        worker = [sys.executable, str(HERE / "gpu.py"), "--worker"]
        self.shops = [Workshop(worker, variables) for _ in range(CHECKED_AT_ONCE)]
        empty = {"checks": {}, "failed": [], "rates": {}, "floors": {}, "timing": {}, "runs": {}}
        self.stored: dict[str, Any] = {"calls": [], "tiny": given.tiny, **empty}
        if self.path.exists():
            before = files.read_json(self.path)
            last = before["calls"][-1]
            kept = all(last["environment"][k] == facts[k] for k in ("device", "driver", "packages"))
            if kept and before["tiny"] == given.tiny and last["code"] == code():
                self.stored = before
            else:  # of another state of the code or the machine: kept under its date
                date = last["environment"]["date"].replace(":", "")
                self.path.rename(self.path.with_name(f"{self.path.stem}-{date}.json"))
        self.stored["calls"].append({"command": command, "code": code(), "environment": facts})

    def close(self) -> None:
        """End the processes."""
        for shop in self.shops:
            shop.close()

    def save(self) -> None:
        """Write the file, whole."""
        files.write_json(self.path, self.stored)

    def left(self) -> float:
        return self.deadline - time.time()

    def do(self, part: str, name: str, case: Case) -> dict[str, Any]:
        """Do a case, store and show its answer. One that an earlier call answered stands."""
        if (known := self._known(part, name)) is not None:
            return known
        return self._keep(part, name, self._ask(self.shops[0], case))

    def _known(self, part: str, name: str) -> dict[str, Any] | None:
        known = self.stored[part].get(name)
        if known is None or "error" in known or known.get("state") not in (None, "done"):
            return None
        return dict(known)

    def _ask(self, shop: Workshop, case: Case) -> dict[str, Any]:
        limit = min(LIMITS.get(case["kind"], float("inf")), max(30.0, self.left() + 60))
        return shop.do({**self.common, **case}, limit)

    def _keep(self, part: str, name: str, answer: dict[str, Any]) -> dict[str, Any]:
        self.stored[part][name] = answer
        self.save()
        text = answer.get("error") or answer.get("state") or _short(answer)
        print(f"{self.left() / 60:6.1f} min left  {part}  {name}: {text}", flush=True)
        return answer

    def correctness(self) -> None:
        """Step 1, several at once. What fails is named and not used further."""
        found, free = self.stored["checks"], queue.SimpleQueue[Workshop]()
        for shop in self.shops:
            free.put(shop)

        def check(name: str, case: Case) -> tuple[str, dict[str, Any]]:
            shop = free.get()
            try:
                return name, self._ask(shop, {"kind": "check", **case})
            finally:
                free.put(shop)

        wanted = checks(self.given.tiny)
        missing = [(n, c) for n, c in wanted if self._known("checks", n) is None]
        pool = ThreadPoolExecutor(len(self.shops))
        try:
            for answered in as_completed([pool.submit(check, *one) for one in missing]):
                self._keep("checks", *answered.result())
        finally:  # an interrupt, too, waits for none; what they held is the next steps'
            pool.shutdown(wait=False, cancel_futures=True)
            self.close()
        bad = [n for n, a in found.items() if not (a.get("ok") and a["same_bits"])]
        self.stored["failed"] = bad
        self.save()

    def timing(self) -> None:
        """Step 2, with the modes that are right for both timed methods."""
        known = self.do("rates", "device", {"kind": "rates"})
        if "error" not in known:
            for shape in timing.SHAPES:
                self.do("floors", shape, {"kind": "floor", "shape": shape, "rates": known})
        right = [
            mode
            for mode in agreement.MODES[::-1]
            if all(is_proven(self.stored["checks"], mode, name) for name in ("FedAvg", "ADCOL"))
        ]
        for name, case in timings(right):
            if self.left() < 20:
                print("the time is up: timing ends here")
                return
            self.do("timing", name, {"kind": "time", **case})

    def runs(self) -> None:
        """Step 3: seed by seed, so that whole tables of one seed come first."""
        order = paper_runs.TINY_ORDER if self.given.tiny else paper_runs.ORDER
        for paper, experiment, datasets in order:
            found = self._arms(paper, experiment, datasets)
            if found is None:
                continue
            dataset, arms = found
            for seed in SEEDS[: 1 if self.given.tiny else None]:
                for arm in arms:
                    self._run(paper, experiment, dataset, seed, arm)

    def _arms(self, paper: str, experiment: str, datasets: Sequence[str]) -> Any:
        """The first data set at hand with the arms whose methods are there, or None."""
        scale = "smoke" if self.given.tiny else "paper"
        why = ""
        for dataset in datasets:
            try:
                arms = papers.load(paper).arms(experiment, dataset, scale)
                federation_of(arms[0].protocol.data, self.given.data_root)
            except FedReproError as error:
                why = str(error)
                continue
            arms = [arm for arm in arms if arm.method in methods.names()]
            return dataset, arms[:3] if self.given.tiny else arms
        self.stored["runs"][f"{paper}/{experiment}"] = {"state": "left out", "why": why}
        self.save()
        print(f"left out: {paper} {experiment}: {why}")
        return None

    def _run(self, paper: str, experiment: str, dataset: str, seed: int, arm: Any) -> None:
        name = f"{paper}/{experiment}/{dataset}/{arm.label}"
        mode = fastest(self.stored, arm.method, arm.protocol)
        need = self._seconds_needed(name, seed, arm, mode)
        if self.left() < max(need, 5.0):
            answer = {"state": "not started", "why": f"needs {need:.0f} s, {self.left():.0f} left"}
            self.stored["runs"].setdefault(f"{name}/seed {seed}", answer)
            self.save()
            return
        case = {"kind": "run", "paper": paper, "experiment": experiment, "dataset": dataset}
        case |= {"scale": arm.protocol.scale, "seed": seed, "label": arm.label, "mode": mode}
        root = self.given.data_root
        case |= {"runs": str(self.given.runs), "data_root": str(root) if root else None}
        answer = self.do("runs", f"{name}/seed {seed}", {**case, "deadline": self.deadline})
        if "error" in answer and mode != "reference":
            print(f"{name}: {mode} failed, once more with the plain loop")
            case |= {"mode": "reference", "deadline": self.deadline}
            self.do("runs", f"{name}/seed {seed}", case)

    def _seconds_needed(self, name: str, seed: int, arm: Any, mode: str) -> float:
        """What a run takes by the seconds a round of its like so far; 0 where there was none."""
        runs = self.stored["runs"]
        known = [a.get("per_round") for key, a in runs.items() if key.startswith(f"{name}/seed")]
        if arm.protocol.model == timing.SHAPES["adcol-digits"].model and "/digits5" in name:
            timed = self.stored["timing"].get(f"adcol-digits/{arm.method}/{mode}", {})
            known.append(timed.get("seconds", {}).get("median"))
        done = runs.get(f"{name}/seed {seed}", {}).get("reached", 0)
        rounds: int = arm.protocol.rounds - done
        return min((k for k in known if k), default=0.0) * rounds

    def table(self) -> str:
        """The short of it: failures, seconds against field's loop and floor, runs."""
        lines = [f"failed: {', '.join(self.stored['failed']) or 'none'}"]
        medians = {
            name: answer["seconds"]["median"]
            for name, answer in self.stored["timing"].items()
            if "seconds" in answer
        }
        for name, seconds in medians.items():
            shape, method = name.split("/")[:2]
            field = medians.get(f"{shape}/{method}/field", medians.get(f"{shape}/FedAvg/field"))
            least = self.stored["floors"].get(shape, {}).get("seconds")
            notes = [f"{field / seconds:.1f} x the field's speed"] if field else []
            notes += [f"{seconds / least:.1f} x the floor"] if least else []
            lines.append(f"{name:40} {seconds:9.3f} s a round  {', '.join(notes)}")
        lines += [
            f"{name:40} {_short(answer)}"
            for name, answer in self.stored["timing"].items()
            if "ratio" in answer
        ]
        states = [answer.get("state", "error") for answer in self.stored["runs"].values()]
        counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        return "\n".join([*lines, f"runs: {counts or 'none'}", f"written to {self.path}"])


def _short(answer: dict[str, Any]) -> str:
    if "ok" in answer:
        same = "same bits" if answer["same_bits"] else "OTHER BITS"
        return f"{'right' if answer['ok'] else 'WRONG'}, gap {answer['gap']:.1e}, {same}"
    if "ratio" in answer:
        return f"{answer['seeds']} seeds take {answer['ratio']['median']:.2f} x the time of one"
    seconds = answer.get("seconds")
    return f"{seconds['median']:.3f} s a round" if isinstance(seconds, dict) else "done"


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    plan.add_argument("--minutes", type=float, default=60.0, help="time for all steps together")
    plan.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the records")
    plan.add_argument("--data-root", type=Path, help="folder of the official files")
    plan.add_argument("--only", choices=STEPS, help="one step alone")
    plan.add_argument("--name", help="of the machine, for the file; default: the device's")
    plan.add_argument("--json", type=Path, help="default: results/gpu-NAME.json")
    plan.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    plan.add_argument("--tiny", action="store_true", help="settings of a few seconds")
    plan.add_argument("--dry-run", action="store_true", help="--device cpu --tiny")
    plan.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return plan


def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    if given.worker:
        return serve(work)
    if given.dry_run:
        given.device, given.tiny = "cpu", True
    command = " ".join(["python benchmarks/gpu.py", *(sys.argv[1:] if words is None else words)])
    session = Session(given, command)
    session.save()
    try:
        if given.only in (None, *STEPS):  # nothing is measured or trained that is not proven
            session.correctness()
        if given.only in (None, "timing"):
            session.timing()
        if given.only in (None, "runs"):
            session.runs()
    finally:
        session.close()
        print(session.table())


if __name__ == "__main__":
    entry.run(main)
