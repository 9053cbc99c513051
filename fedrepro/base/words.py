"""The words for where and how a run is trained. They are here, apart from what they mean, so that
a mistyped one is answered before anything heavy is imported."""

from __future__ import annotations

from fedrepro.base.errors import FedReproError, choices

DEVICES = ("auto", "cpu", "cuda")
# What an engine may be asked for by, and the word that run ids hold. `auto` is the plain loop: on a
# CPU the grouped convolutions that stacked clients become are slower.
ENGINES = {
    **{"auto": "reference", "loop": "reference", "stacked": "fused"},
    **{"reference": "reference", "fused": "fused"},
}


def check_device(name: str) -> None:
    """FedReproError where there is no such word."""
    if name not in DEVICES:
        raise FedReproError(f"no device {name!r}; choose from {', '.join(DEVICES)}")


def resolve_engine(name: str) -> str:
    """The run ids' word of an engine."""
    if name not in ENGINES:
        raise FedReproError(f"no engine {name!r}; choose from {choices(name, ENGINES)}")
    return ENGINES[name]
