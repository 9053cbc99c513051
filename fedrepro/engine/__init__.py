"""How the clients of a round are trained. An engine knows no method by name."""

from fedrepro.base.protocol import resolve_engine as resolve
from fedrepro.engine.base import Engine, Job, Trained, must_be_finite
from fedrepro.engine.loop import LoopEngine
from fedrepro.engine.stacked import StackedEngine

# By their names in run ids.
ENGINES: dict[str, type[Engine]] = {"reference": LoopEngine, "fused": StackedEngine}

__all__ = [
    "ENGINES", "Engine", "Job", "LoopEngine", "StackedEngine", "Trained", "must_be_finite",
    "resolve",
]  # fmt: skip
