"""Runs by id: asked for, they are found, resumed or trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from safetensors.numpy import load, save_file
from sklearn.decomposition import PCA
from torch import Tensor

from fedrepro import engine as engines
from fedrepro.base import files
from fedrepro.base.errors import Diverged, FedReproError
from fedrepro.base.progress import Progress
from fedrepro.base.progress import progress as default_progress
from fedrepro.base.protocol import DataSpec, Protocol
from fedrepro.base.threads import recorded
from fedrepro.data.federation import Federation, build_federation
from fedrepro.data.manifest import default_manifest
from fedrepro.data.splits import tested_sample
from fedrepro.federated.rounds import Training
from fedrepro.methods.base import Method
from fedrepro.records.checkpoint import NAME as CHECKPOINT
from fedrepro.records.checkpoint import FileCheckpoint
from fedrepro.records.environment import environment, pick_device
from fedrepro.records.fingerprint import fingerprint
from fedrepro.records.packed import Pack

AGAIN = "delete its folder and run again"
FEATURE_DIMENSIONS = 50
DIVERGED = "diverged.json"  # in the folder of a run that ended so: what was said, seed and round


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
        if not type(self.method).__module__.startswith("fedrepro."):
            method["code"] = fingerprint(type(self.method))
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
class Probe:
    """Something to measure on a finished training whose clients are still there; kept in the
    record as ``<name>.json``."""

    name: str
    measure: Callable[[Training], Mapping[str, float]]


@dataclass(frozen=True)
class Record:
    """A finished run in its folder. Its files are read once, and must have the SHA-256 that `done`
    lists of them (1 ms for a usual record); in older records `done` is empty and nothing is held
    against it."""

    folder: Path

    @cached_property
    def _listed(self) -> dict[str, str]:
        done = self.folder / "done"
        listed = files.read_json(done) if done.exists() and done.stat().st_size else {}
        if lacking := [name for name in listed if not (self.folder / name).is_file()]:
            raise FedReproError(f"{self.folder / lacking[0]} is missing; {AGAIN}")
        return listed

    def read(self, name: str) -> bytes:
        """A file of the record, as it was written."""
        content = (self.folder / name).read_bytes()
        if self._listed and self._listed.get(name) != hashlib.sha256(content).hexdigest():
            raise FedReproError(
                f"{self.folder / name} cannot be read (it is not what was written: its checksum "
                f"differs); {AGAIN}"
            )
        return content

    def _json(self, name: str) -> dict[str, Any]:
        return files.parse_json(self.folder / name, lambda: self.read(name))

    @property
    def run_id(self) -> str:
        return self.folder.name

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._json("config.json")

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self._json("environment.json")

    @cached_property
    def data(self) -> dict[str, Any]:
        facts = self._json("data.json")
        # Records from before `subsets` was written: a domain that may be cut, and deviates.
        cut = [d for d in default_manifest().cut_domains() if d in facts["deviations"]]
        return {"subsets": cut, **facts}

    @cached_property
    def curve(self) -> pd.DataFrame:
        try:
            return pd.read_parquet(BytesIO(self.read("curve.parquet")))
        except (OSError, ValueError) as error:
            raise FedReproError(
                f"{self.folder / 'curve.parquet'} cannot be read ({error}); {AGAIN}"
            ) from None

    @cached_property
    def features(self) -> dict[str, np.ndarray[Any, Any]]:
        """Test features after the last round: features (m, <=50), labels (m,), domain (m,), an
        index into data["domains"]."""
        return load(self.read("features.safetensors"))

    @cached_property
    def predictions(self) -> dict[str, np.ndarray[Any, Any]]:
        """Predicted class of every test image at the rounds a score rule may read; empty in a
        record made before they were kept.

        ``predicted/round/subject/network/domain`` (m,), subject as in the curve, network
        ``server`` or a client; ``labels/domain`` (m,); ``images/domain/source`` (m,): the images'
        indices in that source, source by source in the order of the test set (absent where domains
        are pooled); ``sample/domain``: the positions that are tested where not all are.
        """
        name = "predictions.safetensors"
        kept = name in self._listed or (self.folder / name).exists()
        return load(self.read(name)) if kept else {}

    @property
    def points(self) -> pd.DataFrame:
        """t-SNE points that are kept in the features' place: none, while those are here."""
        return pd.DataFrame()

    @property
    def probes(self) -> list[str]:
        """Names of the probes that measured something."""
        names = {path.stem for path in self.folder.glob("*.json")}
        return sorted(names - {"config", "environment", "data"})

    def measured(self, probe: str) -> dict[str, Any]:
        """What a probe of that name measured."""
        return self._json(f"{probe}.json")

    @property
    def protocol(self) -> Protocol:
        return Protocol.model_validate(self.config["protocol"])


