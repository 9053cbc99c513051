"""Paths: the checkout, if there is one, the folder of runs, files of methods, and the modules of
a package."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).resolve().parents[2]
# In the checkout, from any working directory; without a checkout, in the working directory.
RUNS = CHECKOUT / "runs" if (CHECKOUT / "notebooks").is_dir() else Path("runs")
# Environment variables: Python files with methods, joined like PATH; the tracker of runs.
LOAD, TRACK = "FEDREPRO_LOAD", "FEDREPRO_TRACK"


def modules_of(*packages: str) -> list[ModuleType]:
    """Every module of some packages, imported, so that their methods and readers are registered."""
    return [
        importlib.import_module(f"{package}.{module.name}")
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
