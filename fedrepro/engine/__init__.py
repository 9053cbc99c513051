"""How the clients of a round are trained. An engine knows no method by name."""

from __future__ import annotations

from fedrepro.engine.base import Engine, Job, Trained, in_order
from fedrepro.engine.loop import LoopEngine
from fedrepro.engine.stacked import StackedEngine
from fedrepro.errors import FedReproError

# By the words that run ids hold.
ENGINES: dict[str, type[LoopEngine] | type[StackedEngine]] = {
    engine.name: engine for engine in (LoopEngine, StackedEngine)
}
CHOICES = ("auto", *ENGINES)

__all__ = [
    "CHOICES",
    "ENGINES",
    "Engine",
    "Job",
    "LoopEngine",
    "StackedEngine",
    "Trained",
    "in_order",
    "resolve",
]


def resolve(name: str) -> str:
    """The engine that `auto` stands for, or the name itself.

    It is the plain loop: on a CPU the grouped convolutions that stacked clients become are slower.
    """
    if name not in CHOICES:
        raise FedReproError(f"no engine {name!r}; choose from {', '.join(CHOICES)}")
    return "reference" if name == "auto" else name
