"""A run's identity, its environment, its files when it is finished, its features' points."""

import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load

from fedrepro.base import files
from fedrepro.base.errors import need, one_of
from fedrepro.base.protocol import DEVICES, Protocol, resolve_engine
from fedrepro.base.rng import stream_seed
from fedrepro.base.threads import free_threads
from fedrepro.data import folders
from fedrepro.methods.base import Method
from fedrepro.records.fingerprint import fingerprint

Array = np.ndarray[Any, Any]
AGAIN = "delete its folder and run again"
DIMENSIONS = 50  # of a record's features
CHECKPOINT = "checkpoint.safetensors"  # of a run that is not finished
PERPLEXITY = 30.0  # t-SNE's usual value; fewer points take a third of their number
LEAST = 5  # points
PACKAGES = "fedrepro", "torch", "torchvision", "numpy", "scipy", "scikit-learn", "pandas", "pillow"


@dataclass(frozen=True)
class RunSpec:
    """Everything that may change a run's numbers, except data hashes."""

    method: Method
    protocol: Protocol
    seed: int
    engine: str = "auto"

    def config(self) -> dict[str, Any]:
        """The plain values that are hashed and recorded."""
        own, word = self.method, resolve_engine(self.engine)
        method = {"name": own.name, "version": own.version, "fields": own.fields()}
        if not type(own).__module__.startswith("fedrepro."):
            method["code"] = fingerprint(type(own))
        protocol = self.protocol.model_dump(mode="json")
        protocol["data"]["dataset"] = folders.kind(self.protocol.data.dataset)  # data have hashes
        return {"method": method, "protocol": protocol, "seed": self.seed, "engine": word}


def run_id(config: Mapping[str, Any], hashes: Mapping[str, str]) -> str:
    """16 hex digits of the hash of a run's config and its data, split and allocation hashes."""
    return short_hash([config, dict(hashes)])


def short_hash(content: Any) -> str:
    """16 hex digits of the SHA-256 of a plain value."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


# Where it runs.


def environment(device: torch.device) -> dict[str, Any]:
    """Facts of this process and machine, as in a record."""
    versions = {name: _version(name) for name in PACKAGES}
    driver = "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions | {"torch": str(torch.__version__)},
        "device": device_name(device),
        "driver": _answer(*driver).partition("\n")[0] or None if device.type == "cuda" else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "at_once": free_threads(),  # clients that train at the same time, if memory allows
        **commit(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return str(re.findall(r"^model name\s*:\s*(.*\S)", facts, re.MULTILINE)[0])
    except (OSError, IndexError):
        return platform.processor() or "CPU"


@cache
def commit() -> dict[str, Any]:
    """The library's git commit, and whether files differ from it; None outside a checkout."""
    if not (files.CHECKOUT / ".git").exists():  # git would find a repository around it
        return {"commit": None, "dirty": False}
    here = str(Path(__file__).resolve().parent.parent)
    dirty = _answer("git", "-C", here, "status", "--porcelain", "--", here)
    return {"commit": _answer("git", "-C", here, "rev-parse", "HEAD") or None, "dirty": bool(dirty)}