@dataclass(frozen=True)
class PackedRecord(Record):
    """A record of packed files (`runs.packed`). folder: where it was before, for its name."""

    pack: Pack

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.pack.config(self.run_id)

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self.pack.facts(self.run_id, "environment")

    @cached_property
    def data(self) -> dict[str, Any]:
        return self.pack.facts(self.run_id, "data")

    @cached_property
    def curve(self) -> pd.DataFrame:
        return self.pack.curve(self.run_id)

    @cached_property
    def features(self) -> dict[str, np.ndarray[Any, Any]]:
        raise FedReproError(
            f"the features of run {self.run_id} were not packed; train it again in another folder"
        )

    @cached_property
    def predictions(self) -> dict[str, np.ndarray[Any, Any]]:
        return self.pack.predictions(self.run_id)

    @property
    def points(self) -> pd.DataFrame:
        return self.pack.points(self.run_id)

    @property
    def probes(self) -> list[str]:
        return sorted(self.pack.runs[self.run_id]["measured"])

    def measured(self, probe: str) -> dict[str, Any]:
        found: dict[str, Any] = self.pack.runs[self.run_id]["measured"][probe]
        return found


class Store:
    """A folder of runs, each in a folder of its own or all packed together."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise FedReproError(f"runs folder {self.root} is a file; name a folder with --runs")
        self._pack = Pack(self.root)

    def find(self, identity: str, probe: Probe | None = None) -> Record | None:
        """The finished run of that id, if any, and if the probe was there."""
        folder = self.root / identity
        record: Record | None = Record(folder) if (folder / "done").exists() else None
        if record is None and identity in self._pack.runs:
            record = PackedRecord(folder, self._pack)
        missed = record is not None and probe is not None and probe.name not in record.probes
        return None if missed else record

    def records(self) -> Iterator[Record]:
        """All finished runs, by id."""
        for done in sorted(self.root.glob("*/done")):
            yield Record(done.parent)
        for identity in self._pack.runs:
            if not (self.root / identity / "done").exists():
                yield PackedRecord(self.root / identity, self._pack)

    def obtain(
        self,
        spec: RunSpec,
        *,
        device: str = "auto",
        data_root: Path | None = None,
        progress: Progress | None = None,
        probe: Probe | None = None,
    ) -> Record:
        """The record of a run: from the store, resumed from its checkpoint, or trained now. One
        that lacks what a probe measures is trained again.

        Raises:
            Diverged: its training did, now or when it was last asked for.
        """
        federation = federation_of(spec.protocol.data, data_root)
        if (found := self._found(spec, federation, probe)) is not None:
            return found
        folder = self.root / run_id(spec.config(), federation.hashes)
        files.make_folder(folder, "name a writable folder with --runs")
        with FileLock(folder / ".lock"):
            # Another process may have finished it while this one waited for the lock.
            if self.find(folder.name, probe) is None:
                if (folder / DIVERGED).exists():
                    raise _diverged(folder)
                with recorded(pick_device(device)):
                    _train(folder, spec, federation, device, progress, probe)
        return Record(folder)

    def _found(
        self, spec: RunSpec, federation: Federation, probe: Probe | None = None
    ) -> Record | None:
        names = [spec.engine] if spec.engine != "auto" else ["auto", *engines.ENGINES]
        for name in names:
            identity = run_id(replace(spec, engine=name).config(), federation.hashes)
            if (record := self.find(identity, probe)) is not None:
                return record
        return None


def _train(
    folder: Path,
    spec: RunSpec,
    federation: Federation,
    device: str,
    progress: Progress | None,
    probe: Probe | None,
) -> None:
    """Train a run into its folder."""
    place, config = pick_device(device), spec.config()
    whole = (spec.method, spec.protocol, federation, spec.seed)
    training = Training(*whole, place, config["engine"])
    (folder / "done").unlink(missing_ok=True)  # it lists files that are written anew
    facts = environment(place) | {"memory_format": str(training.engine.format)}
    marked = replace(federation, deviations=training.few_tests.deviations)
    files.write_json(folder / "config.json", config)
    files.write_json(folder / "environment.json", facts)
    files.write_json(folder / "data.json", data_facts(marked))
    checkpoint = FileCheckpoint(folder)
    try:
        training.run(progress or default_progress(), checkpoint)
    except Diverged as end:
        said = {"message": str(end), "seed": end.seed, "round": end.round}
        files.write_json(folder / DIVERGED, said)
        raise _diverged(folder) from None
    if probe is not None:
        files.write_json(folder / f"{probe.name}.json", probe.measure(training))
    _write_results(folder, training)
    checkpoint.remove()


def _diverged(folder: Path) -> Diverged:
    """What a run ended with. It is not trained again: the same seed would take the same way."""
    said = files.read_json(folder / DIVERGED)
    message = f"{said['message']} (delete {folder} to train it again)"
    return Diverged(message, said["seed"], said["round"])


def _write_results(folder: Path, training: Training) -> None:
    curve, domains = training.curve(), list(training.federation.domains)
    predicted = {name: value.numpy() for name, value in predicted_of(training).items()}
    features, labels, of = training.embed()
    arrays = {
        "features": compact(features.float().numpy()),
        "labels": labels.numpy(),
        "domain": np.array([domains.index(d) for d in of]),
    }
    files.write(folder / "features.safetensors", lambda file: save_file(arrays, file))
    files.write(folder / "predictions.safetensors", lambda file: save_file(predicted, file))
    files.write(folder / "curve.parquet", lambda file: curve.to_parquet(file, index=False))
    files.list_sums(folder, without=CHECKPOINT)


def predicted_of(training: Training) -> dict[str, Tensor]:
    """See `Record.predictions`."""
    federation, named = training.federation, {}
    for name, value in training.predicted.items():
        named[f"predicted/{name}"] = value
    spec = training.protocol
    for domain, samples in federation.tests.items():
        named[f"labels/{domain}"] = samples.labels.cpu().to(torch.int16)
        for source, indices in federation.test_images.get(domain, ()):
            named[f"images/{domain}/{source}"] = torch.from_numpy(indices.astype("int32"))
        if spec.tested_at is not None and len(samples) > spec.tested_at:
            sample = tested_sample(domain, len(samples), spec.tested_at, spec.data.split_seed)
            named[f"sample/{domain}"] = torch.from_numpy(sample.astype("int32"))
    return named


def compact(features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Features (m, d) as float16 (m, <=50): their first principal components, the usual step
    before t-SNE, keeps a record small. What is beyond float16 is cut to its largest number."""
    dimensions = min(FEATURE_DIMENSIONS, *features.shape)
    if features.shape[1] > dimensions:
        features = PCA(dimensions, svd_solver="full").fit_transform(features)
    most = np.finfo(np.float16).max
    # Row by row in memory: safetensors writes bytes as they lie, and PCA returns columns.
    return np.ascontiguousarray(features.clip(-most, most), dtype=np.float16)


def data_facts(federation: Federation) -> dict[str, Any]:
    """What a record says of its data."""
    counts = federation.counts()
    return {
        "dataset": federation.dataset,
        "domains": list(federation.domains),
        "hashes": dict(federation.hashes),
        "standins": list(federation.standins),
        "subsets": list(federation.subsets),
        "deviations": {k: list(v) for k, v in federation.deviations.items()},
        "clients": [{"name": c.name, "domain": c.domain} for c in federation.clients],
        "counts": json.loads(counts.to_json(orient="records")),
        **({"weights": federation.weights} if federation.weights else {}),
    }


def federation_of(spec: DataSpec, data_root: Path | None = None) -> Federation:
    """The federation of a data spec; the last few are kept, for many runs share one."""
    return _federation(spec.model_dump_json(), data_root)


@lru_cache(maxsize=4)
def _federation(spec: str, data_root: Path | None) -> Federation:
    return build_federation(DataSpec.model_validate_json(spec), root=data_root)
