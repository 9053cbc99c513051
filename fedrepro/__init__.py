"""Federated learning under feature skew: five papers re-run, every printed number next to ours.

import fedrepro

fedrepro.run("ADCOL", "office10", scale="reduced").accuracy
fedrepro.compare(["FedAvg", "FedBN"], seeds=[0, 1, 2])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrepro.api import Run, compare, federation, run
    from fedrepro.base.errors import FedReproError
    from fedrepro.methods import register
    from fedrepro.methods.base import Method, hyper

__version__ = "0.1.0"
__all__ = ["FedReproError", "Method", "Run", "compare", "federation", "hyper", "register", "run"]

_ROOMS = {"Method": "methods.base", "hyper": "methods.base", "register": "methods"}
_ROOMS["FedReproError"] = "base.errors"


def __getattr__(name: str) -> Any:
    """The public names, imported when first used: torch takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'fedrepro' has no attribute {name!r}")
    return getattr(import_module(f"fedrepro.{_ROOMS.get(name, 'api')}"), name)
