"""The environment of a run: packages, device, threads, commit."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedrepro.base.errors import FedReproError
from fedrepro.base.protocol import check_device
from fedrepro.base.threads import free_threads

PACKAGES = (
    *("fedrepro", "torch", "torchvision", "numpy"),
    *("scipy", "scikit-learn", "pandas", "pillow"),
)


def environment(device: torch.device) -> dict[str, Any]:
    """Facts of this process and machine, as in a record."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "device": device_name(device),
        "driver": _driver() if device.type == "cuda" else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "at_once": free_threads(),  # parallel threads: clients in training, batches in a test
        **commit(),
    }


def describe_build() -> dict[str, Any]:
    """The same facts in one line each, for a page."""
    facts = environment(torch.device("cpu"))
    packages = facts.pop("packages")
    facts = {k: v for k, v in facts.items() if v is not None} | packages
    return {key: str(value) for key, value in facts.items()}


def _version(name: str) -> str | None:
    if name == "torch":
        return str(torch.__version__)
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line for line in lines if line.startswith("model name"))
        return model.split(":", 1)[1].strip()
    except (OSError, StopIteration):
        return platform.processor() or "CPU"


def _driver() -> str | None:
    answer = _command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return answer.splitlines()[0] if answer else None


@cache
def commit() -> dict[str, Any]:
    """The library's git commit, and whether files differ from it; None outside a checkout."""
    here = str(Path(__file__).resolve().parent.parent)
    return {
        "commit": _command("git", "-C", here, "rev-parse", "HEAD"),
        "dirty": bool(_command("git", "-C", here, "status", "--porcelain", "--", here)),
    }


def _command(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def pick_device(name: str) -> torch.device:
    """The device for auto, cpu or cuda; cuda is made deterministic."""
    check_device(name)
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise FedReproError("no CUDA device is available; use --device cpu")
    if name == "cpu" or not available:
        return torch.device("cpu")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda")
