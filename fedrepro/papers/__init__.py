"""The papers: what they print, how they train with the source of every value, what they claim."""

from __future__ import annotations

from fedrepro.papers.paper import Arm, Paper, read_paper
from fedrepro.papers.registry import experiments, load
from fedrepro.papers.registry import names as list
from fedrepro.papers.schema import (
    COUNTED,
    UNTRAINED,
    Cell,
    Claim,
    Comparison,
    Experiment,
    Setting,
    Table,
    Target,
    Tuning,
)

__all__ = [
    "COUNTED",
    "UNTRAINED",
    "Arm",
    "Cell",
    "Claim",
    "Comparison",
    "Experiment",
    "Paper",
    "Setting",
    "Table",
    "Target",
    "Tuning",
    "experiments",
    "list",
    "load",
    "read_paper",
]
