"""The papers: printed numbers, protocols with the source of every value, and claims."""

from fedrepro.papers.paper import COMPARES, Arm, Paper
from fedrepro.papers.registry import (
    COMMON,
    Question,
    default_datasets,
    experiments,
    known_methods,
    load,
    read_paper,
)
from fedrepro.papers.registry import names as list
from fedrepro.papers.schema import Claim, Comparison, Experiment, Table, Tuning, contradicts

__all__ = [
    "COMMON", "COMPARES", "Arm", "Claim", "Comparison", "Experiment", "Paper", "Question", "Table",
    "Tuning", "contradicts", "default_datasets", "experiments", "known_methods", "list", "load",
    "read_paper",
]  # fmt: skip
