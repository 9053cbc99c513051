"""Runs by id: they are read, resumed from their checkpoint or trained when they are needed."""

import json
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from safetensors import TensorSpec, safe_open, serialize_file
from safetensors.numpy import save_file
from torch import Tensor

from fedrepro import engine as engines
from fedrepro.base import files
from fedrepro.base.errors import Diverged, FedReproError
from fedrepro.base.progress import Progress, Tracker, resolve
from fedrepro.base.progress import progress as default_progress
from fedrepro.base.protocol import DataSpec
from fedrepro.base.threads import recorded
from fedrepro.data.federation import Federation, build_federation
from fedrepro.data.splits import tested_sample
from fedrepro.federated import metrics
from fedrepro.federated.rounds import Training
from fedrepro.records.packed import Pack, PackedRecord
from fedrepro.records.record import Record, RunSpec, compact, environment, pick_device, run_id

CHECKPOINT = "checkpoint.safetensors"
DIVERGED = "diverged.json"  # in the folder of a diverged run: message, seed and round
SHARE = 20  # saves may take this fraction (1/n) of the time


def tell(tracker: Tracker, curve: pd.DataFrame) -> None:
    """Send every round of a curve to a tracker."""
    terms = curve[curve.measure == "term"].pivot_table("value", "round", "subject")
    sent = metrics.traffic(curve)
    tested = metrics.accuracies(curve).rename(columns={"avg": "mean"})
    parts = {"accuracy": tested, "term": terms, "bytes": sent.assign(total=sent.sum(axis=1))}
    table = pd.concat([part.add_prefix(f"{name}/") for name, part in parts.items()], axis=1)
    for number, values in table.iterrows():
        tracker.round(int(str(number)), {str(k): v for k, v in values.dropna().items()})


def replay(folder: Path, track: type[Tracker], curve: pd.DataFrame) -> None:
    """Send a finished run to a tracker, if it has not received it."""
    if not (place := folder / track.name).exists():
        place.mkdir(parents=True)
        tracker = track(place)
        tell(tracker, curve)
        tracker.close()


class Tracked(Progress):
    """Passes each round on, and sends it to a tracker. After a resume the tracker begins again with
    the stored rounds, so that no round appears twice."""

    def __init__(
        self, inner: Progress, training: Training, folder: Path, track: type[Tracker]
    ) -> None:
        self._inner, self._training, self.name = inner, training, inner.name
        shutil.rmtree(folder / track.name, ignore_errors=True)
        (folder / track.name).mkdir()
        self._tracker, self._told = track(folder / track.name), 0

    def start(self, label: str, total: int, done: int) -> None:
        self._inner.start(label, total, done)
        self._tell()

    def round(self, number: int, accuracy: float) -> None:
        self._inner.round(number, accuracy)
        self._tell()

    def finish(self, text: str) -> None:
        self._inner.finish(text)
        self._tracker.close()

    def _tell(self) -> None:
        rows = self._training.log.rows
        if len(rows) > self._told:
            tell(self._tracker, metrics.framed(rows[self._told :]))
        self._told = len(rows)


# Checkpoints.


