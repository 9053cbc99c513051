"""Everything that needs a GPU, once: proof of the stacked engine, speed, runs at paper scale.

    python benchmarks/gpu.py [--minutes 60] [--runs runs] [--data-root DIR] [--name NAME]
    python benchmarks/gpu.py --only runs --minutes 30      goes on with the runs alone
    python benchmarks/gpu.py --dry-run                     the same path on a CPU, in minutes

It checks the stacked engine against the plain loop, measures the engines, then trains the
campaign's list, several runs at a time. Each piece of work is done in a process apart, and
results/gpu-NAME.json is written after each: a crash, a hang or a kill costs that piece alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import entry
import torch
from field_loop import FieldLoop
from timing import SHAPES, TINY, Shape, clear, clocked, peak_mib
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedrepro import campaign, methods
from fedrepro.base import files
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Protocol
from fedrepro.federated.rounds import Training
from fedrepro.records.record import environment, pick_device

HERE = Path(__file__).resolve().parent
STEPS = ("checks", "timing", "runs")
TIMED = ("FedAvg", "ADCOL")
TINY_LIST = """- {paper: adcol, experiment: table-4, dataset: minidigits, scale: smoke,
   methods: [FedAvg, ADCOL]}"""
AT_ONCE = min(4, max(1, (os.cpu_count() or 1) // 2))  # checks; no time of theirs is reported
LIMIT = 300.0  # seconds of a check or of a measurement
MARK = "@result "
Case = dict[str, Any]
Named = dict[str, Tensor]


# The proof: the plain loop's numbers, and the same bits twice.

CHECKED = Shape("tiny-cnn", 16, (21, 13, 9, 13, 16, 21), batch=8, epochs=2)
CALM = {"data.normalise": "half", "precision": "float64"}
TOLERANCE = 1e-8
# Deep networks multiply the last bits of float64 with every step: changed in the first weights
# alone, they move the plain loop with ResNet-50 by 1e-11 in two of these steps, on a CPU, and by
# 2e-4 in fifteen.
DEEP = (48, 48, 40)  # images of each client: two steps


def play(method: str, engine: str, device: str, shape: Shape, protocol: Protocol) -> Named:
    """Train; all messages, final tensors and the curve's values, by where they come from."""
    place = torch.device(device)
    run = Training(methods.create(method), protocol, shape.federation(), 0, place, engine)
    heard: Named = {}
    download, upload = run._download, run._upload

    def keep(way: str, client: Any, message: Any) -> None:
        key = f"round {run.server.round} client {client.index} {way}"
        nth = len({k.split("|")[0] for k in heard if k.startswith(key)})  # again before a test
        sent = tree_leaves(dict(sorted(message.items())))
        heard.update({f"{key} {nth}|{k}": v.clone() for k, v in enumerate(sent)})

    def down(client: Any) -> Any:
        message = download(client)
        keep("down", client, message)
        return message

    def up(client: Any, *args: Any) -> Any:
        sent = upload(client, *args)
        keep("up", client, sent.message)
        return sent

    run._download, run._upload = down, up  # type: ignore[method-assign]
    curve = run.run(Silent())
    heard |= {f"server|{name}": value for name, value in run.server.state().items()}
    for client in run.clients:
        heard |= {f"client {client.index}|{name}": v for name, v in client.state().items()}
    rows = curve[curve.measure != "seconds"].drop(columns="value").astype(str).agg("|".join, axis=1)
    return heard | {f"curve {row}": torch.tensor(curve.value[i]) for i, row in rows.items()}


def gap(one: Named, two: Named) -> float:
    """The largest |a - b| / (1 + |a|) of anything; infinite where the two do not even correspond
    or a value is not finite."""
    if one.keys() != two.keys():
        return math.inf
    worst = 0.0
    for name, a in one.items():
        a, b = a.double(), two[name].double()  # masks and counts are among them
        if a.shape != b.shape or not bool((torch.isfinite(a) & torch.isfinite(b)).all()):
            return math.inf
        if a.numel():
            worst = max(worst, float(((a - b).abs() / (1 + a.abs())).max()))
    return worst


