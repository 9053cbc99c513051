"""Everything that needs a GPU, once: proof of the stacked engine, speed, and runs at paper scale.

    python benchmarks/gpu.py [--minutes 60] [--runs runs] [--data-root DIR] [--name NAME]
    python benchmarks/gpu.py --only runs --minutes 30      goes on with what an earlier call proved
    python benchmarks/gpu.py --dry-run                     the same path on a CPU, in minutes

It checks the stacked engine against the plain loop, measures both, then trains the papers' runs in
a stated order with the faster one. Each piece of work is done in a process apart, and
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import entry
import torch
from field_loop import FieldLoop
from timing import SHAPES, TINY, Shape, clear, clocked, peak_mib
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedrepro import methods, papers
from fedrepro.base import files
from fedrepro.base.errors import FedReproError
from fedrepro.base.progress import Silent
from fedrepro.base.protocol import Protocol
from fedrepro.federated.rounds import Training
from fedrepro.records import RunSpec, Store, federation_of
from fedrepro.records.record import environment, pick_device

HERE = Path(__file__).resolve().parent
STEPS = ("checks", "timing", "runs")
TIMED = ("FedAvg", "ADCOL")
AT_ONCE = min(4, max(1, (os.cpu_count() or 1) // 2))  # checks; no time of theirs is reported
LIMIT = 300.0  # seconds of a check or of a measurement
MARK = "@result "
Case = dict[str, Any]
Named = dict[str, Tensor]


# The proof: the plain loop's numbers, and the same bits twice.

CHECKED = Shape("tiny-cnn", 16, (21, 13, 9, 13, 16, 21), batch=8, epochs=2)
CALM = {"data.normalise": "half", "precision": "float64"}
TOLERANCE = 1e-8
# Deep networks turn the last bits of float64 into more, the faster the larger the step and the
# smaller the batch: ResNet-50 into 1e-8 in a round of these, into 1e-6 at ten times the step.
TOLERANCE_DEEP = 1e-6


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
    same_bits: two runs of it gave equal bits, or the loop's do not either on this device.
    """
    shape, changes, rounds, limit = CHECKED, dict[str, Any](CALM), 3, TOLERANCE
    if what == "augmentation":
        changes |= {"data.flip": True, "data.rotate": 30.0}
    elif what != "method":
        shape, rounds, limit = Shape(what, 28, (136, 136, 40), 24, 1), 1, TOLERANCE_DEEP
        changes |= {"optimizer.lr": 1e-3}
    protocol = shape.protocol(rounds=rounds).changed(**changes)
    loop, again, one, two = (
        play(method, engine, device, shape, protocol)
        for engine in ("reference", "reference", "fused", "fused")
    )
    worst, same = gap(loop, one), gap(one, two) == 0 or gap(loop, again) > 0
    return {"gap": worst, "limit": limit, "same_bits": same, "ok": worst <= limit and same}


def is_proven(checks: Mapping[str, Any], method: str, protocol: Protocol) -> bool:
    """Whether the stacked engine was right for a method, and for what else a protocol needs."""
    wanted = [method]
    wanted += ["augmentation"] if protocol.data.flip or protocol.data.rotate else []
    wanted += [protocol.model] if protocol.model in checks else []
    return all(checks.get(name, {}).get("ok", False) for name in wanted)


def engine_for(stored: Mapping[str, Any], method: str, protocol: Protocol) -> str:
    """The stacked engine where it is proven, and not slower as far as that was measured."""

    def seconds(engine: str) -> float:
        shapes = [name for name, shape in SHAPES.items() if shape.model == protocol.model]
        found = (stored["timing"].get(f"{s}/FedAvg/{engine}", {}).get("seconds") for s in shapes)
        return next((float(values["median"]) for values in found if values), math.inf)

    proven = is_proven(stored["checks"], method, protocol)
    return "fused" if proven and seconds("fused") <= seconds("reference") else "reference"


# Seconds a round.


def timed(case: Case, device: torch.device) -> dict[str, Any]:
    """Seconds of whole rounds after a first one, of an engine or of the field's loop."""
    shape = (TINY if case["tiny"] else SHAPES)[case["shape"]]
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


def timings(tiny: bool) -> Iterator[tuple[str, Case]]:
    """What is measured, by name; of one shape where only the path is tried."""
    for shape in list(SHAPES)[: 1 if tiny else None]:
        for method in TIMED if shape == "adcol-digits" else TIMED[:1]:
            for engine in ("fused", "reference", "field"):
                case = {"shape": shape, "method": method, "engine": engine, "changes": {}}
                yield f"{shape}/{method}/{engine}", case
    for shape in ("adcol-digits",) if tiny else ("adcol-digits", "i2pfl-digits"):
        for precision in ("tf32", "bf16"):
            case = {"shape": shape, "method": "FedAvg", "engine": "fused"}
            yield f"{shape}/{precision}", {**case, "changes": {"precision": precision}}


# The papers' runs.

ORDER = (  # paper, experiment, data sets of which the first at hand is taken
    ("fedapc", "table-1-office10", ("office10",)),
    ("i2pfl", "table-3-office10", ("office10",)),
    ("fedpall", "table-1-office10", ("office10",)),
    ("fedpall", "table-1-pacs", ("pacs",)),
    ("adcol", "table-4", ("office10",)),
    ("i2pfl", "table-3-digits", ("digits4", "digits4-standin")),
    ("fedapc", "table-1-digits", ("digits4", "digits4-standin")),
    ("adcol", "table-1", ("digits5", "digits5-standin")),
    ("fedpall", "table-1-digits", ("digits5", "digits5-standin")),
)
TINY_ORDER = (("adcol", "table-4", ("minidigits",)),)


