"""Rounds of one run, or of several that differ in their seed alone, whose clients an engine then
trains side by side. Each run's numbers are its own: nothing passes from one to another."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from typing import Protocol as Interface

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fedrepro.averaging import RunningAverage
from fedrepro.clients import Client, Groups
from fedrepro.curve import Row
from fedrepro.engine import Job, Trained
from fedrepro.errors import Diverged
from fedrepro.messages import Message, count_bytes
from fedrepro.methods.base import Method, Upload
from fedrepro.progress import Progress

if TYPE_CHECKING:
    from fedrepro.rounds import Training


class Checkpoint(Interface):
    """Where a run's unfinished state goes."""

    def load(self) -> tuple[Mapping[str, Tensor], dict[str, Any]] | None: ...

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None: ...

    def due(self) -> bool: ...


@dataclass
class Round:
    """A round in the making: who takes part, and what has come back. By client: its position among
    those chosen."""

    number: int
    chosen: list[Client]
    average: RunningAverage
    downs: list[Message] = field(default_factory=list)
    weights: Sequence[float] = ()
    jobs: list[Job] = field(default_factory=list)
    uploads: dict[int, Upload] = field(default_factory=dict)
    after: dict[int, Groups] = field(default_factory=dict)
    twins: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    clock: dict[str, float] = field(default_factory=dict)
    tested: list[Row] = field(default_factory=list)
    terms: list[Row] = field(default_factory=list)
    predicted: dict[str, Tensor] = field(default_factory=dict)

    def add_terms(self, client: Client, trained: Trained, prefix: str = "") -> None:
        for term, value in trained.terms.items():
            name = client.data.name
            self.terms.append((self.number, "term", prefix + term, name, "train", value))

    def rows(self, server: Mapping[str, float]) -> list[Row]:
        """What the curve keeps of the round, whatever order clients came back in."""
        order = {client.data.name: i for i, client in enumerate(self.chosen)}
        rows = self.tested + sorted(self.terms, key=lambda row: order[row[3]])
        rows += [(self.number, "server", k, "", "", v) for k, v in server.items()]
        for way, counted in (("down", count_bytes(self.downs)), ("up", self.sent)):
            named = {f"{way}/{kind}": float(size) for kind, size in counted.items()}
            rows += [(self.number, "bytes", k, "", "", v) for k, v in named.items()]
        return rows + [(self.number, "seconds", k, "", "", v) for k, v in self.clock.items()]


@dataclass
class Stage:
    """Training a round asks its engine for, and who takes the results as they come.

    clock: seconds of the round so far; those of the training go under `name`, shared evenly where
    several runs train together.
    """

    name: str
    jobs: list[Job]
    clock: dict[str, float]
    take: Callable[[int, Trained], None]


def run_together(
    trainings: Sequence[Training],
    progress: Progress,
    checkpoints: Sequence[Checkpoint | None],
) -> list[pd.DataFrame]:
    """Train all to their last round or early stop, resumed where their checkpoints say; the
    curves in order.

    They share the first one's engine, so method, protocol, federation and device must be equal.
    """
    for training, checkpoint in zip(trainings, checkpoints, strict=True):
        training.engine = trainings[0].engine
        if checkpoint is not None:
            training.resume(checkpoint)
    first = trainings[0]
    seeds = ", ".join(str(training.seed) for training in trainings)
    label = f"{first.method.name} seed{'s' * (len(trainings) > 1)} {seeds}"
    progress.start(label, first.protocol.rounds, min(t.round for t in trainings))
    try:
        while active := [t for t in trainings if not t.finished]:
            done = min(t.round for t in trainings)
            one_round(active)
            if min(t.round for t in trainings) > done:
                progress.round(done + 1, _accuracy(trainings))
            for training, checkpoint in zip(trainings, checkpoints, strict=True):
                if checkpoint is not None and training in active and checkpoint.due():
                    training.save(checkpoint)
    except BaseException:
        for training, checkpoint in zip(trainings, checkpoints, strict=True):
            if checkpoint is not None and training.round and training.whole:
                training.save(checkpoint)
        raise
    rounds = max(t.round for t in trainings)
    progress.finish(f"{rounds} rounds, avg {_accuracy(trainings):.2f} %")
    return [training.curve() for training in trainings]


def one_round(trainings: Sequence[Training]) -> None:
    """The next round of each, their clients trained in common calls of the first one's engine.

    An exception leaves those whose round was not yet whole as they were before it.

    Raises:
        Diverged: a client's loss is no number; all later rounds would be lost on it.
    """
    engine, method = trainings[0].engine, trainings[0].method
    courses = [training.stages(training.round + 1) for training in trainings]
    try:
        while stages := [s for s in (next(course, None) for course in courses) if s is not None]:
            owners = [(stage, i) for stage in stages for i in range(len(stage.jobs))]
            jobs = [job for stage in stages for job in stage.jobs]
            begun, taking = time.perf_counter(), 0.0
            with closing(engine.train(method, jobs)) as results:  # whatever it has under way ends
                for position, trained in results:
                    _must_be_numbers(method, jobs[position], trained.terms)
                    handed = time.perf_counter()
                    stage, own = owners[position]
                    stage.take(own, trained)
                    taking += time.perf_counter() - handed
            if trainings[0].device.type == "cuda":
                torch.cuda.synchronize(trainings[0].device)
            share = (time.perf_counter() - begun - taking) / len(stages)
            for stage in stages:
                stage.clock[stage.name] = stage.clock.get(stage.name, 0.0) + share
    finally:
        for course in courses:
            course.close()


def _accuracy(trainings: Sequence[Training]) -> float:
    return float(np.mean([t.accuracy for t in trainings]))


def _must_be_numbers(method: Method, job: Job, terms: Mapping[str, float]) -> None:
    broken = [f"{term} = {value}" for term, value in terms.items() if not math.isfinite(value)]
    if broken:
        raise Diverged(
            f"{method.name}, seed {job.seed}: the loss of client {job.client} in round {job.round} "
            f"is no number ({', '.join(broken)}): training diverged; lower the learning rate, or "
            "see what the method's fields feed it",
            job.seed,
            job.round,
        )
