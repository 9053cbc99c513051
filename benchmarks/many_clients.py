"""More clients than memory holds: rounds of FedAvg, FedBN and ADCOL with a thousand digit CNNs.

    python benchmarks/many_clients.py [--clients 1000] [--methods ADCOL] [--folder DIR]

Every client has a network of 57 MB of its own where its method keeps one. Each method runs in a
process apart; a watcher samples the memory that cannot be given back (anonymous pages).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from fedrepro import files, methods
from fedrepro.errors import FedReproError
from fedrepro.rounds import Training
from fedrepro.runs.environment import environment, pick_device

if __package__:
    from benchmarks import entry
    from benchmarks.timing import Shape
else:
    import entry
    from timing import Shape

RESULTS = Path(__file__).resolve().parent / "results"
METHODS = ("FedAvg", "FedBN", "ADCOL")


class Watcher(threading.Thread):
    """The highest number of anonymous bytes this process has had since the start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.highest = 0

    def run(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.highest = max(self.highest, int(line.split()[1]) * 1024)
            time.sleep(0.2)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Rounds of one method, in this process."""
    device = pick_device(given.device)
    shape = Shape(given.model, 28, (given.images,) * given.clients, batch=given.images, epochs=1)
    watcher = Watcher()
    watcher.start()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        run = Training(
            methods.create(given.methods),
            shape.protocol(given.rounds),
            shape.federation(),
            0,
            device,
            given.engine,
        )
        network = sum(value.nbytes for value in run.server.model.values())
        seconds = []
        for _ in range(given.rounds):
            begun = time.perf_counter()
            run.one_round()
            seconds.append(time.perf_counter() - begun)
        phases = run.curve()
        phases = phases[(phases.measure == "seconds") & (phases["round"] == given.rounds)]
        return {
            "method": given.methods,
            "seconds": seconds,
            "phases": dict(zip(phases.subject, phases.value.astype(float), strict=True)),
            "accuracy": run.log.accuracy,
            "network_bytes": network,
            "kept_bytes": sum(v.nbytes for g in run.clients[0].groups.values() for v in g.values())
            * given.clients,
            "file_bytes": sum(p.stat().st_size for p in folder.rglob("*.bin")),
            "anonymous_peak_bytes": watcher.highest,
            "place": "memory",
        }
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=entry.count, default=1000)
    parser.add_argument("--images", type=entry.count, default=10, help="of each client, one batch")
    parser.add_argument("--rounds", type=entry.count, default=2)
    parser.add_argument("--model", default="digit-cnn")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="reference")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--folder", type=Path, help="where clients' files go while it runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(measure(given)))
        return
    place = pick_device(given.device)
    path = given.json or RESULTS / f"many-clients-{given.model}-{place.type}.json"
    command = entry.command("many_clients", sys.argv[1:])
    settings = {k: v for k, v in vars(given).items() if k not in ("json", "inside", "folder")}
    answers = []
    chosen = [methods.get(name).name for name in given.methods.split(",")]
    for name in chosen:
        words = [*sys.argv[1:], "--methods", name, "--inside"]
        done = subprocess.run(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:  # it has said why
            raise FedReproError(f"{name} ended with status {done.returncode}")
        answers.append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{name}: {answers[-1]}", flush=True)
        stored = {"command": command, "settings": settings, "environment": environment(place)}
        files.write_json(path, {**stored, "methods": answers})


if __name__ == "__main__":
    entry.run(main)