class FileCheckpoint:
    """The unfinished state of a run: a safetensors file in its folder with the facts as JSON in the
    header, so that tensors and facts are always of the same round. Due every 30 seconds, or less
    often if it is large.
    The header also names the run, which is its folder, and has a checksum of the whole file
    (`base.files`). It is computed after writing and checked before reading. Each takes a third of
    a second for 1 GB; saving 1 GB takes 2 to 7 s."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / CHECKPOINT
        self._every = 30.0
        self._saved = time.monotonic()

    def due(self) -> bool:
        return time.monotonic() - self._saved >= self._every

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the checkpoint. If the disk has no room, the old one stays, with a warning."""
        begun = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = sum(value.nbytes for value in tensors.values())
        free = shutil.disk_usage(self.path.parent).free
        if size > free:
            warnings.warn(
                f"a checkpoint needs {size / 1e9:.1f} GB, {self.path.parent} has {free / 1e9:.1f}: "
                "not saved; make room, or an interrupted run starts from an older one",
                stacklevel=2,
            )
        else:
            files.write(self.path, lambda file: _write(file, self.path.parent.name, tensors, facts))
        self._saved = time.monotonic()
        self._every = max(self._every, SHARE * (self._saved - begun))

    def load(self) -> tuple[Mapping[str, Tensor], dict[str, Any]] | None:
        """The tensors and facts, or None if there is no checkpoint."""
        if not self.path.exists():
            return None
        mend = "delete it to train this run from the start"
        if not files.is_whole(self.path):
            raise FedReproError(f"{self.path} is damaged, or older than checksums; {mend}")
        with safe_open(self.path, framework="pt") as file:
            run, facts = file.metadata()["run"], json.loads(file.metadata()["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if run != self.path.parent.name:
            raise FedReproError(f"{self.path} is of another run, {run}; {mend}")
        return tensors, facts


def _write(path: Path, run: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """In safetensors' format, without a copy but for tensors of a GPU or out of order in memory."""
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype=str(value.dtype).removeprefix("torch."),
            shape=list(value.shape),
            data_ptr=value.data_ptr(),
            data_len=value.nbytes,
        )
        for name, value in whole.items()
    }
    said = {**files.UNSIGNED, "run": run, "facts": json.dumps(facts)}
    serialize_file(specs, path, metadata=said)
    files.sign(path)


# Runs.


@dataclass(frozen=True)
class Probe:
    """A measurement on a training whose clients are in memory; in the record as ``<name>.json``."""

    name: str
    measure: Callable[[Training], Mapping[str, float]]


class Store:
    """A folder of runs, each in its own folder or all packed together."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).expanduser()
        files.check_runs(self.root)
        self._pack = Pack(self.root)

    def find(self, identity: str, probe: Probe | None = None) -> Record | None:
        """The finished run with an id, if there is one and it has the probe's measurement."""
        folder = self.root / identity
        record: Record | None = Record(folder) if (folder / "done").exists() else None
        if record is None and identity in self._pack.runs:
            record = PackedRecord(folder, self._pack)
        missed = record is not None and probe is not None and probe.name not in record.probes
        return None if missed else record

    def obtain(
        self,
        spec: RunSpec,
        *,
        device: str = "auto",
        data_root: Path | None = None,
        progress: Progress | None = None,
        probe: Probe | None = None,
        track: str | type[Tracker] = "",
    ) -> Record:
        """The record of a run: from the store, resumed from its checkpoint, or trained now. A
        record without the probe's measurement is trained again. track: receives its rounds.
        Diverged: its training diverged, now or earlier."""
        tracker = resolve(track)
        federation = federation_of(spec.protocol.data, data_root)
        for name in engines.ENGINES if spec.engine == "auto" else [spec.engine]:
            identity = run_id(replace(spec, engine=name).config(), federation.hashes)
            if (found := self.find(identity, probe)) is not None:
                if tracker is not None:
                    replay(self.root / identity, tracker, found.curve)
                return found
        folder = self.root / run_id(spec.config(), federation.hashes)
        files.make_folder(folder, "name a writable folder with --runs")
        with FileLock(folder / ".lock"):
            # Another process may have finished it while this one waited for the lock.
            if self.find(folder.name, probe) is None:
                if (folder / DIVERGED).exists():
                    raise _diverged(folder)
                place = pick_device(device)
                with recorded(place):
                    given = spec.method, spec.protocol, federation, spec.seed, place
                    training = Training(*given, engines.resolve(spec.engine))
                    shown = progress or default_progress()
                    if tracker is not None:
                        shown = Tracked(shown, training, folder, tracker)
                    _train(folder, spec.config(), training, shown, probe)
        found = Record(folder)
        if tracker is not None:
            replay(folder, tracker, found.curve)
        return found


def _train(
    folder: Path,
    config: Mapping[str, Any],
    training: Training,
    progress: Progress,
    probe: Probe | None,
) -> None:
    (folder / "done").unlink(missing_ok=True)  # it lists files that are written again
    facts = environment(training.device) | {"memory_format": str(training.engine.format)}
    marked = replace(training.federation, deviations=training.few_tests.deviations)
    files.write_json(folder / "config.json", config)
    files.write_json(folder / "environment.json", facts)
    files.write_json(folder / "data.json", data_facts(marked))
    checkpoint = FileCheckpoint(folder)
    try:
        training.run(progress, checkpoint)
    except Diverged as end:
        said = {"message": str(end), "seed": end.seed, "round": end.round}
        files.write_json(folder / DIVERGED, said)
        raise _diverged(folder) from None
    if probe is not None:
        files.write_json(folder / f"{probe.name}.json", probe.measure(training))
    _write_results(folder, training)
    checkpoint.path.unlink(missing_ok=True)


def _diverged(folder: Path) -> Diverged:
    """The error of a diverged run. It is not trained again: the same seed diverges again."""
    said = files.read_json(folder / DIVERGED)
    # by its name alone: notebooks keep the message, and a path is of one machine
    message = f"{said['message']} (delete the folder {folder.name} to train it again)"
    return Diverged(message, said["seed"], said["round"])


def _write_results(folder: Path, training: Training) -> None:
    curve, domains = training.curve(), list(training.federation.domains)
    predicted = {name: value.numpy() for name, value in predicted_of(training).items()}
    features, labels, of = training.embed()
    arrays = {"features": compact(features.float().numpy()), "labels": labels.numpy()}
    arrays["domain"] = np.array([domains.index(d) for d in of])
    files.write(folder / "features.safetensors", lambda file: save_file(arrays, file))
    files.write(folder / "predictions.safetensors", lambda file: save_file(predicted, file))
    files.write(folder / "curve.parquet", lambda file: curve.to_parquet(file, index=False))
    files.list_sums(folder, without=CHECKPOINT)


def predicted_of(training: Training) -> dict[str, Tensor]:
    """See `Record.predictions`."""
    federation, spec = training.federation, training.protocol
    named = {f"predicted/{name}": value for name, value in training.predicted.items()}
    for domain, samples in federation.tests.items():
        named[f"labels/{domain}"] = samples.labels.cpu().to(torch.int16)
        for source, indices in federation.test_images.get(domain, ()):
            named[f"images/{domain}/{source}"] = torch.from_numpy(indices.astype("int32"))
        if spec.tested_at is not None and len(samples) > spec.tested_at:
            sample = tested_sample(domain, len(samples), spec.tested_at, spec.data.split_seed)
            named[f"sample/{domain}"] = torch.from_numpy(sample.astype("int32"))
    return named


def data_facts(federation: Federation) -> dict[str, Any]:
    """A record's facts about its data."""
    return {
        "dataset": federation.dataset,
        "domains": list(federation.domains),
        "hashes": dict(federation.hashes),
        "standins": list(federation.standins),
        "subsets": list(federation.subsets),
        "deviations": {k: list(v) for k, v in federation.deviations.items()},
        "clients": [{"name": c.name, "domain": c.domain} for c in federation.clients],
        "counts": federation.counts().to_dict("records"),
        **({"weights": federation.weights} if federation.weights else {}),
    }


def federation_of(spec: DataSpec, data_root: Path | None = None) -> Federation:
    """The federation of a data spec; the last few are cached, because many runs share one."""
    return _federation(spec.model_dump_json(), data_root)


@lru_cache(maxsize=4)
def _federation(spec: str, data_root: Path | None) -> Federation:
    return build_federation(DataSpec.model_validate_json(spec), root=data_root)
