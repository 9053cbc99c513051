"""Where things lie: the checkout, where there is one, the folder of runs, files of methods, and
the modules of a package."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

CHECKOUT = Path(__file__).resolve().parents[2]
# Of the checkout, whatever the working directory; without a checkout, of the working directory.
RUNS = CHECKOUT / "runs" if (CHECKOUT / "notebooks").is_dir() else Path("runs")
# In the environment: Python files with methods, joined as PATH is; the tracker of runs.
LOAD, TRACK = "FEDREPRO_LOAD", "FEDREPRO_TRACK"


def modules_of(*packages: str) -> list[ModuleType]:
    """Every module of some packages, imported: what registers itself there is known afterwards."""
    return [
        importlib.import_module(f"{package}.{module.name}")
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
