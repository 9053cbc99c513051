"""Runs by id: asked for, they are found, resumed or trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock
from safetensors.numpy import load_file, save_file
from sklearn.decomposition import PCA

from fedrepro import engine as engines
from fedrepro import files
from fedrepro.data.federation import Federation, build_federation
from fedrepro.errors import FedReproError
from fedrepro.methods.base import Method
from fedrepro.progress import Progress
from fedrepro.progress import progress as default_progress
from fedrepro.protocol import DataSpec, Protocol
from fedrepro.rounds import Training
from fedrepro.runs.checkpoint import FileCheckpoint
from fedrepro.runs.environment import environment, pick_device

FEATURE_DIMENSIONS = 50


@dataclass(frozen=True)
class RunSpec:
    """What is asked for: everything that may change a run's numbers, but the data's own hashes."""

    method: Method
    protocol: Protocol
    seed: int
    engine: str = "auto"

    def config(self) -> dict[str, Any]:
        """The plain form that is hashed and recorded."""
        method = {
            "name": self.method.name,
            "version": self.method.version,
            "fields": self.method.fields(),
        }
        return {
            "method": method,
            "protocol": self.protocol.model_dump(mode="json"),
            "seed": self.seed,
            "engine": engines.resolve(self.engine),
        }


def run_id(config: Mapping[str, Any], hashes: Mapping[str, str]) -> str:
    """16 hex digits of the hash of a run's config and its data, split and allocation hashes."""
    content = json.dumps([config, dict(sorted(hashes.items()))], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Record:
    """A finished run in its folder."""

    folder: Path

    @property
    def run_id(self) -> str:
        return self.folder.name

    @cached_property
    def config(self) -> dict[str, Any]:
        return files.read_json(self.folder / "config.json")

    @cached_property
    def environment(self) -> dict[str, Any]:
        return files.read_json(self.folder / "environment.json")

    @cached_property
    def data(self) -> dict[str, Any]:
        return files.read_json(self.folder / "data.json")

    @cached_property
    def curve(self) -> pd.DataFrame:
        try:
            return pd.read_parquet(self.folder / "curve.parquet")
        except (OSError, ValueError) as error:
            raise FedReproError(
                f"{self.folder / 'curve.parquet'} cannot be read ({error}); delete its folder "
                "and run again"
            ) from None

    @cached_property
    def features(self) -> dict[str, np.ndarray[Any, Any]]:
        """Test features after the last round: features (m, <=50), labels (m,), domain (m,), an
        index into data["domains"]."""
        return load_file(self.folder / "features.safetensors")

    @property
    def protocol(self) -> Protocol:
        return Protocol.model_validate(self.config["protocol"])


class Store:
    """A folder of runs."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise FedReproError(f"runs folder {self.root} is a file; name a folder with --runs")

    def find(self, identity: str) -> Record | None:
        """The finished run of that id, if any."""
        folder = self.root / identity
        return Record(folder) if (folder / "done").exists() else None

    def records(self) -> Iterator[Record]:
        """All finished runs, by id."""
        for done in sorted(self.root.glob("*/done")):
            yield Record(done.parent)

    def obtain(
        self,
        spec: RunSpec,
        *,
        device: str = "auto",
        data_root: Path | None = None,
        progress: Progress | None = None,
    ) -> Record:
        """The record of a run: from the store, resumed from its checkpoint, or trained now."""
        federation = federation_of(spec.protocol.data, data_root)
        config = spec.config()
        identity = run_id(config, federation.hashes)
        found = self.find(identity)
        if found is not None:
            return found
        folder = files.make_folder(self.root / identity, "name a writable folder with --runs")
        with FileLock(folder / ".lock"):
            # Another process may have finished it while this one waited for the lock.
            return self.find(identity) or self._train(
                spec, config, federation, folder, device, progress or default_progress()
            )

    def _train(
        self,
        spec: RunSpec,
        config: Mapping[str, Any],
        federation: Federation,
        folder: Path,
        device: str,
        progress: Progress,
    ) -> Record:
        place = pick_device(device)
        training = Training(
            spec.method, spec.protocol, federation, spec.seed, place, config["engine"]
        )
        files.write_json(folder / "config.json", config)
        files.write_json(folder / "environment.json", environment(place))
        files.write_json(folder / "data.json", data_facts(federation))
        checkpoint = FileCheckpoint(folder)
        curve = training.run(progress, checkpoint)
        features, labels, domains = training.embed()
        names = list(federation.domains)
        arrays = {
            "features": compact(features.float().numpy()),
            "labels": labels.numpy(),
            "domain": np.array([names.index(d) for d in domains]),
        }
        files.write(
            folder / "features.safetensors",
            lambda file: save_file(arrays, file),
        )
        files.write(folder / "curve.parquet", lambda file: curve.to_parquet(file, index=False))
        files.write(folder / "done", lambda file: file.write_text(""))
        checkpoint.remove()
        return Record(folder)


def compact(features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Features (m, d) as float16 (m, <=50): their first principal components, the usual step
    before t-SNE, keeps a record small."""
    dimensions = min(FEATURE_DIMENSIONS, *features.shape)
    if features.shape[1] > dimensions:
        features = PCA(dimensions, svd_solver="full").fit_transform(features)
    # Row by row in memory: safetensors writes bytes as they lie, and PCA returns columns.
    return np.ascontiguousarray(features, dtype=np.float16)


def data_facts(federation: Federation) -> dict[str, Any]:
    """What a record says of its data."""
    counts = federation.counts()
    return {
        "dataset": federation.dataset,
        "domains": list(federation.domains),
        "hashes": dict(federation.hashes),
        "standins": list(federation.standins),
        "deviations": {k: list(v) for k, v in federation.deviations.items()},
        "clients": [{"name": c.name, "domain": c.domain} for c in federation.clients],
        "counts": json.loads(counts.to_json(orient="records")),
    }


def federation_of(spec: DataSpec, data_root: Path | None = None) -> Federation:
    """The federation of a data spec; the last few are kept, for many runs share one."""
    return _federation(spec.model_dump_json(), data_root)


@lru_cache(maxsize=4)
def _federation(spec: str, data_root: Path | None) -> Federation:
    return build_federation(DataSpec.model_validate_json(spec), root=data_root)
