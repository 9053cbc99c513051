"""The papers' runs a time budget is spent on, and one of them trained within it.

It has no command; gpu.py asks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fedrepro import methods, papers
from fedrepro.runs import RunSpec, Store

if __package__:
    from benchmarks import agreement
    from benchmarks.workshop import Case
else:  # run as a file: this folder is on the path, the one above may not be
    import agreement
    from workshop import Case

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
PROBE = 3  # rounds after which a run that cannot end in time is left


class OutOfTime(Exception):
    """A run that cannot end in time, and the round it reached; its checkpoint holds that round."""


class Gate:
    """Progress that ends a run once its own seconds a round say it cannot end by the deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.per_round: float | None = None

    def start(self, label: str, total: int, done: int) -> None:
        self.total, self.first, self.began = total, done + 1, time.time()

    def round(self, number: int, accuracy: float) -> None:
        now = time.time()
        if number == self.first:
            self.began = now  # the first round also sets up
        else:
            self.per_round = (now - self.began) / (number - self.first)
        rest = (self.per_round or 0) * (self.total - number)
        late = number == self.first + PROBE - 1 and now + rest > self.deadline
        if number < self.total and (late or now > self.deadline):
            raise OutOfTime(number)

    def finish(self, text: str) -> None: ...


def train(case: Case) -> dict[str, Any]:
    """The record of one run, found, resumed or trained; or how far it came."""
    paper = papers.load(case["paper"])
    arms = paper.arms(case["experiment"], case["dataset"], case["scale"])
    arm = next(a for a in arms if a.label == case["label"])
    gate, begun = Gate(case["deadline"]), time.time()
    root = Path(case["data_root"]) if case["data_root"] else None
    with agreement.engine(case["mode"]) as engine:
        spec = RunSpec(methods.create(arm.method, **arm.fields), arm.protocol, case["seed"], engine)
        store = Store(case["runs"])
        try:
            record = store.obtain(spec, device=case["device"], data_root=root, progress=gate)
        except OutOfTime as stop:
            return {
                "state": "out of time",
                "reached": stop.args[0],
                "rounds": arm.protocol.rounds,
                "per_round": gate.per_round,
                "seconds": time.time() - begun,
            }
    last = record.curve[record.curve["round"] == record.curve["round"].max()]
    tested = last[(last.measure == "accuracy") & (last.split == "test")]
    return {
        "state": "done",
        "run_id": record.run_id,
        "engine": record.config["engine"],
        "rounds": int(last["round"].iloc[0]),
        "accuracy": float(tested.value.mean()),
        "per_round": gate.per_round,
        "seconds": time.time() - begun,
    }