def _answer(*words: str) -> str:
    """What a command prints; nothing, if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def pick_device(name: str) -> torch.device:
    """The device for auto, cpu or cuda; cuda is made deterministic."""
    one_of(name, DEVICES, "device")
    available = torch.cuda.is_available()
    need(name != "cuda" or available, "no CUDA device is available; choose device cpu")
    if name == "cpu" or not available:
        return torch.device("cpu")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda")


@dataclass(frozen=True)
class Record:
    """A finished run in its folder. Its files must have their SHA-256 in `done`."""

    folder: Path

    @cached_property
    def _listed(self) -> dict[str, str]:
        moved = f"{self.folder} was packed or deleted meanwhile; run the same command again"
        need((self.folder / "done").is_file(), moved)
        listed = files.read_json(self.folder / "done")
        for path in (self.folder / name for name in listed):
            need(path.is_file(), f"{path} is missing; {AGAIN}")
        return listed

    def read(self, name: str) -> bytes:
        """The bytes of a file of the record; FedReproError if it has none, or it was changed."""
        path = self.folder / name
        need(name in self._listed, f"{self.folder} has no {name}; it has {', '.join(self._listed)}")
        content, why = path.read_bytes(), "it was changed: its checksum differs"
        same = self._listed[name] == hashlib.sha256(content).hexdigest()
        need(same, f"{path} cannot be read ({why}); {AGAIN}")
        return content

    def measured(self, name: str) -> dict[str, Any]:
        """The measurement of a probe by name; also config, environment and data."""
        found: dict[str, Any] = json.loads(self.read(f"{name}.json"))
        return found

    @property
    def probes(self) -> list[str]:
        """Names of the probes with a measurement."""
        names = {name.removesuffix(".json") for name in self._listed if name.endswith(".json")}
        return sorted(names - {"config", "environment", "data"})

    @property
    def run_id(self) -> str:
        return self.folder.name

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.measured("config")

    @cached_property
    def protocol(self) -> Protocol:
        return Protocol.model_validate(self.config["protocol"])

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self.measured("environment")

    @cached_property
    def data(self) -> dict[str, Any]:
        return self.measured("data")

    @cached_property
    def curve(self) -> pd.DataFrame:
        return pd.read_parquet(BytesIO(self.read("curve.parquet")))

    @cached_property
    def features(self) -> dict[str, Array]:
        """Test features after the last round: features (m, <=50), labels (m,), domain (m,), an
        index into data["domains"]."""
        return load(self.read("features.safetensors"))

    @cached_property
    def predictions(self) -> dict[str, Array]:
        """Predicted class of every test image at the rounds a score rule may read.
        ``predicted/round/subject/network/domain`` (m,), network ``server`` or a client;
        ``labels/domain`` (m,); ``images/domain/source`` (m,): the images' indices in that source,
        source by source in the order of the test set (absent where domains are pooled);
        ``sample/domain``: the tested positions, if not all are tested. Empty in old records."""
        name = "predictions.safetensors"
        return load(self.read(name)) if name in self._listed else {}

    @property
    def classes(self) -> list[str]:
        return list(dict.fromkeys(row["class"] for row in self.data["counts"]))

    @cached_property
    def points(self) -> pd.DataFrame:
        """t-SNE points of the test features."""
        return tsne(self.features, self.data["domains"], self.classes, self.config["seed"])


def compact(features: Array) -> Array:
    """The first principal components of features (m, d), as float16 (m, <=50) within its range."""
    dimensions = min(DIMENSIONS, *features.shape)
    if features.shape[1] > dimensions:
        from sklearn.decomposition import PCA  # takes a second

        features = PCA(dimensions, svd_solver="full").fit_transform(features)
    most = np.finfo(np.float16).max
    # Row by row in memory: safetensors writes bytes in memory order, and PCA returns columns.
    return np.ascontiguousarray(features.clip(-most, most), dtype=np.float16)


def tsne(
    features: Mapping[str, Array], domains: Sequence[str], classes: Sequence[str], seed: int = 0
) -> pd.DataFrame:
    """t-SNE of features as in `Record.features`: columns x, y, domain, cls, one row per image.
    Equal input and seed give equal points on one machine. FedReproError: fewer than 5 points."""
    from sklearn.manifold import TSNE

    points = np.asarray(features["features"], dtype=np.float32)
    count = len(points)
    need(count >= LEAST, f"t-SNE needs at least {LEAST} points, got {count}; test on more images")
    model = TSNE(
        perplexity=min(PERPLEXITY, (count - 1) / 3),
        init="pca" if points.shape[1] > 1 else "random",
        random_state=stream_seed(seed, "figure") % 2**32,
    )
    plane = pd.DataFrame(model.fit_transform(points), columns=["x", "y"])
    return plane.assign(
        domain=[domains[i] for i in features["domain"]],
        cls=[classes[i] for i in features["labels"]],
    )
