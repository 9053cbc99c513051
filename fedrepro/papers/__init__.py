"""The papers: what they print, how they train with the source of every value, what they claim."""

from __future__ import annotations

from fedrepro.papers.paper import Arm, Paper
from fedrepro.papers.registry import COMMON, experiments, load, read_paper
from fedrepro.papers.registry import names as list
from fedrepro.papers.schema import (
    Cell,
    Claim,
    Comparison,
    Experiment,
    Setting,
    Table,
    Target,
    Tuning,
    contradicts,
)

__all__ = [
    "COMMON",
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
    "contradicts",
    "experiments",
    "list",
    "load",
    "read_paper",
]
