"""How the clients of a round are trained. An engine knows no method by name."""

from __future__ import annotations

from fedrepro.engine.base import Engine, Job, Trained
from fedrepro.engine.reference import ReferenceEngine
from fedrepro.errors import FedReproError

ENGINES = {"reference": ReferenceEngine}
CHOICES = ("auto", *ENGINES)

__all__ = ["CHOICES", "ENGINES", "Engine", "Job", "ReferenceEngine", "Trained", "resolve"]


def resolve(name: str) -> str:
    """The engine that `auto` stands for on this machine, or the name itself."""
    if name not in CHOICES:
        raise FedReproError(f"no engine {name!r}; choose from {', '.join(CHOICES)}")
    return "reference" if name == "auto" else name
