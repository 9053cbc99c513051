"""The only module that imports torchvision. The wheel on PyPI is built for CUDA. With a CPU build
of torch its native library does not load, and the import stops at the first operator without a
schema. Its Python parts need no operator, so the missing schemas are declared here and the import
is tried again. With a CUDA build of torch nothing is changed."""

import functools
import importlib
import re
import sys
from types import ModuleType
from typing import Any

import torch

# A declared schema disappears with its library object, so these live as long as the process.
_DECLARED: list[Any] = []
_MISSING = re.compile(r"operator torchvision::(\w+) does not exist")


@functools.cache
def load_torchvision() -> ModuleType:
    """torchvision, imported. ``ops`` and ``io`` do not work without the native library.
    ImportError: torchvision is not installed, or fails for another reason."""
    while True:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            match = _MISSING.search(str(error))
            if match is None or torch.version.cuda is not None:
                raise ImportError(f"torchvision could not be imported: {error}") from error
            declare: Any = torch.library.Library  # untyped in torch
            library = declare("torchvision", "FRAGMENT")
            library.define(f"{match[1]}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _DECLARED.append(library)
            for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
                del sys.modules[name]  # half-imported modules would be found again