def check(method: str, device: str, what: str) -> dict[str, Any]:
    """The stacked engine against the plain loop, and each against itself.

    what: `method` on small clients; `augmentation` with flips and turns; else a network's name.
    The stacked engine may differ in the last bits.
    same_bits: two runs of it gave equal bits, or the loop's do not either on this device.
    """
    shape, changes, rounds = CHECKED, dict[str, Any](CALM), 3
    if what == "augmentation":
        changes |= {"data.flip": True, "data.rotate": 30.0}
    elif what != "method":
        shape, rounds = Shape(what, 28, DEEP, 24, 1), 1
        changes |= {"optimizer.lr": 1e-3}
    protocol = shape.protocol(rounds=rounds).changed(**changes)
    loop, again, one, two = (
        play(method, name, device, shape, protocol)
        for name in ("reference", "reference", "fused", "fused")
    )
    worst, same = gap(loop, one), gap(one, two) == 0 or gap(loop, again) > 0
    ok = worst <= TOLERANCE and same
    return {"gap": worst, "limit": TOLERANCE, "same_bits": same, "ok": ok}


# Seconds per round.


def timed(case: Case, device: torch.device) -> dict[str, Any]:
    """Seconds of whole rounds after a first one, of an engine or of the field's loop."""
    shape = (TINY if case["tiny"] else SHAPES)[case["shape"]]
    shape = replace(shape, epochs=case["epochs"] or shape.epochs)
    method, protocol, federation = case["method"], shape.protocol(), shape.federation()
    clear(device)
    step: Callable[[], object]
    if case["engine"] == "field":
        step = FieldLoop(method, protocol, federation, 0, device).round
    else:
        protocol = protocol.changed(**case["changes"])
        made = methods.create(method)
        step = Training(made, protocol, federation, 0, device, case["engine"]).one_round
    step()
    each = [clocked(step, device) for _ in range(case["repeat"])]
    found = {"median": statistics.median(each), "min": min(each), "max": max(each), "all": each}
    return {"seconds": found, "peak_mib": peak_mib(device)}


def timings(tiny: bool, epochs: int | None) -> Iterator[tuple[str, Case]]:
    """What is measured, by name; of one shape where only the path is tried."""
    cut = f", local epochs: {epochs}" if epochs else ""
    for shape in list(SHAPES)[: 1 if tiny else None]:
        for method in TIMED if shape == "adcol-digits" else TIMED[:1]:
            for engine in ("fused", "reference", "field"):
                case = {"shape": shape, "method": method, "engine": engine, "changes": {}}
                yield f"{shape}{cut}/{method}/{engine}", case
    for shape in ("adcol-digits",) if tiny else ("adcol-digits", "i2pfl-digits"):
        for precision in ("tf32", "bf16"):
            case = {"shape": shape, "method": "FedAvg", "engine": "fused"}
            yield f"{shape}{cut}/{precision}", {**case, "changes": {"precision": precision}}


# One piece of work, in a process apart.


def work(case: Case) -> dict[str, Any]:
    """Do one case on the device that `pick_device` makes deterministic."""
    device = pick_device(case["device"])
    if case["part"] == "checks":
        return check(case["method"], device.type, case["what"])
    return timed(case, device)


def apart(case: Case, limit: float) -> dict[str, Any]:
    """The answer to a case; an `error` where it fails or takes more than `limit` seconds."""
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    threads = {"OMP_NUM_THREADS": "1"} if case["device"] == "cpu" else {}
    words = [sys.executable, str(HERE / "gpu.py"), "--case", json.dumps(case)]
    variables = {**os.environ, "PYTHONPATH": path, **threads}
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit, env=variables)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {limit:.0f} s"}
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            answer: dict[str, Any] = json.loads(line[len(MARK) :])
            return answer
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    return {"error": f"the process ended: {last[0][:300]}"}


