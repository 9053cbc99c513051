"""How the clients of a round are trained. An engine knows no method by name."""

from fedrepro.base.errors import FedReproError, choices
from fedrepro.engine.base import Engine, Job, Trained, must_be_finite
from fedrepro.engine.loop import LoopEngine
from fedrepro.engine.stacked import StackedEngine

# By the words that run ids hold.
ENGINES: dict[str, type[LoopEngine] | type[StackedEngine]] = {
    engine.name: engine for engine in (LoopEngine, StackedEngine)
}
# What they may be asked for by, beside those words. `auto` is the plain loop: on a CPU the grouped
# convolutions that stacked clients become are slower.
WORDS = {"auto": "reference", "loop": "reference", "stacked": "fused"}
CHOICES = (*WORDS, *ENGINES)

__all__ = [
    "CHOICES", "ENGINES", "Engine", "Job", "LoopEngine", "StackedEngine", "Trained",
    "must_be_finite", "resolve",
]  # fmt: skip


def resolve(name: str) -> str:
    """The run ids' word of an engine."""
    if name not in CHOICES:
        raise FedReproError(f"no engine {name!r}; choose from {choices(name, CHOICES)}")
    return WORDS.get(name, name)