class OutOfTime(Exception):
    """A run that cannot end in time, and the round it reached; its checkpoint holds that round."""


class Gate(Silent):
    """Ends a run once its seconds a round say, three rounds on, that it cannot end in time."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def start(self, label: str, total: int, done: int) -> None:
        self.total, self.first = total, done + 1

    def round(self, number: int, accuracy: float) -> None:
        now = time.time()
        if number == self.first:
            self.began = now  # the first round also sets up
        each = (now - self.began) / max(1, number - self.first)
        late = number == self.first + 2 and now + each * (self.total - number) > self.deadline
        if number < self.total and (late or now > self.deadline):
            raise OutOfTime(number)


def trained(case: Case) -> dict[str, Any]:
    """The record of one run, found, resumed or trained; or how far it came."""
    arms = papers.load(case["paper"]).arms(case["experiment"], case["dataset"], case["scale"])
    arm = next(a for a in arms if a.label == case["label"])
    method = methods.create(arm.method, **arm.fields)
    spec = RunSpec(method, arm.protocol, case["seed"], case["engine"])
    root = Path(case["data_root"]) if case["data_root"] else None
    store, gate = Store(case["runs"]), Gate(case["deadline"])
    try:
        record = store.obtain(spec, device=case["device"], data_root=root, progress=gate)
    except OutOfTime as stop:
        return {"state": "out of time", "reached": stop.args[0], "rounds": arm.protocol.rounds}
    last = record.curve[record.curve["round"] == record.curve["round"].max()]
    tested = last[(last.measure == "accuracy") & (last.split == "test")]
    return {
        "state": "done",
        "run_id": record.run_id,
        "engine": record.config["engine"],
        "rounds": int(last["round"].iloc[0]),
        "accuracy": float(tested.value.mean()),
    }


# One piece of work, in a process apart.


def work(case: Case) -> dict[str, Any]:
    """Do one case on the device that `pick_device` makes deterministic."""
    device = pick_device(case["device"])
    if case["part"] == "checks":
        return check(case["method"], device.type, case["what"])
    return trained(case) if case["part"] == "runs" else timed(case, device)


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
        known = self.stored[part].get(name, {"error": "new"})
        if "error" not in known and known.get("state") in (None, "done"):
            return
        left = self.deadline - time.time()
        if left < 20 and part != "checks":
            answer: dict[str, Any] = {"error": "the time is up"}
        else:
            common = {"part": part, "device": self.given.device, "tiny": self.given.tiny}
            limit = max(30.0, left + 60)
            answer = apart({**common, **case}, limit if part == "runs" else min(LIMIT, limit))
        self.stored[part][name] = answer
        files.write_json(self.path, self.stored)
        print(f"{left / 60:6.1f} min left  {part}  {name}: {json.dumps(answer)}", flush=True)

    def checks(self) -> None:
        """Every method, a few where only the path is tried; augmentation; deep networks."""
        tiny = self.given.tiny
        on_images = [n for n in methods.names() if not methods.get(n).needs_embeddings]
        cases = {n: {"method": n, "what": "method"} for n in (TIMED if tiny else on_images)}
        networks = ("small-cnn",) if tiny else ("digit-cnn", "resnet10", "adcol-resnet50")
        for what in ("augmentation", *networks):
            cases[what] = {"method": "FedAvg", "what": what}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda pair: self.do("checks", *pair), cases.items()))

    def timing(self) -> None:
        """Both engines and the field's loop."""
        for name, case in timings(self.given.tiny):
            self.do("timing", name, {**case, "repeat": 2 if self.given.tiny else 5})

    def runs(self) -> None:
        """Seed by seed, so that whole tables of one seed come first."""
        given, scale = self.given, "smoke" if self.given.tiny else "paper"
        for paper, experiment, datasets in TINY_ORDER if given.tiny else ORDER:
            for dataset in datasets:
                try:
                    arms = papers.load(paper).arms(experiment, dataset, scale)
                    federation_of(arms[0].protocol.data, given.data_root)
                    break
                except FedReproError as error:
                    print(f"left out: {paper} {experiment}: {error}")
            else:
                continue
            arms = [arm for arm in arms if arm.method in methods.names()]
            for seed in (0,) if given.tiny else (0, 1, 2):
                for arm in arms[: 3 if given.tiny else None]:
                    case = {"paper": paper, "experiment": experiment, "dataset": dataset}
                    case |= {"scale": scale, "label": arm.label, "runs": str(given.runs)}
                    case |= {"data_root": given.data_root and str(given.data_root)}
                    case |= {"seed": seed, "deadline": self.deadline}
                    case |= {"engine": engine_for(self.stored, arm.method, arm.protocol)}
                    self.do("runs", f"{paper}/{experiment}/{dataset}/{arm.label}/{seed}", case)


def parser() -> argparse.ArgumentParser:
    plan = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    plan.add_argument("--minutes", type=float, default=60.0, help="time for all steps together")
    plan.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the records")
    plan.add_argument("--data-root", type=Path, help="folder of the official files")
    plan.add_argument("--only", choices=STEPS, help="one step alone, and the checks it rests on")
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
        if step == "checks" or given.only in (None, step):
            getattr(session, step)()
    wrong = [name for name, answer in session.stored["checks"].items() if not answer.get("ok")]
    print(f"wrong: {', '.join(wrong) or 'none'}; written to {session.path}")


if __name__ == "__main__":
    entry.run(main)