def code() -> str:
    """A hash of the library's source: what was proven holds for it alone."""
    sources = sorted((HERE.parent / "fedrepro").rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


class Session:
    """The steps of one call, and the file they fill."""

    def __init__(self, given: argparse.Namespace, command: str) -> None:
        self.given, self.deadline = given, time.time() + 60 * given.minutes
        facts = environment(pick_device(given.device))
        slug = re.sub(r"[^a-z0-9]+", "-", facts["device"].lower()).strip("-")
        self.path = given.json or HERE / "results" / f"gpu-{given.name or slug}.json"
        self.stored: dict[str, Any] = {"calls": [], "tiny": given.tiny, **{s: {} for s in STEPS}}
        if self.path.exists():
            before = files.read_json(self.path)
            last = before["calls"][-1]
            same = all(last["environment"][k] == facts[k] for k in ("device", "driver", "packages"))
            if same and before["tiny"] == given.tiny and last["code"] == code():
                self.stored = before
            else:  # of another state of the code or the machine: kept under its date
                date = last["environment"]["date"].replace(":", "")
                self.path.rename(self.path.with_name(f"{self.path.stem}-{date}.json"))
        self.stored["calls"].append({"command": command, "code": code(), "environment": facts})
        files.write_json(self.path, self.stored)

    def do(self, part: str, name: str, case: Case) -> None:
        """Do a case, store and show its answer. One that an earlier call answered stands."""
        if "error" not in self.stored[part].get(name, {"error": "new"}):
            return
        left = self.deadline - time.time()
        if left < 20 and part != "checks":
            answer: dict[str, Any] = {"error": "the time is up"}
        else:
            common = {"part": part, "device": self.given.device, "tiny": self.given.tiny}
            limit = max(30.0, left + 60)
            answer = apart({**common, **case}, min(LIMIT, limit))
        self.stored[part][name] = answer
        files.write_json(self.path, self.stored)
        print(f"{left / 60:6.1f} min left  {part}  {name}: {json.dumps(answer)}", flush=True)

    def checks(self) -> None:
        """Every method, a few where only the path is tried; augmentation; deep networks."""
        tiny = self.given.tiny
        on_images = [n for n in methods.names() if not methods.get(n).needs_embeddings]
        names = TIMED if tiny else on_images
        cases: dict[str, Case] = {n: {"method": n, "what": "method"} for n in names}
        networks = ("small-cnn",) if tiny else ("digit-cnn", "resnet10", "adcol-resnet50")
        for what in ("augmentation", *networks):
            cases[what] = {"method": "FedAvg", "what": what}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda pair: self.do("checks", *pair), cases.items()))

    def timing(self) -> None:
        """Both engines and the field's loop."""
        given = self.given
        for name, case in timings(given.tiny, given.epochs):
            repeat = 2 if given.tiny else 5
            self.do("timing", name, {**case, "epochs": given.epochs, "repeat": repeat})

    def runs(self) -> None:
        """The campaign's list on the same device, in its order."""
        given, left = self.given, max(0.0, self.deadline - time.time()) / 60
        with TemporaryDirectory() as folder:
            file = Path(folder) / "tiny.yaml"
            file.write_text(TINY_LIST, encoding="utf-8")
            todo = campaign.read(file if given.tiny else given.file)
        campaign.train(todo, given.runs, given.data_root, given.jobs, left, print)
        self.stored["runs"] = {str(run): campaign.status(run, given.runs) for run in todo}
        files.write_json(self.path, self.stored)


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    plan.add_argument("--minutes", type=float, default=60.0, help="time for all steps together")
    plan.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the records")
    plan.add_argument("--epochs", type=int, help="of a timed round; default: the papers'")
    plan.add_argument("--file", type=Path, default=files.LIST, help="list of the runs")
    plan.add_argument("--jobs", type=int, default=5, help="runs at a time")
    plan.add_argument("--data-root", type=Path, help="folder of the official files")
    plan.add_argument("--only", choices=STEPS, help="one step alone")
    plan.add_argument("--name", help="of the machine, for the file; default: the device's")
    plan.add_argument("--json", type=Path, help="default: results/gpu-NAME.json")
    plan.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    plan.add_argument("--tiny", action="store_true", help="settings of a few seconds")
    plan.add_argument("--dry-run", action="store_true", help="--device cpu --tiny")
    plan.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    return plan


def main(words: Sequence[str] | None = None) -> None:
    given = parser().parse_args(words)
    if given.case:
        print(MARK + json.dumps(work(given.case)))
        return
    if given.dry_run:
        given.device, given.tiny = "cpu", True
    command = " ".join(["python benchmarks/gpu.py", *(sys.argv[1:] if words is None else words)])
    session = Session(given, command)
    for step in STEPS:
        if given.only in (None, step):
            getattr(session, step)()
    wrong = [name for name, answer in session.stored["checks"].items() if not answer.get("ok")]
    print(f"wrong: {', '.join(wrong) or 'none'}; written to {session.path}")


if __name__ == "__main__":
    entry.run(main)
