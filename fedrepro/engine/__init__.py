"""How the clients of a round are trained. An engine knows no method by name."""

from __future__ import annotations

from fedrepro.engine.base import Engine, Job, Trained, in_order, must_be_finite
from fedrepro.engine.fused import FusedEngine
from fedrepro.engine.reference import ReferenceEngine
from fedrepro.errors import FedReproError

ENGINES: dict[str, type[ReferenceEngine] | type[FusedEngine]] = {
    "reference": ReferenceEngine,
    "fused": FusedEngine,
}
CHOICES = ("auto", *ENGINES)

__all__ = [
    "CHOICES",
    "ENGINES",
    "Engine",
    "FusedEngine",
    "Job",
    "ReferenceEngine",
    "Trained",
    "in_order",
    "must_be_finite",
    "resolve",
]


def resolve(name: str) -> str:
    """The engine that `auto` stands for, or the name itself.

    It is the plain loop: on a CPU the grouped convolutions that stacked clients become are slower,
    and on a GPU the fused engine is not proven yet; ask for it by name there.
    """
    if name not in CHOICES:
        raise FedReproError(f"no engine {name!r}; choose from {', '.join(CHOICES)}")
    return "reference" if name == "auto" else name
