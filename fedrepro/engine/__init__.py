"""How the clients of a round are trained. An engine knows no method by name."""

from fedrepro.engine.base import Engine
from fedrepro.engine.loop import LoopEngine
from fedrepro.engine.stacked import StackedEngine

# By their names in run ids.
ENGINES: dict[str, type[Engine]] = {"reference": LoopEngine, "fused": StackedEngine}

__all__ = ["ENGINES", "LoopEngine", "StackedEngine"]
