"""Paths: the checkout, if there is one, the folder of runs; and the modules of a package."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).resolve().parents[2]
RECORDS = CHECKOUT / "book" / "records"  # the published, packed ones
# In the checkout, from any working directory; without a checkout, in the working directory.
RUNS = CHECKOUT / "runs" if (CHECKOUT / "notebooks").is_dir() else Path("runs")
# Environment variables: Python files with methods, joined like PATH; the tracker of runs.
LOAD, TRACK = "FEDREPRO_LOAD", "FEDREPRO_TRACK"
# How to get a checkout, which a wheel lacks.
CLONE = "clone the repository and install it with `pip install -e .`"


def modules_of(*packages: str) -> list[ModuleType]:
    """Every module of some packages, imported, so that their methods and readers are registered."""
    return [
        importlib.import_module(f"{package}.{module.name}")
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
