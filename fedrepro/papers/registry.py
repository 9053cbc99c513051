"""The papers by name."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from fedrepro.base.errors import FedReproError
from fedrepro.papers.paper import Paper, read_paper

FOLDER = Path(__file__).parent
COMMON = "common"  # the project's own protocol, in the form of a paper that prints nothing
LISTED = ("id", "dataset", "caption", "state", "reason")


def names() -> list[str]:
    """The papers' names, sorted."""
    return sorted({path.stem for path in FOLDER.glob("*.yaml") if "." not in path.stem} - {COMMON})


@lru_cache
def load(name: str) -> Paper:
    """A paper by name, or the common protocol; FedReproError naming the choices where there is
    none."""
    choices = [*names(), COMMON]
    if name not in choices:
        raise FedReproError(f"no paper {name!r}; choose from {', '.join(choices)}")
    return read_paper(FOLDER / f"{name}.yaml")


def experiments(paper: str | None = None) -> list[dict[str, str]]:
    """Every table and figure of one paper or of all: paper, id, dataset, caption, state, reason."""
    return [
        {"paper": name, **{key: getattr(experiment, key) for key in LISTED}}
        for name in ([paper] if paper is not None else names())
        for experiment in load(name).experiments
    ]
