"""How the clients of a round are trained. An engine knows no method by name."""

from fedrepro.base.errors import FedReproError, choices
from fedrepro.engine.base import Engine, Job, Trained, must_be_finite
from fedrepro.engine.loop import LoopEngine
from fedrepro.engine.stacked import StackedEngine

# By their names in run ids.
ENGINES: dict[str, type[LoopEngine] | type[StackedEngine]] = {
    engine.name: engine for engine in (LoopEngine, StackedEngine)
}
# Other names that users may give. `auto` is the plain loop: stacked clients become grouped
# convolutions, which are slower on a CPU.
WORDS = {"auto": "reference", "loop": "reference", "stacked": "fused"}
CHOICES = (*WORDS, *ENGINES)

__all__ = [
    "CHOICES", "ENGINES", "Engine", "Job", "LoopEngine", "StackedEngine", "Trained",
    "must_be_finite", "resolve",
]  # fmt: skip


def resolve(name: str) -> str:
    """The name of an engine in run ids."""
    if name not in CHOICES:
        raise FedReproError(f"no engine {name!r}; choose from {choices(name, CHOICES)}")
    return WORDS.get(name, name)
